"""How long a block may be: acceptance learned by position, and the length that yields most tokens a second."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metasd.bandits.rewards import Evidence
from metasd.core import Position

_ALL = "all"
_NOTHING = (0.0, 0.0)
_USUAL_WEIGHT = 2.0


class Hazards:
    """For each arm and position key: how often a draft token there was accepted, once the block got there.

    Evidence is weighted by how surely the block reached the position (MATH: block length). The prior of a position
    counts as so many observations; where a position has none, what is known of the arm's other positions counts as two.
    """

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, list[float]]] = {}  # by arm and key: [reach, accepted]

    def add(self, arm: str, positions: Sequence[Position], evidence: Iterable[Evidence], weight: float = 1.0) -> None:
        """Take what one round says; a negative weight takes it back."""
        known, total = self._of(arm)
        for position, (reach, accept) in zip(positions, evidence, strict=False):
            sums = known.get(position.key)
            if sums is None:
                sums = known[position.key] = [0.0, 0.0]
            accepted = weight * reach * accept
            sums[0] += weight * reach
            sums[1] += accepted
            total[0] += weight * reach
            total[1] += accepted

    def _of(self, arm: str) -> tuple[dict[str, list[float]], list[float]]:
        """An arm's sums by position, and over all of them."""
        known = self._sums.get(arm)
        if known is None:
            known = self._sums[arm] = {_ALL: [0.0, 0.0]}
        return known, known[_ALL]

    def accept(self, arm: str, position: Position, unit: float = 1.0) -> float:
        """Estimated acceptance there, where evidence of weight `unit` counts as one observation."""
        return self.expected_tokens(arm, [position], unit)[1]

    def expected_tokens(self, arm: str, positions: Sequence[Position], unit: float = 1.0) -> list[float]:
        """Expected accepted tokens of a block of 0, 1, ... len(positions) tokens."""
        totals, survival, total = [0.0], 1.0, 0.0
        known = self._sums.get(arm, {})
        usual, usual_weight = self._usual(known, unit)
        for position in positions:
            prior, weight = position.prior, position.prior_weight * unit
            if not weight:
                prior, weight = usual if usual_weight else prior, usual_weight or 1e-9
            reach, accepted = known.get(position.key, _NOTHING)
            survival *= (accepted + weight * prior) / (reach + weight)
            total += survival
            totals.append(total)
        return totals

    @staticmethod
    def _usual(known: Mapping[str, Sequence[float]], unit: float) -> tuple[float, float]:
        """An arm's acceptance over all positions, and what it is worth where nothing else is known."""
        reach, accepted = known.get(_ALL, _NOTHING)
        return (accepted / reach, _USUAL_WEIGHT * unit) if reach > 1e-9 * unit else (0.0, 0.0)

    def best_length(
        self,
        arm: str,
        positions: Sequence[Position],
        unit: float,
        per_token: float,
        fixed: float,
        verify: Sequence[float],
        least: int,
    ) -> tuple[int, float, float]:
        """The N >= least with the largest (1 + expected tokens) / seconds, the shortest among ties.

        Args:
            arm: whose block it is.
            positions: as far as it may go.
            unit: the weight of one observation.
            per_token: seconds of a draft token.
            fixed: seconds of a round with a draft, whatever its length.
            verify: seconds to verify 0, 1, ... tokens.
            least: the shortest that is allowed, at most the number of positions.

        Returns:
            the length, its expected accepted tokens, its seconds.
        """
        known = self._sums.get(arm, {})
        survival, tokens = 1.0, 0.0
        best, best_tokens, best_seconds = 0, 0.0, verify[0]
        best_rate = 1 / best_seconds if least <= 0 else -1.0
        seconds = fixed
        usual, usual_weight = self._usual(known, unit)
        for length, position in enumerate(positions, 1):
            prior, weight = position.prior, position.prior_weight * unit
            if not weight:
                prior, weight = usual if usual_weight else prior, usual_weight or 1e-9
            reach, accepted = known.get(position.key, _NOTHING)
            survival *= (accepted + weight * prior) / (reach + weight)
            tokens += survival
            seconds += per_token
            rate = (1 + tokens) / (seconds + verify[length])
            if rate > best_rate and length >= least:
                best, best_rate, best_tokens, best_seconds = length, rate, tokens, seconds + verify[length]
        return best, best_tokens, best_seconds

    def follow(
        self,
        arm: str,
        positions: Sequence[Position],
        reach: float,
        ratio: Sequence[float],
        overlap: Sequence[float],
        weight: float,
    ) -> tuple[int, float]:
        """Take what emitted tokens say of a block that the arm could have drafted.

        Args:
            arm: whose block it is.
            positions: from where it has come to.
            reach: how surely it has come there.
            ratio: of each token, how surely the block would have gone on with it.
            overlap: of each token, how surely what the arm drafts there is accepted.
            weight: of the evidence.

        Returns:
            how many positions it went on, and how surely it came there.
        """
        evidence = list[Evidence]()
        for _, accept, on in zip(positions, overlap, ratio, strict=False):
            evidence.append((reach, accept))
            reach *= on
            if reach == 0:
                break
        self.add(arm, positions, evidence, weight)
        return len(evidence), reach

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
