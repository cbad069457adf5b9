"""`verify` in one launch: every tile of logits is read once, and its exponentials wait in registers for the normaliser.

A program owns one tile of one row. It publishes the tile's maximum and sum, waits for the other tiles of its row, and
then knows the residual of its tile. The last program of a request decides (`decide.py`). Point-mass drafts need no
residual, so nobody waits. Where the programs that wait for each other may not fit on the device together, the same
kernel runs as two launches: publish, then finish.
"""

import triton
import triton.language as tl
from torch import Tensor

from metasd_kernels import launch
from metasd_kernels.inputs import VerifyInputs
from metasd_kernels.outputs import VerifyOutput
from metasd_kernels.triton.block import (
    DRAFT_MAX,
    DRAFT_SUM,
    FIRST_BEST,
    FLAGS,
    NO_DRAFT,
    REDUCED,
    RESIDUAL,
    SAME_IDS,
    SPARSE,
    TARGET_MAX,
    TARGET_SUM,
    TOTAL_VARIATION,
    at,
    fine_plane,
    locate,
    log_ratios,
    plane,
    row_laws,
    running_weights,
)
from metasd_kernels.triton.decide import decide
from metasd_kernels.triton.device import (
    DRAW_TILE,
    MINUS_INF,
    PLUS_INF,
    exponentials,
    finite_or_zero,
    first_best,
    is_sampled,
    load_logits,
    scale_of,
    usable,
    value_of,
)
from metasd_kernels.triton.draft import draft_tile, list_law
from metasd_kernels.triton.host import IS_INTERPRETED, Scratch, dense, halves, inverse_map, processors, stride_of

FUSED = tl.constexpr(0)
PUBLISH = tl.constexpr(1)
FINISH = tl.constexpr(2)
MAX_POLLS = tl.constexpr(1 << 22)  # some seconds


@triton.jit
def wait_for(counter_ptr, count):
    """Poll until a counter has reached `count`; gives up in the end. 1 if it gave up."""
    arrived = tl.atomic_add(counter_ptr, 0, sem="acquire")
    polls = 0
    while (arrived < count) & (polls < MAX_POLLS):
        arrived = tl.atomic_add(counter_ptr, 0, sem="acquire")
        polls += 1
    return (arrived < count).to(tl.int32)


@triton.jit
def _factor(tile_max, row_max, row_sum, scale):
    """From the exponentials of a tile to probabilities."""
    return tl.exp2((tile_max - finite_or_zero(row_max)) * scale) / row_sum


