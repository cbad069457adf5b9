"""UCBSpec of BanditSpec (Hou et al., arXiv 2505.15141): UCB on accepted tokens with an anytime radius."""

import math
from collections.abc import Sequence
from typing import Any

from metasd.bandits.base import Setting
from metasd.bandits.index import Candidate, IndexPolicy
from metasd.core import refuse


class UCBSpec(IndexPolicy):
    """Index mean_i + (L / 2) sqrt((1 + n) / n^2 (1 + 2 ln(K t^2 sqrt(1 + n) / delta))), the self-normalised bound of a
    reward in [0, L]. Its own reward is the count of accepted tokens.

    Args:
        setting: what it plays for.
        delta: the probability with which the bounds may fail.
        width: by which the radius is multiplied; 1 is the theory's.
        options: of `Policy`.
    """

    default_reward = "be"

    def __init__(self, setting: Setting, delta: float = 0.1, width: float = 1.0, **options: Any) -> None:
        if not 0 < delta < 1:
            raise refuse("delta", "a number between 0 and 1", delta)
        if not width >= 0:
            raise refuse("width", "a number of at least 0", width)
        self._delta, self._width = float(delta), float(width)
        super().__init__(setting, **options)

    def optimism(self, candidates: Sequence[Candidate], rounds: float) -> Sequence[float]:
        fixed = math.log(len(candidates) * max(rounds, 1.0) ** 2 / self._delta)
        most, half = self.setting.reward.most, self._width / 2
        return [
            half * most(length) * math.sqrt((1 + n) / n**2 * (1 + 2 * (fixed + math.log1p(n) / 2)))
            for _, length, _, n in candidates
        ]
