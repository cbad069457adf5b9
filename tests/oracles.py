"""Straight-line oracles of the kernels' contract: numpy float64, one row at a time, no package code.

They follow the written law, not an implementation of it. Where rounding to fp32 may decide otherwise than float64 does,
the result says so (`is_tie`): within LOG_BAND of an accept test in the log ratio, or within MASS_BAND of the mass that
a comparison is made of.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

TILE = 1024
LOG_BAND = 1e-5
MASS_BAND = 1e-6
SMALLEST_TEMPERATURE = 2.0**-126
BAD_LOGITS, ZERO_RESIDUAL, BAD_TOKEN = 1, 2, 4


# Coins


def philox4x32(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 in plain integers, after the paper (Salmon et al., SC 2011, section 3.3)."""
    mask = 0xFFFFFFFF
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & mask, (first >> 32) ^ c3 ^ k1, first & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3


def coin(seed: int, offset: int, position: int, domain: int, word: int) -> float:
    """One coin by its address; seed and offset may be negative int64."""
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    counter = (offset & 0xFFFFFFFF, (offset >> 32) & 0xFFFFFFFF, position, domain)
    return ((philox4x32(key, counter)[word] >> 9) + 0.5) * 2.0**-23


def verify_coins(seed: int, offset: int, num_draft_tokens: int) -> Vector:
    accept = [coin(seed, offset, k, 0, 0) for k in range(num_draft_tokens)]
    return np.array([*accept, coin(seed, offset, 0, 1, 0), coin(seed, offset, 0, 1, 1)])


def draft_coins(seed: int, offset: int, position: int) -> Vector:
    return np.array([coin(seed, offset, position, 2, 0), coin(seed, offset, position, 2, 1)])


# Laws and draws


def law(logits: Vector, temperature: float, cutoff: float = -math.inf) -> tuple[Vector, bool]:
    """Log-probabilities, and whether the row is unfit: a NaN, a +inf, or nothing left."""
    x = np.asarray(logits, dtype=np.float64)
    is_unusable = np.isnan(x) | (x == math.inf)
    x = np.where(is_unusable | ~(x >= cutoff), -math.inf, x)
    is_empty = bool((x == -math.inf).all())
    is_bad = bool(is_unusable.any()) or is_empty
    if is_empty or not SMALLEST_TEMPERATURE <= temperature < math.inf:
        return point_mass(0 if is_empty else int(np.argmax(x)), len(x)), is_bad
    scaled = (x - x.max()) / temperature
    return scaled - math.log(np.exp(scaled).sum()), is_bad


def point_mass(token: int, vocab_size: int) -> Vector:
    log_prob = np.full(vocab_size, -math.inf)
    log_prob[token] = 0.0
    return log_prob


def draw(weights: Vector, noise: Vector, coins: Vector) -> tuple[int, bool]:
    """Two-level inverse CDF and whether it is a tie; `noise` is what each weight was computed from."""
    starts = range(0, len(weights), TILE)
    tile, is_tile_tie = _first_above(
        np.array([weights[i : i + TILE].sum() for i in starts]), MASS_BAND * noise.sum(), coins[0]
    )
    inside = slice(tile * TILE, (tile + 1) * TILE)
    token, is_token_tie = _first_above(weights[inside], MASS_BAND * noise[inside].sum(), coins[1])
    return tile * TILE + token, is_tile_tie or is_token_tie


def _first_above(mass: Vector, band: float, u: float) -> tuple[int, bool]:
    cumulative = np.cumsum(mass)
    threshold = u * cumulative[-1]
    chosen = int(np.argmax(cumulative > threshold))
    borders = cumulative[np.flatnonzero(mass)[:-1]]  # the last one is the total, which is never crossed
    return chosen, bool((np.abs(borders - threshold) <= band).any())


# The two rules, for laws that are given


def accept_probabilities(p: list[Vector], q: list[Vector], ids: list[int]) -> list[float]:
    """a_k = min(1, p(x_k) / q(x_k)); p(x) = 0 is never accepted, q(x) = 0 < p(x) is. Laws come as logs."""
    return [math.exp(min(log_ratio(p[k][x], q[k][x]), 0.0)) for k, x in enumerate(ids)]


