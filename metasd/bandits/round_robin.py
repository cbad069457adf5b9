"""The drafters in turn."""

from collections.abc import Mapping
from typing import Any

from metasd.bandits.base import Policy
from metasd.core import NULL_ARM, Choice, Offer


class RoundRobin(Policy):
    """Plays the arms in the pool's order, passing over those that sleep and the null arm."""

    def reset(self) -> None:
        super().reset()
        self._next = 0

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        arms = [arm for arm in self.setting.arms if arm != NULL_ARM]
        for step in range(len(arms)):
            arm = arms[(self._next + step) % len(arms)]
            if arm in available:
                self._next = (self._next + step + 1) % len(arms)
                return Choice(arm, self.length(arm, available[arm], least=1))
        return Choice(NULL_ARM, 0)

    def own_state(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        self._next = int(state["next"])
