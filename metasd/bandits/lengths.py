"""How long a block may be: acceptance learned by position, and the length that yields most tokens a second."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metasd.bandits.rewards import Evidence
from metasd.core import Position


class Hazards:
    """For each arm and position key: how often a draft token there was accepted, once the block got there.

    Evidence is weighted by how surely the block reached the position (MATH: block length). The prior of a position
    counts as so many observations.
    """

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, list[float]]] = {}  # by arm and key: [reach, accepted]

    def add(self, arm: str, positions: Sequence[Position], evidence: Iterable[Evidence], weight: float = 1.0) -> None:
        """Take what one round says; a negative weight takes it back."""
        known = self._sums.get(arm)
        if known is None:
            known = self._sums[arm] = {}
        for position, (reach, accept) in zip(positions, evidence, strict=False):
            sums = known.get(position.key)
            if sums is None:
                sums = known[position.key] = [0.0, 0.0]
            sums[0] += weight * reach
            sums[1] += weight * reach * accept

    def accept(self, arm: str, position: Position, unit: float = 1.0) -> float:
        """Estimated acceptance there, where evidence of weight `unit` counts as one observation."""
        reach, accepted = self._sums.get(arm, {}).get(position.key, (0.0, 0.0))
        weight = (position.prior_weight or 1e-9) * unit
        return (accepted + weight * position.prior) / (reach + weight)

    def expected_tokens(self, arm: str, positions: Sequence[Position], unit: float = 1.0) -> list[float]:
        """Expected accepted tokens of a block of 0, 1, ... len(positions) tokens."""
        totals, survival, total = [0.0], 1.0, 0.0
        known = self._sums.get(arm, {})
        for position in positions:
            sums = known.get(position.key)
            if sums is None:
                survival *= position.prior
            else:
                weight = (position.prior_weight or 1e-9) * unit
                survival *= (sums[1] + weight * position.prior) / (sums[0] + weight)
            total += survival
            totals.append(total)
        return totals

    def scale(self, factor: float) -> None:
        """Let all evidence count `factor` times as much as before."""
        for known in self._sums.values():
            for sums in known.values():
                sums[0] *= factor
                sums[1] *= factor

    def state(self) -> dict[str, Any]:
        return {arm: {key: list(sums) for key, sums in known.items()} for arm, known in self._sums.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._sums = {
            arm: {key: [float(sums[0]), float(sums[1])] for key, sums in known.items()} for arm, known in state.items()
        }


def best_length(expected_tokens: Sequence[float], costs: Sequence[float], least: int = 0) -> int:
    """argmax over N >= least of (1 + expected_tokens[N]) / costs[N]; the shortest among ties."""
    best, best_rate = least, -1.0
    for length in range(least, len(expected_tokens)):
        rate = (1 + expected_tokens[length]) / costs[length]
        if rate > best_rate:
            best, best_rate = length, rate
    return best
