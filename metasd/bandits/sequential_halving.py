"""Sequential halving (Karnin, Koren and Somekh 2013), with which the paper treats dear switches."""

import math
from collections.abc import Mapping
from typing import Any

from metasd.bandits.base import Setting
from metasd.bandits.explore_then_commit import ExploreThenCommit
from metasd.core import NULL_ARM


class SequentialHalving(ExploreThenCommit):
    """Plays the arms that are left in turns of several rounds each, halves them by their means, commits to the last.

    Args:
        setting: what it plays for.
        rounds: of exploration, for each arm of the pool; a phase divides its share equally among the arms left.
        options: of `Policy`; nothing is carried unless asked for.
    """

    def __init__(self, setting: Setting, rounds: int = 3, **options: Any) -> None:
        super().__init__(setting, rounds, **options)

    def begin(self) -> None:
        super().begin()
        self._left = [arm for arm in self.setting.arms if arm != NULL_ARM]
        self._phases = max(1, math.ceil(math.log2(max(len(self._left), 1))))
        self._goal = self._share()

    def _share(self) -> int:
        """Rounds of each arm in a phase."""
        num_arms = sum(arm != NULL_ARM for arm in self.setting.arms)
        return max(1, self._rounds * num_arms // (max(len(self._left), 1) * self._phases))

    def next_arm(self, awake: list[str]) -> str | None:
        while len(self._left) > 1:
            left = [arm for arm in self._left if arm in awake]
            unfinished = [arm for arm in left if self._planned[arm] < self._goal]
            if unfinished:
                return unfinished[0]
            if not left or any(self._planned[arm] < self._goal for arm in self._left):
                return left[0] if left else None  # the others of this phase sleep
            known = [arm for arm in self._left if self.num_rounds[arm]]
            ranked = sorted(known, key=self.mean, reverse=True) or self._left
            self._left = ranked[: max(1, (len(self._left) + 1) // 2)]
            self._goal += self._share()
        return None

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"left": list(self._left), "goal": self._goal}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        super().load_own_state(state)
        self._left, self._goal = list(state["left"]), int(state["goal"])
