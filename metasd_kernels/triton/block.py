"""A request's block in device memory: where its rows lie, how long it is, its laws from what the tiles published."""

import triton
import triton.language as tl

from metasd_kernels.triton.device import MINUS_INF, PLUS_INF, cutoff_of, finite_or_zero

# What each tile of each row leaves in the scratch memory of its request: planes of [K + 1, S] floats ...
TARGET_MAX = tl.constexpr(0)  # largest kept logit
TARGET_SUM = tl.constexpr(1)  # of the exponentials relative to it
DRAFT_MAX = tl.constexpr(2)
DRAFT_SUM = tl.constexpr(3)
FLAGS = tl.constexpr(4)  # 1: unusable target logit, 2: unusable draft logit, 4: a wait timed out
FIRST_BEST = tl.constexpr(5)  # greedy rows: lowest id in the tile with the largest logit, counted from the tile's start
TOTAL_VARIATION = tl.constexpr(6)  # the tile's part of sum max(p - q, 0)
RESIDUAL = tl.constexpr(7)  # the tile's part of sum max(s p - q, 0)
NUM_PLANES = tl.constexpr(8)
# ... then two of [K + 1, 1024-id tiles]: target exponentials, and the residual.
NUM_FINE_PLANES = tl.constexpr(2)

NO_DRAFT = tl.constexpr(0)  # kinds of draft laws: point masses,
SAME_IDS = tl.constexpr(1)  # dense over the target's ids,
REDUCED = tl.constexpr(2)  # dense over fewer ids, found by the inverse map,
SPARSE = tl.constexpr(3)  # a list of ids for each row


@triton.jit
def locate(
    b,
    K,
    V_T,
    token_ptr,  # [B, K], packed [N]
    num_draft_ptr,  # [B] or None
    cumulative_ptr,  # [B + 1] or None
    ROWS: tl.constexpr,
):
    """Index of the request's first draft token, its asked length, where the block ends by its ids (-1: an inert row),
    and the draft ids `[ROWS]`, -1 beyond the length."""
    first = b.to(tl.int64) * K
    if cumulative_ptr is not None:
        first = tl.load(cumulative_ptr + b).to(tl.int64)
        asked = tl.load(cumulative_ptr + b + 1).to(tl.int64) - first
    elif num_draft_ptr is not None:
        asked = tl.load(num_draft_ptr + b).to(tl.int64)
    else:
        asked = K + first * 0
    length = tl.minimum(tl.maximum(asked, -1), K).to(tl.int32)
    k = tl.arange(0, ROWS)
    tokens = tl.load(token_ptr + first + k, mask=k < length, other=-1).to(tl.int64)
    ends_here = (tokens < 0) | (tokens >= V_T)
    limit = tl.minimum(tl.min(tl.where(ends_here, k, ROWS), 0), length)
    return first, length, limit, tokens


@triton.jit
def plane(request_ptr, index, K, num_tiles):
    """Start of one of the coarse planes."""
    return request_ptr + index * ((K + 1) * num_tiles)


@triton.jit
def fine_plane(request_ptr, index, K, num_tiles, SUB: tl.constexpr):
    """Start of one of the planes with a float for each 1024 ids."""
    return request_ptr + (NUM_PLANES + index * SUB) * ((K + 1) * num_tiles)


@triton.jit
def load_plane(request_ptr, index, rows, is_row, num_tiles, K, nothing, TILES: tl.constexpr):
    """`[N, TILES]` values of the given rows `[N]`, past the L1 cache: another processor may just have written them."""
    tile = tl.arange(0, TILES)
    where = rows[:, None] * num_tiles + tile[None, :]
    mask = is_row[:, None] & (tile[None, :] < num_tiles)
    return tl.load(plane(request_ptr, index, K, num_tiles) + where, mask=mask, other=nothing, cache_modifier=".cg")


@triton.jit
def row_laws(request_ptr, index, rows, is_row, num_tiles, K, scale, TILES: tl.constexpr):
    """Largest logit and sum of exponentials of whole rows `[N]`, from two neighbouring planes."""
    tile_max = load_plane(request_ptr, index, rows, is_row, num_tiles, K, MINUS_INF, TILES)
    tile_sum = load_plane(request_ptr, index + 1, rows, is_row, num_tiles, K, 0.0, TILES)
    largest = tl.max(tile_max, 1)
    factor = tl.exp2((tile_max - finite_or_zero(largest)[:, None]) * scale)
    return largest, tl.sum(tile_sum * factor, 1)


@triton.jit
def draft_logits_at(
    ids,  # [N] target ids
    rows,  # [N] positions
    mask,  # [N]
    first,
    draft_ptr,
    draft_base,
    draft_stride_k,
    draft_cutoff_ptr,
    map_ptr,
    V_D,
    DRAFT: tl.constexpr,
):
    """Kept draft logits of target ids, one in each row; -inf where there is none."""
    row_ptr = draft_ptr + draft_base + rows.to(tl.int64) * draft_stride_k
    if DRAFT == SPARSE:
        x = tl.where(mask, MINUS_INF, MINUS_INF)
        for j in range(V_D):
            listed = tl.load(map_ptr + (first + rows) * V_D + j, mask=mask, other=-1)
            is_hit = mask & (listed == ids)
            x = tl.where(is_hit, tl.load(row_ptr + j, mask=is_hit, other=MINUS_INF).to(tl.float32), x)
    else:
        if DRAFT == REDUCED:
            index = tl.load(map_ptr + ids, mask=mask, other=-1).to(tl.int64)
            is_there = mask & (index >= 0)
        else:
            index = ids
            is_there = mask & (ids < V_D)
        x = tl.load(row_ptr + index, mask=is_there, other=MINUS_INF).to(tl.float32)
    cutoff = cutoff_of(draft_cutoff_ptr, first + rows, mask)
    return tl.where((x < PLUS_INF) & (x >= cutoff), x, MINUS_INF)


