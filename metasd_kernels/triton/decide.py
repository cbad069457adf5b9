"""What the last program of a request does: accept or reject, the reward, the final draw. A few numbers and one tile."""

import triton
import triton.language as tl

from metasd_kernels.triton.block import (
    DRAFT_MAX,
    FLAGS,
    NO_DRAFT,
    RESIDUAL,
    SPARSE,
    TARGET_MAX,
    TOTAL_VARIATION,
    at,
    draft_logits_at,
    fine_plane,
    load_plane,
    log_ratios,
    plane,
    running_weights,
    shifted,
)
from metasd_kernels.triton.device import (
    DRAW_TILE,
    MINUS_INF,
    PLUS_INF,
    coins,
    cutoff_of,
    finite_or_zero,
    first_above,
    from_halves,
    is_no_temperature,
    is_sampled,
    scale_of,
)
from metasd_kernels.triton.draft import draft_tile

BAD_LOGITS = tl.constexpr(1)  # metasd_kernels.outputs.Status
ZERO_RESIDUAL = tl.constexpr(2)
BAD_TOKEN = tl.constexpr(4)
TIMEOUT = tl.constexpr(8)


@triton.jit
def decide(
    b,
    first,
    length,
    limit,
    tokens,
    request_ptr,
    num_tiles,
    target_base,
    draft_base,
    # as in verify_kernel
    target_ptr,
    draft_ptr,
    target_cutoff_ptr,
    draft_cutoff_ptr,
    map_ptr,
    reward_length_ptr,
    seed_ptr,
    offset_ptr,
    coins_ptr,
    output_ptr,
    num_accepted_ptr,
    tv_ptr,
    accept_ptr,
    expected_ptr,
    divergence_ptr,
    status_ptr,
    temperature,
    draft_temperature,
    seed_low,
    seed_high,
    offset_low,
    offset_high,
    offset_stride,
    K,
    V_T,
    V_D,
    target_stride_k,
    draft_stride_k,
    DRAFT: tl.constexpr,
    IS_BLOCK_RULE: tl.constexpr,
    COMPUTE_TV: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
):
    SUB: tl.constexpr = TILE // DRAW_TILE
    FINE: tl.constexpr = TILES * SUB
    k = tl.arange(0, ROWS)
    target_scale, draft_scale = scale_of(temperature), scale_of(draft_temperature)
    is_target_sampled = is_sampled(temperature)
    is_draft_sampled = is_sampled(draft_temperature) & (DRAFT != NO_DRAFT)

    # The laws, and where the block ends: at a draft row that is none.
    target_max, target_sum, is_point, best, draft_max, draft_sum, log_p, ratio = log_ratios(
        tokens, limit + 1, limit, b, first, request_ptr, num_tiles, K, V_D, target_ptr, target_base, target_stride_k,
        draft_ptr, draft_base, draft_stride_k, target_cutoff_ptr, draft_cutoff_ptr, map_ptr, target_scale,
        draft_scale, is_target_sampled, is_draft_sampled, ROWS, TILES, TILE, DRAFT,
    )  # fmt: skip
    flags = load_plane(request_ptr, FLAGS, k, k <= limit, num_tiles, K, 0.0, TILES).to(tl.int32)
    is_bad_target = (tl.max(flags & 1, 1) > 0) | (target_max == MINUS_INF)
    is_bad_draft = ((tl.max(flags & 2, 1) > 0) | (draft_max == MINUS_INF)) & is_draft_sampled & (k < limit)
    end = tl.minimum(limit, tl.min(tl.where(is_bad_draft, k, ROWS), 0))
    is_valid = k < end
    ratio = tl.where(is_valid, ratio, MINUS_INF)

    status = tl.where(tl.max((is_bad_target & (k <= end)).to(tl.int32), 0) > 0, BAD_LOGITS, 0)
    is_odd = is_no_temperature(temperature) | (is_no_temperature(draft_temperature) & (end > 0) & (DRAFT != NO_DRAFT))
    status |= tl.where(is_odd | (end < limit), BAD_LOGITS, 0)
    status |= tl.where((end < length) & (at(tokens, end, ROWS) >= V_T), BAD_TOKEN, 0)
    status |= tl.where(tl.max(tl.max(flags & 4, 1), 0) > 0, TIMEOUT, 0)

    # The total variation distance, and the mass of the residual.
    log_q_best = log_p
    if DRAFT != NO_DRAFT:
        y = draft_logits_at(best, k, is_valid & is_point, first, draft_ptr, draft_base, draft_stride_k,
                            draft_cutoff_ptr, map_ptr, V_D, DRAFT)  # fmt: skip
        log_q_best = tl.where(y == MINUS_INF, MINUS_INF, (y - draft_max) * draft_scale - tl.log2(draft_sum))
    is_draft_point = is_draft_sampled == 0
    q_best = tl.where(is_draft_point, tl.where(tokens == best, 1.0, 0.0), tl.exp2(log_q_best))
    tv = tl.where(is_draft_point, 1.0 - tl.exp2(log_p), 1.0 - q_best)
    if DRAFT != NO_DRAFT:
        parts = load_plane(request_ptr, TOTAL_VARIATION, k, is_valid, num_tiles, K, 0.0, TILES)
        tv = tl.where(is_draft_point | is_point, tv, tl.sum(parts, 1))
    tv = tl.where(is_valid, tl.minimum(tl.maximum(tv, 0.0), 1.0), 1.0)

    # Accept or reject.
    seed = from_halves(seed_low, seed_high) if seed_ptr is None else tl.load(seed_ptr + b)
    nonce = from_halves(offset_low, offset_high) if offset_ptr is None else tl.load(offset_ptr + b * offset_stride)
    if coins_ptr is None:
        u = coins(seed, nonce, k, 0)[0]
        u_tile, u_id = coins(seed, nonce, tl.full([], 0, tl.int32), 1)
    else:
        own_ptr = coins_ptr + b.to(tl.int64) * (K + 2)
        u = tl.load(own_ptr + k, mask=k < K, other=0.5)
        u_tile, u_id = tl.load(own_ptr + K), tl.load(own_ptr + K + 1)
    accept = tl.where(is_valid, tl.exp2(tl.minimum(ratio, 0.0)), 0.0)
    weight = 1.0
    if IS_BLOCK_RULE:
        after = running_weights(ratio)  # s_(k + 1)
        before = shifted(after, -1, 1.0, ROWS)  # s_k
        mass = tl.where(is_draft_point, before * (1.0 - tl.exp2(log_p)), tl.maximum(before - q_best, 0.0))
        if DRAFT != NO_DRAFT:
            parts = load_plane(request_ptr, RESIDUAL, k, is_valid, num_tiles, K, 0.0, TILES)
            mass = tl.where(is_draft_point | is_point, mass, tl.minimum(tl.sum(parts, 1), 1.0))
        mass = shifted(tl.where(is_valid, mass, 0.0), 1, 0.0, ROWS)  # of the position behind
        rest = mass + (1.0 - after)
        h = tl.where(k + 1 == end, after, tl.where(rest > 0, mass / rest, 0.0))
        num_accepted = tl.max(tl.where((u < h) & is_valid, k + 1, 0), 0)
        weight = at(before, num_accepted, ROWS)
        expected = tl.sum(tl.where(is_valid, after, 0.0), 0)
    else:
        is_rejected = (ratio > tl.log2(u)) == 0
        num_accepted = tl.minimum(tl.min(tl.where(is_rejected, k, ROWS), 0), end)
        reach = shifted(tl.cumprod(accept, 0), -1, 1.0, ROWS)
        expected = tl.sum(reach * (1.0 - tv), 0)
    is_bonus = num_accepted == end

    # The final draw: tile, then id.
    n = num_accepted
    row_token, row_best, row_is_point = at(tokens, n, ROWS), at(best, n, ROWS), at(is_point.to(tl.int32), n, ROWS) > 0
    row_max, row_sum = at(target_max, n, ROWS), at(target_sum, n, ROWS)
    fine = tl.arange(0, FINE)
    is_fine = fine < num_tiles * SUB
    coarse_max = tl.load(plane(request_ptr, TARGET_MAX, K, num_tiles) + n * num_tiles + fine // SUB, mask=is_fine,
                         other=MINUS_INF, cache_modifier=".cg")  # fmt: skip
    scale_up = tl.exp2((coarse_max - finite_or_zero(row_max)) * target_scale)
    fine_ptr = fine_plane(request_ptr, 0, K, num_tiles, SUB) + n * (num_tiles * SUB) + fine
    target_mass = tl.load(fine_ptr, mask=is_fine, other=0.0, cache_modifier=".cg") * scale_up
    mass_by_tile = target_mass  # of a point-mass draft: already without the draft id
    if DRAFT != NO_DRAFT:
        fine_ptr = fine_plane(request_ptr, 1, K, num_tiles, SUB) + n * (num_tiles * SUB) + fine
        takes_residual = is_draft_sampled & (is_bonus == 0)
        residual_mass = tl.load(fine_ptr, mask=is_fine & takes_residual, other=0.0, cache_modifier=".cg")
        mass_by_tile = tl.where(takes_residual, residual_mass, target_mass)
    is_zero = (is_bonus == 0) & (tl.max(mass_by_tile, 0) <= 0)
    mass_by_tile = tl.where(is_zero, target_mass, mass_by_tile)
    chosen = tl.maximum(first_above(mass_by_tile, u_tile, FINE), 0)

    ids = chosen * DRAW_TILE + tl.arange(0, DRAW_TILE)
    cutoff = cutoff_of(target_cutoff_ptr, first + b + n, n >= 0)
    x = tl.load(target_ptr + target_base + n.to(tl.int64) * target_stride_k + ids, mask=ids < V_T, other=MINUS_INF)
    x = x.to(tl.float32)
    x = tl.where((x < PLUS_INF) & (x >= cutoff), x, MINUS_INF)
    tile_max = tl.load(
        plane(request_ptr, TARGET_MAX, K, num_tiles) + n * num_tiles + chosen // SUB, cache_modifier=".cg"
    )
    factor = tl.exp2((tile_max - finite_or_zero(row_max)) * target_scale) * (weight / row_sum)
    p = tl.exp2((x - finite_or_zero(tile_max)) * target_scale) * factor
    q = tl.where(is_draft_point & (ids == row_token), PLUS_INF, 0.0)
    if DRAFT != NO_DRAFT:
        if is_draft_sampled & (is_bonus == 0):
            z = draft_tile(ids[None, :], chosen * DRAW_TILE, DRAW_TILE, n, first, draft_ptr, draft_base,
                           draft_stride_k, draft_cutoff_ptr, map_ptr, V_T, V_D, DRAFT)  # fmt: skip
            z = tl.reshape(tl.where(z < PLUS_INF, z, MINUS_INF), [DRAW_TILE])
            draft_row_max = at(draft_max, n, ROWS)
            draft_tile_max = draft_row_max
            if DRAFT != SPARSE:
                where = plane(request_ptr, DRAFT_MAX, K, num_tiles) + n * num_tiles + chosen // SUB
                draft_tile_max = tl.load(where, cache_modifier=".cg")
            draft_factor = tl.exp2((draft_tile_max - draft_row_max) * draft_scale) / at(draft_sum, n, ROWS)
            q = tl.exp2((z - finite_or_zero(draft_tile_max)) * draft_scale) * draft_factor
    rest = tl.where(p > q, p - q, 0.0)
    takes_target = is_bonus | is_zero | (tl.max(rest, 0) <= 0)
    is_zero |= (is_bonus == 0) & (tl.max(rest, 0) <= 0)
    drawn = chosen * DRAW_TILE + tl.maximum(first_above(tl.where(takes_target, p, rest), u_id, DRAW_TILE), 0)
    is_zero = tl.where(row_is_point, (is_bonus == 0) & ((weight > at(q_best, n, ROWS)) == 0), is_zero)
    # Nothing but the draft id has mass: p is drawn, and p is that id.
    falls_back = is_zero & is_draft_point & (is_bonus == 0)
    final_token = tl.where(row_is_point, row_best, tl.where(falls_back, row_token, drawn))
    status |= tl.where(is_zero, ZERO_RESIDUAL, 0)

    output = tl.where(k < num_accepted, tokens, tl.where(k == num_accepted, final_token, -1))
    tl.store(output_ptr + b.to(tl.int64) * (K + 1) + k, output, mask=k <= K)
    tl.store(accept_ptr + b.to(tl.int64) * K + k, accept, mask=k < K)
    tl.store(num_accepted_ptr + b, num_accepted)
    tl.store(status_ptr + b, status)
    if COMPUTE_TV:
        tl.store(tv_ptr + b.to(tl.int64) * K + k, tv, mask=k < K)
        tl.store(expected_ptr + b, expected)
        overlap = tl.sum(tl.where(k < K, 1.0 - tv, 0.0), 0)
        length = K.to(tl.float32) if reward_length_ptr is None else tl.load(reward_length_ptr + b).to(tl.float32)
        tl.store(divergence_ptr + b, tl.where(length > 0, overlap / tl.maximum(length, 1.0), 0.0))
