"""What a trainer is given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metasd.target import Target
from metasd.training.answers import Answer

Advance = Callable[[str, int, int, str], None]
"""Hears the stage, how much of it is done, how much there is, and a note."""


@dataclass(frozen=True)
class Job:
    """One drafter to be made.

    Attributes:
        target: what it is for.
        answers: what the target said.
        output: file or folder of the drafter.
        work: folder for what later runs can use again.
        metadata: written beside the weights: data and its licence, domains.
        advance: hears of progress.
    """

    target: Target
    answers: Sequence[Answer]
    output: Path
    work: Path
    metadata: Mapping[str, str] = field(default_factory=dict)
    advance: Advance = lambda stage, done, total, note: None