@triton.jit(
    do_not_specialize=[
        "temperature", "draft_temperature", "seed_low", "seed_high", "offset_low", "offset_high", "offset_stride", "K",
        "is_ticketed",
    ]
)  # fmt: skip
def verify_kernel(
    target_ptr,  # [B, K + 1, V_T], packed [N + B, V_T]
    draft_ptr,  # [B, K, V_D], packed [N, V_D]; None: point masses
    token_ptr,  # [B, K], packed [N]
    target_cutoff_ptr,  # [B, K + 1], packed [N + B]; or None
    draft_cutoff_ptr,  # [B, K], packed [N]; or None
    num_draft_ptr,  # [B] or None
    cumulative_ptr,  # [B + 1]: packed; or None
    map_ptr,  # reduced: [V_T] int32, draft id of a target id or -1; sparse: [B, K, V_D] target ids; or None
    reward_length_ptr,  # [B] or None
    temperature_ptr,  # [B] or None
    draft_temperature_ptr,  # [B] or None
    seed_ptr,  # [B] int64 or None
    offset_ptr,  # [1] | [B] int64 or None
    coins_ptr,  # [B, K + 2] fp32: injected; or None
    output_ptr,  # [B, K + 1] int64
    num_accepted_ptr,  # [B] int32
    tv_ptr,  # [B, K] fp32
    accept_ptr,  # [B, K] fp32
    expected_ptr,  # [B] fp32
    divergence_ptr,  # [B] fp32
    status_ptr,  # [B] int32
    counters_ptr,  # [2 + B (K + 2)] int32, zero between launches: tickets, programs done, arrivals by row and request
    partials_ptr,  # fp32 scratch: the planes of block.py for each request
    temperature,  # fp32, where temperature_ptr is None
    draft_temperature,  # fp32
    seed_low,  # int32 halves of an int64
    seed_high,
    offset_low,
    offset_high,
    offset_stride,  # 0: one nonce for all requests
    K,
    V_T,
    V_D,  # width of a draft row; of a list, if the draft is sparse
    target_stride_b,
    target_stride_k,
    draft_stride_b,
    draft_stride_k,
    is_ticketed,  # 1: programs take their work in the order in which they start
    DRAFT: tl.constexpr,
    IS_BLOCK_RULE: tl.constexpr,
    COMPUTE_TV: tl.constexpr,
    MODE: tl.constexpr,
    ROWS: tl.constexpr,  # power of 2 above K
    TILES: tl.constexpr,  # power of 2, at least the number of tiles
    LIST: tl.constexpr,  # power of 2, at least the width of a sparse list
    TILE: tl.constexpr,  # ids a program, a multiple of 1024
):
    SUB: tl.constexpr = TILE // DRAW_TILE
    program = tl.program_id(0)
    if is_ticketed != 0:
        program = tl.atomic_add(counters_ptr, 1, sem="relaxed")
    num_tiles = tl.cdiv(tl.maximum(V_T, V_D) if DRAFT == SAME_IDS else V_T, TILE)
    tile = program % num_tiles
    k = (program // num_tiles) % (K + 1)
    b = program // (num_tiles * (K + 1))
    first, length, limit, tokens = locate(b, K, V_T, token_ptr, num_draft_ptr, cumulative_ptr, ROWS)

    if k <= limit:
        own_temperature = value_of(temperature_ptr, temperature, b)
        own_draft_temperature = value_of(draft_temperature_ptr, draft_temperature, b)
        target_scale, draft_scale = scale_of(own_temperature), scale_of(own_draft_temperature)
        is_target_sampled = is_sampled(own_temperature)
        is_draft_sampled = is_sampled(own_draft_temperature) & (DRAFT != NO_DRAFT)
        if cumulative_ptr is None:
            target_base, draft_base = b.to(tl.int64) * target_stride_b, b.to(tl.int64) * draft_stride_b
        else:
            target_base, draft_base = (first + b) * target_stride_k, first * draft_stride_k
        request_ptr = partials_ptr + b.to(tl.int64) * ((K + 1) * num_tiles * (8 + 2 * SUB))
        here = k * num_tiles + tile
        fine = here * SUB + tl.arange(0, SUB)
        arrivals_ptr = counters_ptr + 2 + b * (K + 2)

        inside = tl.arange(0, SUB)[:, None] * DRAW_TILE + tl.arange(0, DRAW_TILE)[None, :]
        ids = tile * TILE + inside
        row_ptr = target_ptr + target_base + k.to(tl.int64) * target_stride_k
        cutoff_index = first + b + k
        x, largest, flag = usable(load_logits(row_ptr, ids, V_T, target_cutoff_ptr, cutoff_index))
        if (is_target_sampled == 0) & (MODE != FINISH):
            best = first_best(x, largest, inside, TILE)
            tl.store(plane(request_ptr, FIRST_BEST, K, num_tiles) + here, best.to(tl.float32))
        e = exponentials(x, largest, target_scale)

        has_residual = is_draft_sampled & (k < limit)
        if DRAFT != NO_DRAFT:
            y = tl.where(ids < 0, 0.0, MINUS_INF)
            if has_residual:
                y = draft_tile(ids, tile * TILE, TILE, k, first, draft_ptr, draft_base, draft_stride_k,
                               draft_cutoff_ptr, map_ptr, V_T, V_D, DRAFT)  # fmt: skip
            y, draft_largest, draft_flag = usable(y)
            draft_e = exponentials(y, draft_largest, draft_scale)
            draft_total = tl.sum(tl.sum(draft_e, 1), 0)
            if DRAFT == SPARSE:
                # The list is short: every program reads all of it, and the first tile publishes its law.
                list_max, list_sum, draft_flag = list_law(
                    k, first, draft_ptr, draft_base, draft_stride_k, draft_cutoff_ptr, map_ptr, V_D, draft_scale, LIST
                )
                published_max = tl.where(tile == 0, list_max, MINUS_INF)
                draft_total = tl.where(tile == 0, list_sum, 0.0)
            else:
                published_max = draft_largest
            flag |= draft_flag << 1

        if MODE != FINISH:
            sums = tl.sum(e, 1)
            tl.store(plane(request_ptr, TARGET_MAX, K, num_tiles) + here, largest)
            tl.store(plane(request_ptr, TARGET_SUM, K, num_tiles) + here, tl.sum(sums, 0))
            tl.store(plane(request_ptr, FLAGS, K, num_tiles) + here, flag.to(tl.float32))
            if DRAFT != NO_DRAFT:
                tl.store(plane(request_ptr, DRAFT_MAX, K, num_tiles) + here, published_max)
                tl.store(plane(request_ptr, DRAFT_SUM, K, num_tiles) + here, draft_total)
            token = at(tokens, k, ROWS)
            if (k < limit) & (is_draft_sampled == 0) & (token // TILE == tile):
                # A point-mass draft leaves the target's law without the draft id: sum its 1024 ids anew.
                own = (token // DRAW_TILE) * DRAW_TILE + tl.arange(0, DRAW_TILE)
                z = load_logits(row_ptr, own, V_T, target_cutoff_ptr, cutoff_index)
                left = exponentials(tl.where((z < PLUS_INF) & (own != token), z, MINUS_INF), largest, target_scale)
                is_its = tile * SUB + tl.arange(0, SUB) == token // DRAW_TILE
                sums = tl.where(is_its, tl.sum(left, 0), sums)
            tl.store(fine_plane(request_ptr, 0, K, num_tiles, SUB) + fine, sums)

        if MODE != PUBLISH:
            if DRAFT != NO_DRAFT:
                gave_up = tl.full([], 0, tl.int32)
                if MODE == FUSED:
                    tl.debug_barrier()
                    tl.atomic_add(arrivals_ptr + k, 1, sem="release")
                    if has_residual:
                        for row in range(0 if IS_BLOCK_RULE else k, k + 1):
                            gave_up |= wait_for(arrivals_ptr + row, num_tiles)
                    if gave_up > 0:
                        tl.store(plane(request_ptr, FLAGS, K, num_tiles) + here, (flag | 4).to(tl.float32))
                if has_residual:
                    here_only = k + tl.arange(0, 1)
                    row_max, row_sum = row_laws(
                        request_ptr, TARGET_MAX, here_only, here_only >= 0, num_tiles, K, target_scale, TILES
                    )
                    p_factor = _factor(largest, tl.sum(row_max, 0), tl.sum(row_sum, 0), target_scale)
                    row_max, row_sum = row_laws(
                        request_ptr, DRAFT_MAX, here_only, here_only >= 0, num_tiles, K, draft_scale, TILES
                    )
                    q_factor = _factor(draft_largest, tl.sum(row_max, 0), tl.sum(row_sum, 0), draft_scale)
                    p, q = e * p_factor, draft_e * q_factor
                    # Not max(p - q, 0): that difference may be fused with a product, and equal laws leave a residue.
                    rest = tl.sum(tl.where(p > q, p - q, 0.0), 1)
                    tl.store(plane(request_ptr, TOTAL_VARIATION, K, num_tiles) + here, tl.sum(rest, 0))
                    if IS_BLOCK_RULE:
                        laws = log_ratios(
                            tokens, k, k, b, first, request_ptr, num_tiles, K, V_D, target_ptr, target_base,
                            target_stride_k, draft_ptr, draft_base, draft_stride_k, target_cutoff_ptr,
                            draft_cutoff_ptr, map_ptr, target_scale, draft_scale, is_target_sampled, is_draft_sampled,
                            ROWS, TILES, TILE, DRAFT,
                        )  # fmt: skip
                        weight = tl.where(k > 0, at(running_weights(laws[7]), k - 1, ROWS), 1.0)
                        p = p * weight
                        rest = tl.sum(tl.where(p > q, p - q, 0.0), 1)
                        tl.store(plane(request_ptr, RESIDUAL, K, num_tiles) + here, tl.sum(rest, 0))
                    tl.store(fine_plane(request_ptr, 1, K, num_tiles, SUB) + fine, rest)

            tl.debug_barrier()
            num_arrived = tl.atomic_add(arrivals_ptr + K + 1, 1, sem="acq_rel")
            if num_arrived == (limit + 1) * num_tiles - 1:
                decide(
                    b, first, length, limit, tokens, request_ptr, num_tiles, target_base, draft_base,
                    target_ptr, draft_ptr, target_cutoff_ptr, draft_cutoff_ptr, map_ptr, reward_length_ptr, seed_ptr,
                    offset_ptr, coins_ptr, output_ptr, num_accepted_ptr, tv_ptr, accept_ptr, expected_ptr,
                    divergence_ptr, status_ptr, own_temperature, own_draft_temperature, seed_low, seed_high,
                    offset_low, offset_high, offset_stride, K, V_T, V_D, target_stride_k, draft_stride_k,
                    DRAFT, IS_BLOCK_RULE, COMPUTE_TV, ROWS, TILES, TILE,
                )  # fmt: skip
                rows = tl.arange(0, ROWS)
                tl.store(arrivals_ptr + rows, tl.zeros([ROWS], tl.int32), mask=rows <= K)
                tl.store(arrivals_ptr + K + 1, 0)
    elif (length < 0) & (k == 0) & (tile == 0):
        if MODE != PUBLISH:
            rows = tl.arange(0, ROWS)
            nothing, all_of_it = tl.zeros([ROWS], tl.float32), tl.full([ROWS], 1.0, tl.float32)
            tl.store(output_ptr + b.to(tl.int64) * (K + 1) + rows, tl.full([ROWS], -1, tl.int64), mask=rows <= K)
            tl.store(accept_ptr + b.to(tl.int64) * K + rows, nothing, mask=rows < K)
            tl.store(num_accepted_ptr + b, 0)
            tl.store(status_ptr + b, 0)
            if COMPUTE_TV:
                tl.store(tv_ptr + b.to(tl.int64) * K + rows, all_of_it, mask=rows < K)
                tl.store(expected_ptr + b, 0.0)
                tl.store(divergence_ptr + b, 0.0)

    if is_ticketed != 0:
        if tl.atomic_add(counters_ptr + 1, 1, sem="relaxed") == tl.num_programs(0) - 1:
            tl.store(counters_ptr, 0)
            tl.store(counters_ptr + 1, 0)


def verify(inputs: VerifyInputs, out: VerifyOutput) -> None:
    """Fill `out`; see `metasd_kernels.verify` for the contract."""
    batch_size, num_positions = inputs.batch_size, inputs.num_draft_positions
    if batch_size == 0:
        return
    target, draft, mapping, kind = inputs.target_logits, inputs.draft_logits, inputs.draft_to_target, NO_DRAFT.value
    if draft is None or inputs.draft_temperature.always(0) or num_positions == 0:
        draft = mapping = None
    elif mapping is None:
        kind = SAME_IDS.value
    elif mapping.dim() == 1:
        kind, mapping = REDUCED.value, inverse_map(mapping, target.shape[-1])
    else:
        kind, mapping = SPARSE.value, dense(mapping)

    vocab_size, draft_width = target.shape[-1], 0 if draft is None else draft.shape[-1]
    is_block_rule = inputs.rule == "block"
    settings = launch.verify_settings(vocab_size, is_heavy=is_block_rule or kind == SPARSE.value)
    num_tiles = triton.cdiv(max(vocab_size, draft_width) if kind == SAME_IDS.value else vocab_size, settings.tile)
    scratch = Scratch.of(inputs.counters, inputs.partials, target.device)
    num_floats = batch_size * (num_positions + 1) * num_tiles * (8 + 2 * settings.tile // 1024)
    counters, partials = scratch.take(2 + batch_size * (num_positions + 2), num_floats)

    grid = batch_size * (num_positions + 1) * num_tiles
    resident = processors(target.device) * settings.programs_per_processor
    waiting = num_tiles * (num_positions + 1 if is_block_rule else 1)
    modes = [FUSED.value]
    if draft is not None and (IS_INTERPRETED or waiting > resident):
        modes = [PUBLISH.value, FINISH.value]
    seed, offset = halves(inputs.seed.value), halves(inputs.offset.value)
    for mode in modes:
        verify_kernel[(grid,)](
            target,
            draft,
            dense(inputs.draft_token_ids),
            dense(inputs.target_cutoff),
            dense(inputs.draft_cutoff),
            dense(inputs.num_draft_tokens),
            dense(inputs.cu_num_draft_tokens),
            mapping,
            dense(inputs.reward_length),
            dense(inputs.temperature.rows),
            dense(inputs.draft_temperature.rows),
            dense(inputs.seed.rows),
            dense(inputs.offset.rows),
            dense(inputs.uniform_samples),
            *out,
            counters,
            partials,
            float(inputs.temperature.value),
            float(inputs.draft_temperature.value),
            *seed,
            *offset,
            stride_of(inputs.offset),
            num_positions,
            vocab_size,
            draft_width,
            *_strides(target),
            *(_strides(draft) if draft is not None else (0, 0)),
            int(mode == FUSED.value and draft is not None and grid > resident),
            DRAFT=kind,
            IS_BLOCK_RULE=is_block_rule,
            COMPUTE_TV=inputs.compute_tv,
            MODE=mode,
            ROWS=triton.next_power_of_2(num_positions + 1),
            TILES=triton.next_power_of_2(num_tiles),
            LIST=triton.next_power_of_2(draft_width) if kind == SPARSE.value else 1,
            TILE=settings.tile,
            num_warps=settings.num_warps,
            maxnreg=settings.maxnreg,
        )


def _strides(logits: Tensor) -> tuple[int, int]:
    """Between requests and between rows. A batch of one has no stride of its own: take that of a dense one."""
    *rest, row, _ = logits.stride()
    return (rest[0] if rest and logits.shape[0] > 1 else logits.shape[-2] * row), row
