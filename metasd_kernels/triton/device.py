"""Device functions that several kernels share: coins, temperatures, exponentials, the draw."""

import triton
import triton.language as tl

DRAW_TILE = tl.constexpr(1024)  # ids in one tile of the final draw: metasd_kernels.outputs.TILE
MINUS_INF = tl.constexpr(-float("inf"))
PLUS_INF = tl.constexpr(float("inf"))
IS_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
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
def load_logits(row_ptr, ids, V, cutoff_ptr, index):
    """fp32 logits of a row, -inf outside the vocabulary and below the cutoff; NaN and +inf stay."""
    x = tl.load(row_ptr + ids, mask=ids < V, other=MINUS_INF).to(tl.float32)
    if cutoff_ptr is not None:
        x = tl.where(x < cutoff_of(cutoff_ptr, index, index >= 0), MINUS_INF, x)
    return x


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
    words = tl.philox(seed, low, high, shape, zero + domain)
    return _uniform(words[0]), _uniform(words[1])


@triton.jit
def _uniform(word):
    return ((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23


@triton.jit
def _larger_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def usable(x):
    """A tile without its unusable logits, its largest logit, and whether a NaN or +inf was there (0 or 1).

    A clean tile pays for no test: its maximum is taken such that a NaN shows in it.

    Args:
        x: `[N, 1024]` fp32, -inf where nothing is kept.
    """
    if IS_INTERPRETED:  # the interpreter is slow where a reduction is not one of its own
        largest = tl.where(tl.max(tl.max(tl.where(x == x, 0, 1), 1), 0) > 0, PLUS_INF, tl.max(tl.max(x, 1), 0))
    else:
        largest = tl.reduce(tl.reduce(x, 1, _larger_or_nan), 0, _larger_or_nan)
    is_bad = tl.where(largest < PLUS_INF, 0, 1)
    if is_bad > 0:
        x = tl.where(x < PLUS_INF, x, MINUS_INF)
        largest = tl.max(tl.max(x, 1), 0)
    return x, largest, is_bad


@triton.jit
def exponentials(x, largest, scale):
    """exp2((x - largest) * scale); 0 everywhere where nothing is kept."""
    return tl.exp2((x - finite_or_zero(largest)) * scale)


@triton.jit
def first_best(x, largest, inside, N: tl.constexpr):
    """The lowest place `inside` a tile of N ids that has the largest logit."""
    return tl.min(tl.min(tl.where(x == largest, inside, N), 1), 0)


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
