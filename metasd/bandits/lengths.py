"""How long a block may be: acceptance learned by position, and the length that yields most tokens a second."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metasd.bandits.rewards import Evidence
from metasd.core import Position


class Hazards:
    """For each arm and position key: how often a draft token there was accepted, once the block got there.

    Evidence is weighted by how surely the block reached the position (MATH: block length). The prior of a position
    counts as so many observations.
    """

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}  # "arm key" -> [reach, accepted]

    def add(self, arm: str, positions: Sequence[Position], evidence: Sequence[Evidence]) -> None:
        """Take what one round says."""
        for position, (reach, accept) in zip(positions, evidence, strict=False):
            sums = self._sums.setdefault(f"{arm} {position.key}", [0.0, 0.0])
            sums[0] += reach
            sums[1] += reach * accept

    def accept(self, arm: str, position: Position) -> float:
        """Estimated acceptance there."""
        reach, accepted = self._sums.get(f"{arm} {position.key}", (0.0, 0.0))
        weight = position.prior_weight or 1e-9
        return (accepted + weight * position.prior) / (reach + weight)

    def expected_tokens(self, arm: str, positions: Sequence[Position]) -> list[float]:
        """Expected accepted tokens of a block of 0, 1, ... len(positions) tokens."""
        totals, survival = [0.0], 1.0
        for position in positions:
            survival *= self.accept(arm, position)
            totals.append(totals[-1] + survival)
        return totals

    def decay(self, factor: float) -> None:
        """Let all evidence count `factor` times as much as before."""
        for sums in self._sums.values():
            sums[0] *= factor
            sums[1] *= factor

    def state(self) -> dict[str, Any]:
        return {key: list(sums) for key, sums in self._sums.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._sums = {key: [float(sums[0]), float(sums[1])] for key, sums in state.items()}


def best_length(expected_tokens: Sequence[float], cost: Callable[[int], float], least: int = 0) -> int:
    """argmax over N >= least of (1 + expected_tokens[N]) / cost(N); the shortest among ties."""
    lengths = range(least, len(expected_tokens))
    return max(lengths, key=lambda n: ((1 + expected_tokens[n]) / cost(n), -n), default=0)
