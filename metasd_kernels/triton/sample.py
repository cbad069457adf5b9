"""`sample` in one launch: each program reads one tile of a row once, the last of a row draws."""

import triton
import triton.language as tl
from torch import Tensor

from metasd_kernels import launch
from metasd_kernels.inputs import SampleInputs
from metasd_kernels.triton.device import (
    DRAW_TILE,
    MINUS_INF,
    PLUS_INF,
    coins,
    exponentials,
    first_above,
    first_best,
    from_halves,
    is_sampled,
    load_logits,
    scale_of,
    usable,
    value_of,
)
from metasd_kernels.triton.host import Scratch, dense, halves, stride_of


@triton.jit(
    do_not_specialize=[
        "temperature",
        "seed_low",
        "seed_high",
        "offset_low",
        "offset_high",
        "offset_stride",
        "position",
        "position_stride",
    ]
)
def sample_kernel(
    logits_ptr,  # [B, V]
    temperature_ptr,  # [B] or None
    cutoff_ptr,  # [B] or None
    seed_ptr,  # [B] int64 or None
    offset_ptr,  # [1] | [B] int64 or None
    position_ptr,  # [1] | [B] int64 or None
    coins_ptr,  # [B, 2] fp32: injected; or None
    output_ptr,  # [B] int64
    counters_ptr,  # [B] int32, zero between launches
    partials_ptr,  # [B, 2 + TILE / 1024, S] fp32: maximum, first best id, sums by 1024 ids
    temperature,
    seed_low,  # int32 halves of an int64
    seed_high,
    offset_low,
    offset_high,
    offset_stride,  # 0: one nonce for all rows
    position,  # int32 pattern of a uint32
    position_stride,
    V,
    stride,
    TILES: tl.constexpr,  # power of 2, at least the number of tiles
    TILE: tl.constexpr,
):
    SUB: tl.constexpr = TILE // DRAW_TILE
    FINE: tl.constexpr = TILES * SUB
    num_tiles = tl.cdiv(V, TILE)
    tile, b = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
    own_temperature = value_of(temperature_ptr, temperature, b)
    scale, is_drawn = scale_of(own_temperature), is_sampled(own_temperature)
    row_ptr = logits_ptr + b.to(tl.int64) * stride
    max_ptr = partials_ptr + b.to(tl.int64) * num_tiles * (2 + SUB)
    best_ptr, sums_ptr = max_ptr + num_tiles, max_ptr + 2 * num_tiles

    inside = tl.arange(0, SUB)[:, None] * DRAW_TILE + tl.arange(0, DRAW_TILE)[None, :]
    ids = tile * TILE + inside
    x, largest, _ = usable(load_logits(row_ptr, ids, V, cutoff_ptr, b))
    if is_drawn == 0:
        tl.store(best_ptr + tile, first_best(x, largest, inside, TILE).to(tl.float32))
    sums = tl.sum(exponentials(x, largest, scale), 1)
    tl.store(max_ptr + tile, largest)
    tl.store(sums_ptr + tile * SUB + tl.arange(0, SUB), sums)

    tl.debug_barrier()
    if tl.atomic_add(counters_ptr + b, 1, sem="acq_rel") == num_tiles - 1:
        t = tl.arange(0, TILES)
        tile_max = tl.load(max_ptr + t, mask=t < num_tiles, other=MINUS_INF, cache_modifier=".cg")
        row_max = tl.max(tile_max, 0)
        if (is_drawn == 0) | (row_max == MINUS_INF):
            best = tl.load(best_ptr + t, mask=t < num_tiles, other=0.0, cache_modifier=".cg").to(tl.int32) + t * TILE
            is_best = (tile_max == row_max) & (tile_max > MINUS_INF)
            lowest = tl.min(tl.where(is_best, best, 2147483647), 0)
            token = tl.where(row_max == MINUS_INF, 0, lowest)
        else:
            if coins_ptr is None:
                seed = from_halves(seed_low, seed_high) if seed_ptr is None else tl.load(seed_ptr + b)
                if offset_ptr is None:
                    offset = from_halves(offset_low, offset_high)
                else:
                    offset = tl.load(offset_ptr + b * offset_stride)
                place = position if position_ptr is None else tl.load(position_ptr + b * position_stride)
                u_tile, u_id = coins(seed, offset, place, 2)
            else:
                u_tile, u_id = tl.load(coins_ptr + 2 * b), tl.load(coins_ptr + 2 * b + 1)
            fine = tl.arange(0, FINE)
            is_fine = fine < num_tiles * SUB
            above = tl.load(max_ptr + fine // SUB, mask=is_fine, other=MINUS_INF, cache_modifier=".cg")
            mass = tl.load(sums_ptr + fine, mask=is_fine, other=0.0, cache_modifier=".cg")
            mass = mass * tl.exp2((above - row_max) * scale)
            chosen = tl.maximum(first_above(mass, u_tile, FINE), 0)
            own = chosen * DRAW_TILE + tl.arange(0, DRAW_TILE)
            y = load_logits(row_ptr, own, V, cutoff_ptr, b)
            y = tl.where(y < PLUS_INF, y, MINUS_INF)
            p = exponentials(y, tl.max(y, 0), scale)
            token = chosen * DRAW_TILE + tl.maximum(first_above(p, u_id, DRAW_TILE), 0)
        tl.store(output_ptr + b, token.to(tl.int64))
        tl.store(counters_ptr + b, 0)


def sample(inputs: SampleInputs, out: Tensor) -> None:
    """Fill `out` `[B]`; see `metasd_kernels.sample`."""
    logits = inputs.logits
    batch_size, vocab_size = logits.shape
    if batch_size == 0:
        return
    settings = launch.verify_settings(vocab_size)
    num_tiles = triton.cdiv(vocab_size, settings.tile)
    num_floats = batch_size * num_tiles * (2 + settings.tile // 1024)
    counters, partials = Scratch.of(None, None, logits.device).take(batch_size, num_floats)
    sample_kernel[(batch_size * num_tiles,)](
        logits,
        dense(inputs.temperature.rows),
        dense(inputs.cutoff),
        dense(inputs.seed.rows),
        dense(inputs.offset.rows),
        dense(inputs.position.rows),
        dense(inputs.uniform_samples),
        out,
        counters,
        partials,
        float(inputs.temperature.value),
        *halves(inputs.seed.value),
        *halves(inputs.offset.value),
        stride_of(inputs.offset),
        halves(inputs.position.value)[0],
        stride_of(inputs.position),
        vocab_size,
        logits.stride(0) if batch_size > 1 else vocab_size,
        TILES=triton.next_power_of_2(num_tiles),
        TILE=settings.tile,
        num_warps=settings.num_warps,
    )