def log_ratio(log_p: float, log_q: float) -> float:
    if log_p == -math.inf:
        return -math.inf
    return math.inf if log_q == -math.inf else float(log_p - log_q)


def running_weights(p: list[Vector], q: list[Vector], ids: list[int]) -> list[float]:
    """s_0 .. s_n of the block rule."""
    s = [1.0]
    for k, x in enumerate(ids):
        ratio = log_ratio(p[k][x], q[k][x])
        s.append(0.0 if s[-1] == 0 or ratio == -math.inf else min(math.exp(min(math.log(s[-1]) + ratio, 0.0)), 1.0))
    return s


def residual(p: Vector, q: Vector, weight: float = 1.0) -> Vector:
    return np.maximum(weight * np.exp(p) - np.exp(q), 0.0)


def block_thresholds(p: list[Vector], q: list[Vector], ids: list[int]) -> list[tuple[float, float, float]]:
    """h_1 .. h_n of the block rule, each with the lowest and the highest value that rounding may give it."""
    s, h = running_weights(p, q, ids), []
    for i in range(1, len(ids)):
        mass = float(residual(p[i], q[i], s[i]).sum())
        low = _share(max(mass - MASS_BAND, 0.0), s[i] * math.exp(-LOG_BAND))
        high = _share(mass + MASS_BAND, min(s[i] * math.exp(LOG_BAND), 1.0))
        h.append((_share(mass, s[i]), low, high))
    if ids:
        h.append((s[-1], s[-1] * math.exp(-LOG_BAND), s[-1] * math.exp(LOG_BAND)))
    return h


def _share(mass: float, s: float) -> float:
    return mass / (mass + 1 - s) if mass + 1 - s > 0 else 0.0


def count_law(p: list[Vector], q: list[Vector], ids: list[int], rule: str) -> list[float]:
    """P(num_accepted = n | block) for n = 0 .. len(ids), over the accept coins."""
    if rule == "token":
        a = [*accept_probabilities(p, q, ids), 0.0]
        return [math.prod(a[:n]) * (1 - a[n]) for n in range(len(ids) + 1)]
    h = [1.0, *(value for value, _, _ in block_thresholds(p, q, ids))]
    return [h[n] * math.prod(1 - later for later in h[n + 1 :]) for n in range(len(h))]


def final_weights(p: list[Vector], q: list[Vector], ids: list[int], rule: str, num_accepted: int) -> Vector:
    """The law, up to a factor, of the token after `num_accepted` drafts."""
    if num_accepted == len(ids):
        return np.exp(p[num_accepted])
    weight = running_weights(p, q, ids)[num_accepted] if rule == "block" else 1.0
    return residual(p[num_accepted], q[num_accepted], weight)


# One row of `verify`


@dataclass(frozen=True)
class Request:
    """One row, padded form, already rounded to the dtypes that the op gets."""

    target_logits: Vector  # [K+1, V_t]
    draft_token_ids: list[int]
    draft_logits: Vector | None  # [K, V_d or S]
    coins: Vector  # [K+2]
    rule: str = "token"
    temperature: float = 1.0
    draft_temperature: float = 1.0
    target_cutoff: Vector | None = None
    draft_cutoff: Vector | None = None
    num_draft_tokens: int | None = None
    draft_to_target: NDArray[np.int64] | None = None  # [V_d] or [K, S]
    reward_length: float | None = None


@dataclass
class Verdict:
    output_token_ids: list[int]
    num_accepted_tokens: int = 0
    tv_distance: list[float] = field(default_factory=list)
    accept_probability: list[float] = field(default_factory=list)
    expected_num_accepted: float = 0.0
    block_divergence: float = 0.0
    status: int = 0
    is_tie: bool = False


