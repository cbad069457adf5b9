"""KL-UCB (Garivier and Cappé, arXiv 1102.2490): the tightest bound for rewards in [0, 1]."""

import math
from collections.abc import Sequence
from typing import Any

from metasd.bandits.base import Setting
from metasd.bandits.index import Candidate, IndexPolicy
from metasd.core import refuse


class KLUCB(IndexPolicy):
    """max {q: n_i kl(mean_i, q) <= scale ln t}, with the Bernoulli divergence of rewards as shares of the largest.

    Args:
        setting: what it plays for.
        scale: 1 is the theory's, for Bernoulli rewards; block rewards vary less.
        options: of `Policy`.
    """

    def __init__(self, setting: Setting, scale: float = 0.2, **options: Any) -> None:
        if not scale >= 0:
            raise refuse("scale", "a number of at least 0", scale)
        self._scale = float(scale)
        super().__init__(setting, **options)

    def optimism(self, candidates: Sequence[Candidate], rounds: float) -> Sequence[float]:
        level = self._scale * math.log(max(rounds, 1.0))
        most = self.setting.reward.most
        found = []
        for _, length, mean, num_rounds in candidates:
            largest = most(length)
            share = min(1.0, max(0.0, mean / largest))
            found.append(largest * (upper_bound(share, level / num_rounds) - share))
        return found


def divergence(p: float, q: float) -> float:
    """kl(p, q) of Bernoulli laws, q inside (0, 1)."""
    near = p * math.log(p / q) if p > 0 else 0.0
    return near + ((1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0)


def upper_bound(mean: float, distance: float) -> float:
    """The largest q with kl(mean, q) <= distance, up to 1e-4, by Newton's method from above: kl is convex in q."""
    if distance <= 0 or mean >= 1:
        return mean
    if mean <= 0:
        return 1 - math.exp(-distance)
    entropy = -mean * math.log(mean) - (1 - mean) * math.log(1 - mean)
    # Two bounds from above: Pinsker's, and kl >= -entropy - (1 - mean) ln(1 - q).
    q = min(mean + math.sqrt(distance / 2), 1 - math.exp(-(distance + entropy) / (1 - mean)))
    for _ in range(30):
        if q >= 1 - 1e-12:
            return 1.0
        excess = -entropy - mean * math.log(q) - (1 - mean) * math.log(1 - q) - distance
        step = excess * q * (1 - q) / (q - mean)
        q -= step
        if step < 1e-5:
            break
    return max(q, mean)
