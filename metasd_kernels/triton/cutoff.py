"""`logit_cutoff` without a sort: a search for the pivot, three at a time, over the bits of the logits.

The answer of top-k and of top-p is the smallest logit v such that the weight of what lies strictly above v is below a
limit: their number, or their mass. One program searches a row; after the first pass the row comes from the L2 cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from metasd_kernels import launch
from metasd_kernels.inputs import CutoffInputs
from metasd_kernels.triton.device import MINUS_INF, PLUS_INF, is_sampled, scale_of, value_of
from metasd_kernels.triton.host import dense

# Bits of an fp32 number that are zero where it was converted from a shorter dtype.
_UNUSED_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}


@triton.jit
def load_usable(row_ptr, ids, V):
    """fp32 logits; NaN and +inf as -inf."""
    x = tl.load(row_ptr + ids, mask=ids < V, other=MINUS_INF).to(tl.float32)
    return tl.where(x < PLUS_INF, x, MINUS_INF)


@triton.jit
def to_key(x, SHIFT: tl.constexpr):
    """Integers in the order of the floats."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return ordered.to(tl.int64) >> SHIFT


@triton.jit
def from_key(key, SHIFT: tl.constexpr):
    """The float of a key."""
    ordered = (key << SHIFT).to(tl.int32)
    low: tl.constexpr = (1 << SHIFT) - 1  # the flip of a negative number sets the unused bits
    bits = tl.where(ordered < 0, (ordered | low) ^ 0x7FFFFFFF, ordered)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def smallest_within(
    row_ptr, V, lowest, largest, floor, limit, scale, IS_MASS: tl.constexpr, SHIFT: tl.constexpr, TILE: tl.constexpr
):
    """The smallest logit in [lowest, largest], none below `floor` counted, with weight(> it) < limit."""
    low, high = to_key(lowest, SHIFT), to_key(largest, SHIFT)
    while low < high:
        width = high - low
        first, second, third = low + width // 4, low + width // 2, low + (width * 3) // 4
        above_first, above_second, above_third = 0.0, 0.0, 0.0
        for start in range(0, V, TILE):
            x = load_usable(row_ptr, start + tl.arange(0, TILE), V)
            key = to_key(x, SHIFT)
            weight = tl.exp2((x - largest) * scale) if IS_MASS else tl.where(x > MINUS_INF, 1.0, 0.0)
            weight = tl.where(x >= floor, weight, 0.0)
            above_first += tl.sum(tl.where(key > first, weight, 0.0), 0)
            above_second += tl.sum(tl.where(key > second, weight, 0.0), 0)
            above_third += tl.sum(tl.where(key > third, weight, 0.0), 0)
        if above_first < limit:
            high = first
        elif above_second < limit:
            low, high = first + 1, second
        elif above_third < limit:
            low, high = second + 1, third
        else:
            low = third + 1
    return from_key(high, SHIFT)


@triton.jit(do_not_specialize=["temperature", "top_k", "top_p", "min_p"])
def cutoff_kernel(
    logits_ptr,  # [R, V]
    temperature_ptr,  # [R] or None
    top_k_ptr,  # [R] or None
    top_p_ptr,  # [R] or None
    min_p_ptr,  # [R] or None
    output_ptr,  # [R] fp32
    temperature,
    top_k,
    top_p,
    min_p,
    V,
    stride,
    SHIFT: tl.constexpr,  # bits of an fp32 logit that are always 0
    TILE: tl.constexpr,
):
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * stride
    own_temperature = value_of(temperature_ptr, temperature, row)
    scale, is_drawn = scale_of(own_temperature), is_sampled(own_temperature)
    count = top_k if top_k_ptr is None else tl.minimum(tl.load(top_k_ptr + row).to(tl.int64), 2147483647).to(tl.int32)
    own_top_p, own_min_p = value_of(top_p_ptr, top_p, row), value_of(min_p_ptr, min_p, row)

    largest, lowest = MINUS_INF, PLUS_INF
    for start in range(0, V, TILE):
        x = load_usable(row_ptr, start + tl.arange(0, TILE), V)
        largest = tl.maximum(largest, tl.max(x, 0))
        lowest = tl.minimum(lowest, tl.min(tl.where(x > MINUS_INF, x, PLUS_INF), 0))

    cutoff = lowest
    if (is_drawn == 0) | (largest == MINUS_INF):
        cutoff = largest
    else:
        if (count >= 1) & (count < V):
            cutoff = smallest_within(
                row_ptr, V, lowest, largest, MINUS_INF, count.to(tl.float32), scale, False, SHIFT, TILE
            )
        if own_top_p < 1:
            total = 0.0
            for start in range(0, V, TILE):
                x = load_usable(row_ptr, start + tl.arange(0, TILE), V)
                total += tl.sum(tl.where(x >= cutoff, tl.exp2((x - largest) * scale), 0.0), 0)
            cutoff = smallest_within(row_ptr, V, cutoff, largest, cutoff, own_top_p * total, scale, True, SHIFT, TILE)
        if own_min_p > 0:
            least = largest + tl.log2(own_min_p) / scale
            smallest = largest
            for start in range(0, V, TILE):
                x = load_usable(row_ptr, start + tl.arange(0, TILE), V)
                smallest = tl.minimum(smallest, tl.min(tl.where((x >= least) & (x >= cutoff), x, PLUS_INF), 0))
            cutoff = smallest
    tl.store(output_ptr + row, cutoff)


def logit_cutoff(inputs: CutoffInputs, out: Tensor) -> None:
    """Fill `out` `[R]`; see `metasd_kernels.logit_cutoff`."""
    logits = inputs.logits
    num_rows, vocab_size = logits.shape
    if num_rows == 0:
        return
    top_k = inputs.top_k.value
    cutoff_kernel[(num_rows,)](
        logits,
        dense(inputs.temperature.rows),
        dense(inputs.top_k.rows),
        dense(inputs.top_p.rows),
        dense(inputs.min_p.rows),
        out,
        float(inputs.temperature.value),
        int(top_k) if 1 <= top_k < vocab_size else 0,
        float(inputs.top_p.value),
        float(inputs.min_p.value),
        vocab_size,
        logits.stride(0) if num_rows > 1 else vocab_size,
        SHIFT=_UNUSED_BITS[logits.dtype],
        TILE=launch.CUTOFF_TILE,
        num_warps=launch.CUTOFF_WARPS,
    )
