"""UCB that remembers the last rounds only (Garivier and Moulines, arXiv 0805.3415)."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from metasd.bandits.base import Setting
from metasd.bandits.rewards import Evidence, Observation
from metasd.bandits.ucb import UCB
from metasd.core import Position, RoundRecord, refuse


class SlidingUCB(UCB):
    """UCB over the last `window` rounds; an arm that was not played in them counts as unknown.

    Args:
        setting: what it plays for.
        window: rounds.
        options: of `UCB`; nothing fades within the window, so `decay` is 1.
    """

    def __init__(self, setting: Setting, window: int = 40, **options: Any) -> None:
        if not window >= 1:
            raise refuse("window", "at least 1 round", window)
        self._window = window
        super().__init__(setting, **{"decay": 1.0, **options})

    def reset(self) -> None:
        super().reset()
        self._last: deque[tuple[str, tuple[str, ...], list[Evidence], list[Observation]]] = deque()

    def learn(self, record: RoundRecord) -> None:
        reward = self.setting.reward
        observed = reward.observe(record)
        evidence = list(reward.evidence(record)) if record.num_draft_tokens else []
        if not record.num_draft_tokens:
            observed.append((record.arm, 0.0, 1.0))
        self._last.append((record.arm, tuple(position.key for position in record.positions), evidence, observed))
        self._count(1.0, self._last[-1])
        if len(self._last) > self._window:
            self._count(-1.0, self._last.popleft())

    def _count(self, weight: float, entry: tuple[str, tuple[str, ...], list[Evidence], list[Observation]]) -> None:
        arm, keys, evidence, observed = entry
        for other, value, count in observed:
            if other in self.num_rounds:
                left = self.num_rounds[other] + weight * count
                is_empty = left < 1e-9  # what rounding leaves of nothing
                self.num_rounds[other] = 0.0 if is_empty else left
                self.total_reward[other] = 0.0 if is_empty else self.total_reward[other] + weight * count * value
        self.hazards.add(arm, [Position(key) for key in keys], evidence, weight)

    def own_state(self) -> dict[str, Any]:
        return {"last": [[arm, list(keys), list(map(list, e)), list(map(list, o))] for arm, keys, e, o in self._last]}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        self._last = deque(
            (
                arm,
                tuple(keys),
                [(reach, accept) for reach, accept in evidence],
                [(other, value, count) for other, value, count in observed],
            )
            for arm, keys, evidence, observed in state["last"]
        )