@triton.jit
def log_ratios(
    tokens,  # [ROWS] draft ids
    num_rows,  # laws are known of the first so many rows
    num_drafts,  # and ratios wanted of the first so many drafts
    b,
    first,
    request_ptr,
    num_tiles,
    K,
    V_D,
    target_ptr,
    target_base,
    target_stride_k,
    draft_ptr,
    draft_base,
    draft_stride_k,
    target_cutoff_ptr,
    draft_cutoff_ptr,
    map_ptr,
    target_scale,
    draft_scale,
    is_target_sampled,
    is_draft_sampled,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    DRAFT: tl.constexpr,
):
    """Of each row: its target law (maximum, sum), its greedy id, its draft law, log2 p(x) and log2 p(x) / q(x).

    Differences of logits come first, so that equal laws give a ratio of exactly 0."""
    k = tl.arange(0, ROWS)
    is_row, is_draft = k < num_rows, k < num_drafts
    target_max, target_sum = row_laws(
        request_ptr, TARGET_MAX, k, is_row, num_tiles, K, target_scale, TILES
    )  # fmt: skip
    is_point = (target_max == MINUS_INF) | (is_target_sampled == 0)
    best = tl.zeros([ROWS], tl.int64)
    if is_target_sampled == 0:
        tile_max = load_plane(request_ptr, TARGET_MAX, k, is_row, num_tiles, K, MINUS_INF, TILES)
        inside = load_plane(request_ptr, FIRST_BEST, k, is_row, num_tiles, K, 0.0, TILES)
        id_there = (tl.arange(0, TILES) * TILE)[None, :] + inside.to(tl.int32)
        is_best = (tile_max == target_max[:, None]) & (tile_max > MINUS_INF)
        lowest = tl.min(tl.where(is_best, id_there, 2147483647), 1)
        best = tl.where(target_max == MINUS_INF, 0, lowest).to(tl.int64)

    x = tl.load(target_ptr + target_base + k.to(tl.int64) * target_stride_k + tokens, mask=is_draft, other=MINUS_INF)
    x = x.to(tl.float32)
    is_kept = (x < PLUS_INF) & (x >= cutoff_of(target_cutoff_ptr, first + b + k, is_draft))
    log_p = tl.where(is_kept, (x - target_max) * target_scale - tl.log2(target_sum), MINUS_INF)
    log_p = tl.where(is_point, tl.where(tokens == best, 0.0, MINUS_INF), log_p)

    log_q = tl.where(is_draft, 0.0, 0.0)
    draft_max, draft_sum = log_q, log_q + 1.0
    if DRAFT != NO_DRAFT:
        draft_max, draft_sum = row_laws(request_ptr, DRAFT_MAX, k, is_draft, num_tiles, K, draft_scale, TILES)
        y = draft_logits_at(tokens, k, is_draft, first, draft_ptr, draft_base, draft_stride_k, draft_cutoff_ptr,
                            map_ptr, V_D, DRAFT)  # fmt: skip
        log_sampled = tl.where(y == MINUS_INF, MINUS_INF, (y - draft_max) * draft_scale - tl.log2(draft_sum))
        log_q = tl.where(is_draft_sampled, log_sampled, log_q)
    ratio = tl.where(log_q == MINUS_INF, PLUS_INF, log_p - log_q)
    ratio = tl.where((log_p == MINUS_INF) | (is_draft == 0), MINUS_INF, ratio)
    return target_max, target_sum, is_point, best, draft_max, draft_sum, log_p, ratio


@triton.jit
def _then(shift, ceiling, next_shift, next_ceiling):
    """min(min(x + shift, ceiling) + next_shift, next_ceiling) as one such step."""
    return shift + next_shift, tl.minimum(ceiling + next_shift, next_ceiling)


@triton.jit
def running_weights(ratio):
    """s_1 .. s_ROWS of the block rule from log2 ratios: s_i = min(s_(i-1) p / q, 1), s_0 = 1."""
    # In logs, so that p == q keeps s exactly. Beyond 2^8192 either way nothing changes but inf - inf.
    step = tl.minimum(tl.where(ratio == MINUS_INF, -1e30, tl.maximum(ratio, -8192.0)), 8192.0)
    total, least = tl.associative_scan((step, tl.minimum(step, 0.0) * 0.0), 0, _then)
    return tl.exp2(tl.minimum(total, least))


@triton.jit
def shifted(values, by: tl.constexpr, filler, N: tl.constexpr):
    """values[i + by], `filler` where that is outside."""
    index = tl.arange(0, N)
    source = index + by
    is_source = index[None, :] == source[:, None]
    moved = tl.sum(tl.where(is_source, values[None, :], 0.0), 1)
    return tl.where((source >= 0) & (source < N), moved, filler)


@triton.jit
def at(values, index, N: tl.constexpr):
    """values[index] as a number."""
    return tl.sum(tl.where(tl.arange(0, N) == index, values, tl.zeros([N], values.dtype)), 0)
