"""Kinds of prompts, told apart without labels, so that what was learned on one is carried to the next of its kind."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

_MAX_KINDS = 16
_LIKENESS = 0.45  # cosine above which a prompt is of a known kind
_MAX_TOKENS = 512  # of a prompt, that are looked at: both ends
_MEMORY = 20  # a kind's centre follows the last so many prompts


class PromptKinds:
    """Leader clustering of prompts by their token ids: a prompt joins the kind whose centre it is most like, or founds
    a new one. A vector counts tokens and pairs of tokens by square roots, so that no repeated word rules it.

    Attributes:
        current: the kind of the prompt that came last.
    """

    def __init__(self) -> None:
        self.current: str | None = None
        self._centres: dict[str, dict[str, float]] = {}
        self._counts: dict[str, int] = {}

    def of(self, prompt_ids: Sequence[int]) -> str:
        """The kind of a prompt; it moves that kind's centre."""
        vector = vector_of(prompt_ids)
        likeness = {kind: _cosine(vector, centre) for kind, centre in self._centres.items()}
        kind = max(likeness, key=likeness.__getitem__, default=None)
        if kind is None or (likeness[kind] < _LIKENESS and len(self._centres) < _MAX_KINDS):
            kind = f"kind{len(self._centres)}"
            self._centres[kind], self._counts[kind] = {}, 0
        self._counts[kind] = min(self._counts[kind] + 1, _MEMORY)
        share = 1 / self._counts[kind]
        centre = {key: (1 - share) * value for key, value in self._centres[kind].items()}
        for key, value in vector.items():
            centre[key] = centre.get(key, 0.0) + share * value
        largest = sorted(centre, key=lambda key: -centre[key])[: 4 * _MAX_TOKENS]
        self._centres[kind] = {key: centre[key] for key in largest}
        return kind

    def state(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"current": self.current, "centres": self._centres, "counts": self._counts}

    def load(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned."""
        self.current = state["current"]
        self._centres = {kind: dict(centre) for kind, centre in state["centres"].items()}
        self._counts = {kind: int(count) for kind, count in state["counts"].items()}


def vector_of(prompt_ids: Sequence[int]) -> dict[str, float]:
    """A prompt as a unit vector over its tokens and pairs of tokens."""
    ids = list(prompt_ids)
    if len(ids) > _MAX_TOKENS:
        ids = ids[: _MAX_TOKENS // 2] + ids[-_MAX_TOKENS // 2 :]
    counts: dict[str, float] = {}
    for key in [*map(str, ids), *(f"{a} {b}" for a, b in itertools.pairwise(ids))]:
        counts[key] = counts.get(key, 0.0) + 1.0
    norm = math.sqrt(sum(counts.values())) or 1.0
    return {key: math.sqrt(count) / norm for key, count in counts.items()}


def _cosine(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    norm = math.sqrt(sum(value * value for value in a.values()) * sum(value * value for value in b.values()))
    return sum(value * b[key] for key, value in a.items() if key in b) / norm if norm else 0.0
