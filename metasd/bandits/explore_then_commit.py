"""Explore, then commit: few switches, which is what counts where a switch is dear."""

from collections.abc import Mapping
from typing import Any

from metasd.bandits.base import Policy, Setting
from metasd.core import NULL_ARM, Choice, Offer, RoundRecord, refuse


class ExploreThenCommit(Policy):
    """Plays each arm `rounds` times in a row, then the best of them for the rest of the request.

    Args:
        setting: what it plays for.
        rounds: of each arm.
        options: of `Policy`; nothing is carried unless asked for.
    """

    def __init__(self, setting: Setting, rounds: int = 2, **options: Any) -> None:
        if not rounds >= 1:
            raise refuse("rounds", "at least 1", rounds)
        self._rounds = rounds
        super().__init__(setting, **{"carry": "query", **options})

    def reset(self) -> None:
        super().reset()
        self.begin()

    def begin(self) -> None:
        self.count: dict[str, int] = dict.fromkeys(self.setting.arms, 0)  # of this request
        self._planned: dict[str, int] = dict(self.count)  # chosen, though perhaps not played yet

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        arm = self.next_arm([arm for arm, offer in available.items() if arm != NULL_ARM and offer.positions])
        if arm is None:
            return self.best(available)
        self._planned[arm] += 1
        return Choice(arm, self.length(arm, available[arm], least=1))

    def next_arm(self, awake: list[str]) -> str | None:
        """Whom to explore; None: commit."""
        return next((arm for arm in awake if self._planned[arm] < self._rounds), None)

    def learn(self, record: RoundRecord) -> None:
        super().learn(record)
        self.count[record.arm] += 1
        self._planned[record.arm] = max(self._planned[record.arm], self.count[record.arm])

    def own_state(self) -> dict[str, Any]:
        return {"count": dict(self.count)}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        self.count = {arm: int(state["count"][arm]) for arm in self.setting.arms}
        self._planned = dict(self.count)
