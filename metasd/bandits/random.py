"""A drafter at random each round: the baseline that shows what choosing is worth."""

import random
from collections.abc import Mapping
from typing import Any

from metasd.bandits.base import Policy, Setting
from metasd.bandits.generators import load_generator, state_of_generator
from metasd.core import NULL_ARM, Choice, Offer


class Random(Policy):
    """Plays an arm drawn uniformly among those that are awake; the null arm only where nothing else is.

    Args:
        setting: what it plays for.
        seed: of its own generator.
        options: of `Policy`.
    """

    def __init__(self, setting: Setting, seed: float = 0, **options: Any) -> None:
        self._random = random.Random(int(seed))
        super().__init__(setting, **options)

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        arm = self._random.choice([arm for arm in available if arm != NULL_ARM])
        return Choice(arm, self.length(arm, available[arm], least=1))

    def own_state(self) -> dict[str, Any]:
        return {"generator": state_of_generator(self._random)}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        load_generator(self._random, state["generator"])