def draft_law(request: Request, k: int) -> tuple[Vector, bool]:
    """q at position k over the target's ids: mass on ids that the target lacks is left out, not shared out."""
    vocab_size, temperature = request.target_logits.shape[1], request.draft_temperature
    if request.draft_logits is None or not SMALLEST_TEMPERATURE <= temperature < math.inf:
        return point_mass(request.draft_token_ids[k], vocab_size), False
    logits = np.array(request.draft_logits[k], dtype=np.float64)
    where = np.arange(len(logits))
    if request.draft_to_target is not None:
        where = request.draft_to_target if request.draft_to_target.ndim == 1 else request.draft_to_target[k]
        logits[where < 0] = -math.inf
    own, is_bad = law(logits, temperature, -math.inf if request.draft_cutoff is None else request.draft_cutoff[k])
    log_prob = np.full(vocab_size, -math.inf)
    for slot, token in enumerate(where):
        if 0 <= token < vocab_size:
            log_prob[token] = own[slot]
    return log_prob, is_bad


def verify_row(request: Request) -> Verdict:
    ids, width, vocab_size = request.draft_token_ids, len(request.draft_token_ids), request.target_logits.shape[1]
    limit = width if request.num_draft_tokens is None else min(request.num_draft_tokens, width)
    verdict = Verdict([-1] * (width + 1), 0, [1.0] * width, [0.0] * width)
    if limit < 0:
        return verdict

    q: list[Vector] = []
    while len(q) < limit and ids[len(q)] >= 0:
        if ids[len(q)] >= vocab_size:
            verdict.status |= BAD_TOKEN
            break
        log_q, is_bad = draft_law(request, len(q))
        if is_bad:
            verdict.status |= BAD_LOGITS
            break
        q.append(log_q)
    end = len(q)
    ids = ids[:end]
    p: list[Vector] = []
    for k in range(end + 1):
        cutoff = -math.inf if request.target_cutoff is None else request.target_cutoff[k]
        log_p, is_bad = law(request.target_logits[k], request.temperature, cutoff)
        verdict.status |= BAD_LOGITS * is_bad
        p.append(log_p)

    a = accept_probabilities(p, q, ids)
    verdict.accept_probability[:end] = a
    verdict.tv_distance[:end] = [float(residual(p[k], q[k]).sum()) for k in range(end)]
    length = width if request.reward_length is None else request.reward_length
    overlap = [1 - tv for tv in verdict.tv_distance]
    verdict.block_divergence = sum(overlap) / length if length > 0 else 0.0
    if request.rule == "token":
        verdict.expected_num_accepted = sum(math.prod(a[:k]) * overlap[k] for k in range(end))
    else:
        verdict.expected_num_accepted = sum(running_weights(p, q, ids)[1:])

    n, verdict.is_tie = _count(request, p, q, ids)
    weights = final_weights(p, q, ids, request.rule, n)
    noise = np.exp(p[n]) + (np.exp(q[n]) if n < end else 0.0)
    if n < end and weights.sum() <= MASS_BAND:
        verdict.is_tie = True
    if weights.sum() <= 0:
        verdict.status |= ZERO_RESIDUAL
        weights = np.exp(p[n])
    token, is_tie = draw(weights, noise, request.coins[width:])
    verdict.is_tie |= is_tie
    verdict.num_accepted_tokens = n
    verdict.output_token_ids[: n + 1] = [*ids[:n], token]
    return verdict


def _count(request: Request, p: list[Vector], q: list[Vector], ids: list[int]) -> tuple[int, bool]:
    is_tie = False
    if request.rule == "block":
        thresholds = block_thresholds(p, q, ids)
        for i in range(len(ids), 0, -1):
            h, low, high = thresholds[i - 1]
            is_tie |= low <= request.coins[i - 1] <= high and low < high
            if request.coins[i - 1] < h:
                return i, is_tie
        return 0, is_tie
    for k, x in enumerate(ids):
        ratio, u = log_ratio(p[k][x], q[k][x]), request.coins[k]
        log_u = math.log(u) if u > 0 else -math.inf
        is_tie |= math.isfinite(ratio) and abs(ratio - log_u) <= LOG_BAND
        if not ratio > log_u:
            return k, is_tie
    return len(ids), is_tie
