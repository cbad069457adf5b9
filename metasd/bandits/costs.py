"""What a round costs: seconds by arm and block length, as measured, or nominal where clocks must not decide."""

from collections.abc import Mapping
from typing import Any

_RESOLUTION = 1e-9  # seconds; a clock that did not move between two readings must not make a round free
_MEMORY = 32  # a mean follows the last so many rounds
_NOMINAL_SLOPE = 0.06  # one more position in a forward pass, in plain forward passes
_OUTLIER = (
    2.0  # a measurement counts for at most so many times the mean: a pause of the machine says nothing of the arm
)


class _Mean:
    """A running mean that forgets, and that one outlier does not move far."""

    __slots__ = ("count", "value")

    def __init__(self, value: float = 0.0, count: int = 0) -> None:
        self.value, self.count = value, count

    def add(self, sample: float) -> None:
        sample = max(sample, _RESOLUTION)
        if self.count:
            sample = min(sample, _OUTLIER * self.value)
        self.count = min(self.count + 1, _MEMORY)
        self.value += (sample - self.value) / self.count


class CostTable:
    """Seconds of a round of (arm, num_draft_tokens): draft, forward pass of the target, catch-up.

    Args:
        nominal_draft_cost: for each arm, one draft token in plain forward passes of the target; the estimate until the
            arm has been measured.
    """

    def __init__(self, nominal_draft_cost: Mapping[str, float] | None = None) -> None:
        self._nominal = dict(nominal_draft_cost or {})
        self._verify: dict[int, _Mean] = {}  # by num_draft_tokens
        self._draft: dict[str, _Mean] = {}  # a draft token
        self._catch_up: dict[str, _Mean] = {}  # a round
        self._lengths: list[float] = []  # `verify` of 0, 1, ..., where it was asked for

    def nominal(self) -> "CostTable":
        """A table with the nominal costs only: the same on every machine and at every load."""
        return CostTable(self._nominal)

    def add_verify(self, num_draft_tokens: int, seconds: float) -> None:
        mean = self._verify.get(num_draft_tokens)
        if mean is None:
            mean = self._verify[num_draft_tokens] = _Mean()
        mean.add(seconds)
        if len(self._verify) < len(self._lengths):  # others are estimated from this one
            self._lengths = []
        elif num_draft_tokens < len(self._lengths):
            self._lengths[num_draft_tokens] = mean.value

    def add_round(
        self, arm: str, num_draft_tokens: int, draft_seconds: float, verify_seconds: float, catch_up_seconds: float
    ) -> None:
        """Take the times of one round."""
        self.add_verify(num_draft_tokens, verify_seconds)
        if num_draft_tokens:
            if arm not in self._draft:
                self._draft[arm], self._catch_up[arm] = _Mean(), _Mean()
            self._draft[arm].add(draft_seconds / num_draft_tokens)
            self._catch_up[arm].add(catch_up_seconds)

    def plain(self) -> float:
        """Seconds of a round without a draft; 1 in a nominal table."""
        return self.verify(0)

    def verify(self, num_draft_tokens: int) -> float:
        """Seconds to verify a block; between measured lengths by interpolation, beyond them by the nominal slope."""
        known = self._verify
        if num_draft_tokens in known:
            return known[num_draft_tokens].value
        if not known:
            return 1.0 + _NOMINAL_SLOPE * num_draft_tokens
        below = max((k for k in known if k < num_draft_tokens), default=None)
        above = min((k for k in known if k > num_draft_tokens), default=None)
        if below is not None and above is not None:
            share = (num_draft_tokens - below) / (above - below)
            return known[below].value + share * (known[above].value - known[below].value)
        nearest = below if below is not None else above
        assert nearest is not None
        shape = (1 + _NOMINAL_SLOPE * num_draft_tokens) / (1 + _NOMINAL_SLOPE * nearest)
        return known[nearest].value * shape

    def round(self, arm: str, num_draft_tokens: int) -> float:
        """Expected seconds of a round."""
        if num_draft_tokens == 0:
            return self.plain()
        draft, catch_up = self.draft_and_catch_up(arm)
        return num_draft_tokens * draft + catch_up + self.verify(num_draft_tokens)

    def by_length(self, max_num_draft_tokens: int) -> list[float]:
        """`verify` of blocks of 0, 1, ... tokens, at least as many as asked for. Not to be changed."""
        if len(self._lengths) <= max_num_draft_tokens:
            self._lengths = [self.verify(n) for n in range(max_num_draft_tokens + 1)]
        return self._lengths

    def draft_and_catch_up(self, arm: str) -> tuple[float, float]:
        """Seconds of a draft token, and of catching up in a round."""
        measured, catch_up = self._draft.get(arm), self._catch_up.get(arm)
        draft = measured.value if measured else self._nominal.get(arm, 0.0) * self.plain()
        return draft, catch_up.value if catch_up else 0.0

    def state(self) -> dict[str, Any]:
        """Plain JSON types."""

        def plain(table: Mapping[Any, _Mean]) -> dict[str, list[float]]:
            return {str(key): [mean.value, mean.count] for key, mean in table.items()}

        return {"verify": plain(self._verify), "draft": plain(self._draft), "catch_up": plain(self._catch_up)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned."""
        self._lengths = []
        self._verify = {int(key): _Mean(*pair) for key, pair in state["verify"].items()}
        self._draft = {key: _Mean(*pair) for key, pair in state["draft"].items()}
        self._catch_up = {key: _Mean(*pair) for key, pair in state["catch_up"].items()}
