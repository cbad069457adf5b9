"""From logits to probability laws, and the draw from a law. Both sides of a verification use these same functions."""

from typing import NamedTuple

import torch
from torch import Tensor

from metasd_kernels.inputs import SMALLEST_TEMPERATURE, PerRow
from metasd_kernels.outputs import TILE


class Law(NamedTuple):
    """Laws over the last dimension, and which of the rows were not fit to be one."""

    log_prob: Tensor  # [..., V]
    is_bad: Tensor  # [...] bool: NaN or +inf seen, or nothing left to draw from


def compute_dtype(logits: Tensor) -> torch.dtype:
    """float64 for float64 logits, else float32."""
    return torch.promote_types(logits.dtype, torch.float32)


def is_greedy(temperature: Tensor) -> Tensor:
    """Which temperatures mean the point mass at the largest logit: 0, and what is no temperature."""
    return ~((temperature >= SMALLEST_TEMPERATURE) & (temperature < torch.inf))


def is_no_temperature(temperature: Tensor) -> Tensor:
    """Negative, NaN or infinite: counts as 0 and sets a bit."""
    return ~((temperature >= 0) & (temperature < torch.inf))


def law(logits: Tensor, temperature: PerRow, cutoff: Tensor | None) -> Law:
    """The processed law of each row: softmax(logits / temperature) over the logits at or above the cutoff.

    NaN and +inf count as -inf and mark the row as bad. A row without support is bad, and its law is the point mass at
    id 0. A greedy temperature gives the point mass at the largest logit, at the lowest id among ties; one that is no
    temperature marks the row as bad as well.

    Args:
        logits: `[B, ..., V]`.
        temperature: one number for each of the B requests.
        cutoff: `[B, ...]`, the smallest kept raw logit, or None.
    """
    x = logits.to(compute_dtype(logits))
    is_unusable = x.isnan() | (x == torch.inf)
    is_bad = is_unusable.any(-1)
    kept = ~is_unusable if cutoff is None else ~is_unusable & (x >= cutoff.to(x.dtype).unsqueeze(-1))
    x = x.masked_fill(~kept, -torch.inf)
    is_empty = (x == -torch.inf).all(-1)
    is_bad = is_bad | is_empty
    x[..., 0].masked_fill_(is_empty, 0.0)

    per_row = temperature.tensor(x.shape[0], x.dtype, x.device).reshape(-1, *[1] * (x.dim() - 1))
    if temperature.always(0):
        return Law(_point_mass(x), is_bad)
    takes_best = is_greedy(per_row)
    scaled = (x - x.amax(-1, keepdim=True)) / per_row.masked_fill(takes_best, 1.0)
    sampled = scaled - scaled.logsumexp(-1, keepdim=True)
    if temperature.never(0):
        return Law(sampled, is_bad)
    is_bad = is_bad | is_no_temperature(per_row).squeeze(-1)
    return Law(torch.where(takes_best, _point_mass(x), sampled), is_bad)


def _point_mass(x: Tensor) -> Tensor:
    best = x.argmax(-1, keepdim=True)  # torch gives the first of equal maxima
    return torch.full_like(x, -torch.inf).scatter_(-1, best, 0.0)


def in_target_vocabulary(log_prob: Tensor, draft_to_target: Tensor | None, vocab_size: int) -> Tensor:
    """A draft law over target ids: `[B, K, V_d]` to `[B, K, V_t]`.

    The law keeps its normalisation: mass on ids that the target lacks is lost to the target, not shared out.

    Args:
        log_prob: `[B, K, V_d]`, or `[B, K, S]` for a sparse law.
        draft_to_target: None (same ids), `[V_d]` or `[B, K, S]` target ids; ids outside the target's range are dropped.
        vocab_size: V_t.
    """
    if draft_to_target is None:
        width = log_prob.shape[-1]
        if width >= vocab_size:
            return log_prob[..., :vocab_size]
        return torch.nn.functional.pad(log_prob, (0, vocab_size - width), value=-torch.inf)
    ids = draft_to_target.long().expand(log_prob.shape)
    is_outside = (ids < 0) | (ids >= vocab_size)
    full = log_prob.new_full(
        (*log_prob.shape[:-1], vocab_size + 1), -torch.inf
    )  # the last column takes the dropped ids
    return full.scatter_(-1, ids.masked_fill(is_outside, vocab_size), log_prob)[..., :vocab_size]


def draw(weights: Tensor, coins: Tensor) -> Tensor:
    """One id for each row by inverse CDF in two levels, the same on every backend.

    The first tile of `TILE` ids whose cumulative mass exceeds u * total, then the first id in it whose cumulative mass
    exceeds u' * tile mass. An id without mass is never drawn; where rounding leaves nothing, the last id with mass is.

    Args:
        weights: `[B, V]`, not negative, not necessarily normalised, some mass in every row.
        coins: `[B, 2]` in [0, 1).

    Returns:
        int64 `[B]`.
    """
    batch_size, vocab_size = weights.shape
    width = min(TILE, vocab_size)  # one small tile needs no padding
    num_tiles = -(-vocab_size // width)
    tiles = torch.nn.functional.pad(weights, (0, num_tiles * width - vocab_size)).view(batch_size, num_tiles, width)
    u = coins.to(weights.dtype)
    tile = _first_above(tiles.sum(-1), u[:, 0])
    within = _first_above(tiles[torch.arange(batch_size, device=weights.device), tile], u[:, 1])
    return tile * width + within


def _first_above(mass: Tensor, u: Tensor) -> Tensor:
    cumulative = mass.cumsum(-1)
    has_mass = mass > 0
    is_above = (cumulative > (u * cumulative[:, -1]).unsqueeze(-1)) & has_mass
    last_with_mass = mass.shape[-1] - 1 - has_mass.flip(-1).int().argmax(-1)
    return torch.where(is_above.any(-1), is_above.int().argmax(-1), last_with_mass)
