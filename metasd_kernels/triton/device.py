"""Device functions that several kernels share: coins, temperatures, exponentials, the draw."""

import triton
import triton.language as tl

DRAW_TILE = tl.constexpr(1024)  # ids in one tile of the final draw: metasd_kernels.outputs.TILE
MINUS_INF = tl.constexpr(-float("inf"))
PLUS_INF = tl.constexpr(float("inf"))
SMALLEST_TEMPERATURE = tl.constexpr(1.1754943508222875e-38)  # metasd_kernels.inputs.SMALLEST_TEMPERATURE


@triton.jit
def is_sampled(temperature):
    """Whether a temperature is one: what is 0, negative, NaN or infinite gives the point mass at the largest logit."""
    # By way of an integer: the interpreter cannot combine a comparison of float scalars with vectors of booleans.
    return tl.where((temperature >= SMALLEST_TEMPERATURE) & (temperature < PLUS_INF), 1, 0) > 0


@triton.jit
def is_no_temperature(temperature):
    return tl.where((temperature >= 0) & (temperature < PLUS_INF), 0, 1) > 0


@triton.jit
def scale_of(temperature):
    """log2(e) / temperature, bounded so that neither 0 * inf nor inf * 0 can arise; finite for greedy rows, too."""
    safe = tl.where(is_sampled(temperature), temperature, 1.0)
    return tl.minimum(tl.maximum(1.4426950408889634 / safe, 1e-30), 1e30)


@triton.jit
def value_of(rows_ptr, value, b):
    """A number that is the same for all requests, or one of `[B]`, as fp32."""
    if rows_ptr is None:
        return value
    else:
        return tl.load(rows_ptr + b).to(tl.float32)


@triton.jit
def cutoff_of(cutoff_ptr, index, mask):
    """Smallest kept logits. Nothing is at or above a NaN, so it becomes +inf."""
    if cutoff_ptr is None:
        return tl.where(mask, MINUS_INF, MINUS_INF)
    else:
        cutoff = tl.load(cutoff_ptr + index, mask=mask, other=MINUS_INF).to(tl.float32)
        return tl.where(cutoff == cutoff, cutoff, PLUS_INF)


@triton.jit
def from_halves(low, high):
    """An int64 from its two halves, which travel as int32 whatever their value: one compiled variant for all."""
    return (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def coins(seed, offset, position, domain: tl.constexpr):
    """Two coins in (0, 1) for each position, addressed by (seed, nonce, position, domain): metasd_kernels.rng."""
    shape = position.to(tl.uint32)
    zero = shape * 0
    low = zero + (offset & 0xFFFFFFFF).to(tl.uint32)
    high = zero + ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, low, high, shape, zero + domain)
    return _uniform(first), _uniform(second)


@triton.jit
def _uniform(word):
    return ((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23


@triton.jit
def exponentials(x, scale):
    """exp2((x - m) * scale) over tiles of 1024, m the largest usable x.

    A clean tile pays for no test: where something is unusable (NaN, +inf) or nothing is left, the sum is NaN.

    Args:
        x: `[N, 1024]` fp32, -inf where nothing is kept.

    Returns:
        x (unusable ones as -inf), the exponentials, m, their sums `[N]`, and whether something was unusable (0 or 1).
    """
    largest = tl.max(tl.max(x, 1), 0)
    e = tl.exp2((x - largest) * scale)
    sums = tl.sum(e, 1)
    total = tl.sum(sums, 0)
    is_bad = tl.full([], 0, tl.int32)
    if total != total:
        is_usable = x < PLUS_INF
        is_bad = tl.max(tl.max(tl.where(is_usable, 0, 1), 1), 0)
        x = tl.where(is_usable, x, MINUS_INF)
        largest = tl.max(tl.max(x, 1), 0)
        e = tl.exp2((x - finite_or_zero(largest)) * scale)
        sums = tl.sum(e, 1)
    return x, e, largest, sums, is_bad


@triton.jit
def finite_or_zero(largest):
    return tl.where(largest == MINUS_INF, 0.0, largest)


@triton.jit
def first_above(mass, u, N: tl.constexpr):
    """First index whose cumulative mass exceeds u * total, among those with mass; the last with mass; -1 if none has.

    Args:
        mass: `[N]`, not negative.
    """
    index = tl.arange(0, N)
    cumulative = tl.cumsum(mass, 0)
    has_mass = mass > 0
    is_above = (cumulative > u * tl.max(cumulative, 0)) & has_mass
    first = tl.min(tl.where(is_above, index, N), 0)
    last = tl.max(tl.where(has_mass, index, -1), 0)
    return tl.where(first < N, first, last)
