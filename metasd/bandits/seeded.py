"""What policies share that draw: a generator of their own, which is part of what they carry and save."""

import random
from collections.abc import Mapping
from typing import Any

from metasd.bandits.base import Policy, Setting


class SeededPolicy(Policy):
    """A policy with a random generator.

    Args:
        setting: what it plays for.
        seed: of the generator.
        options: of `Policy`.
    """

    def __init__(self, setting: Setting, seed: int = 0, **options: Any) -> None:
        self._random = random.Random(seed)
        super().__init__(setting, **options)

    def own_state(self) -> dict[str, Any]:
        version, words, gauss = self._random.getstate()
        return {"generator": [version, list(words), gauss]}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        version, words, gauss = state["generator"]
        self._random.setstate((version, tuple(words), gauss))
