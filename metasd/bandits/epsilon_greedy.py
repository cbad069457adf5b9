"""Epsilon-greedy: the best arm so far, and now and then any."""

from collections.abc import Mapping, Sequence
from typing import Any

from metasd.bandits.base import Setting
from metasd.bandits.index import Candidate, IndexPolicy
from metasd.bandits.seeded import SeededPolicy
from metasd.core import NULL_ARM, Choice, Offer, refuse


class EpsilonGreedy(IndexPolicy, SeededPolicy):
    """With probability epsilon an arm at random, else the one with the best mean.

    Args:
        setting: what it plays for.
        epsilon: in [0, 1].
        options: of `SeededPolicy`.
    """

    def __init__(self, setting: Setting, epsilon: float = 0.1, **options: Any) -> None:
        if not 0 <= epsilon <= 1:
            raise refuse("epsilon", "a number from 0 to 1", epsilon)
        self._epsilon = float(epsilon)
        super().__init__(setting, **options)

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        if self._random.random() < self._epsilon:
            arm = self._random.choice([arm for arm, offer in available.items() if arm != NULL_ARM and offer.positions])
            return Choice(arm, self.length(arm, available[arm], least=1))
        return super().choose(available)

    def optimism(self, candidates: Sequence[Candidate], rounds: float) -> Sequence[float]:
        return [0.0] * len(candidates)
