"""A tile of draft logits over target ids, whatever form the draft laws have."""

import triton
import triton.language as tl

from metasd_kernels.triton.block import REDUCED, SPARSE
from metasd_kernels.triton.device import MINUS_INF, PLUS_INF, cutoff_of, finite_or_zero, load_logits


@triton.jit
def draft_tile(
    ids,  # target ids of the tile, any shape
    lowest,  # the first of them
    WIDTH: tl.constexpr,  # and their number
    k,  # the row
    first,  # index of the request's first draft token
    draft_ptr,
    draft_base,
    draft_stride_k,
    draft_cutoff_ptr,
    map_ptr,
    V_T,
    V_D,
    DRAFT: tl.constexpr,
):
    """Kept raw logits as fp32, -inf where there is none; NaN and +inf stay."""
    row_ptr = draft_ptr + draft_base + k.to(tl.int64) * draft_stride_k
    if DRAFT == SPARSE:
        y = tl.where(ids < 0, 0.0, MINUS_INF)
        for j in range(V_D):
            listed = tl.load(map_ptr + (first + k) * V_D + j)
            if (listed >= lowest) & (listed < lowest + WIDTH):
                y = tl.where(ids == listed, tl.load(row_ptr + j).to(tl.float32), y)
        if draft_cutoff_ptr is not None:
            y = tl.where(y < cutoff_of(draft_cutoff_ptr, first + k, k >= 0), MINUS_INF, y)
    elif DRAFT == REDUCED:
        index = tl.load(map_ptr + ids, mask=ids < V_T, other=-1).to(tl.int64)
        y = load_logits(row_ptr, tl.where(index < 0, V_D, index), V_D, draft_cutoff_ptr, first + k)
    else:
        y = load_logits(row_ptr, ids, V_D, draft_cutoff_ptr, first + k)
    return y


@triton.jit
def list_law(
    k,
    first,
    draft_ptr,
    draft_base,
    draft_stride_k,
    draft_cutoff_ptr,
    map_ptr,
    V_D,
    scale,
    LIST: tl.constexpr,
):
    """Largest logit and sum of exponentials of a sparse row, and whether it has a NaN or +inf (0 or 1).

    Listed ids that the target lacks hold mass; a slot with a negative id is empty."""
    j = tl.arange(0, LIST)
    listed = tl.load(map_ptr + (first + k) * V_D + j, mask=j < V_D, other=-1)
    y = tl.load(draft_ptr + draft_base + k.to(tl.int64) * draft_stride_k + j, mask=listed >= 0, other=MINUS_INF)
    y = y.to(tl.float32)
    is_usable = y < PLUS_INF
    is_bad = tl.max(tl.where(is_usable, 0, 1), 0)
    y = tl.where(is_usable & (y >= cutoff_of(draft_cutoff_ptr, first + k, k >= 0)), y, MINUS_INF)
    largest = tl.max(y, 0)
    return largest, tl.sum(tl.exp2((y - finite_or_zero(largest)) * scale), 0), is_bad
