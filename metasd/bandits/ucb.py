"""MetaSD-UCB (Kim, Jung, Yun; arXiv 2604.05417), and its form for tokens a second."""

import math
from collections.abc import Sequence
from typing import Any

from metasd.bandits.base import Setting
from metasd.bandits.index import Candidate, IndexPolicy
from metasd.core import refuse


class UCB(IndexPolicy):
    """Index mean_i + beta sqrt(2 ln t / n_i), on the reward's scale.

    Args:
        setting: what it plays for.
        beta: width of the bound. 0.22 is 1 / (2 sqrt(5)), the scale of BD over five positions; 1 is near uniform play
            within a 200-token answer.
        options: of `Policy`.
    """

    def __init__(self, setting: Setting, beta: float = 0.22, **options: Any) -> None:
        if not beta >= 0:
            raise refuse("beta", "a number of at least 0", beta)
        self._beta = float(beta)
        super().__init__(setting, **options)

    def optimism(self, candidates: Sequence[Candidate], rounds: float) -> Sequence[float]:
        width, spread = self._beta * math.sqrt(2 * math.log(max(rounds, 1.0))), self.setting.reward.spread
        return [width * spread(length) / math.sqrt(num_rounds) for _, length, _, num_rounds in candidates]
