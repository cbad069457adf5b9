"""What a system returns for one prompt, and what is kept of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metasd.core import RoundRecord
from metasd.metrics import GenerationResult

_KEPT = (
    "arm",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_output_tokens",
    "bd",
    "draft_seconds",
    "verify_seconds",
    "catch_up_seconds",
    "overhead_seconds",
    "switched",
)
"""Of a round: what the tables and plots are made from. Journals hold these as lists, in this order."""


@dataclass(frozen=True)
class Answer:
    """An answer with its times.

    The first forward pass reads the prompt, so it and its tokens are told apart: a system's rate is
    `num_timed_tokens / seconds`.

    Attributes:
        token_ids: of the whole answer.
        num_timed_tokens: those behind the first forward pass.
        seconds: wall-clock, from the end of that pass to the end of the answer.
        prefill_seconds: wall-clock, before that.
        steps: tokens of each step, the first one's too; empty where a system does not say.
        rounds: of this engine; empty for others.
        text: the answer's.
    """

    token_ids: tuple[int, ...]
    num_timed_tokens: int
    seconds: float
    prefill_seconds: float
    steps: tuple[int, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    text: str = ""

    @classmethod
    def of_result(cls, result: GenerationResult) -> "Answer":
        """From this engine; its first round is the first forward pass of the others."""
        first = result.rounds[0]
        return cls(
            token_ids=tuple(result.token_ids),
            num_timed_tokens=len(result.token_ids) - first.num_output_tokens,
            seconds=result.stats.decode_seconds - first.seconds,
            prefill_seconds=result.stats.prefill_seconds + first.seconds,
            steps=tuple(record.num_output_tokens for record in result.rounds),
            rounds=tuple(_record(index, _kept(record)) for index, record in enumerate(result.rounds)),
            text=result.text,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "token_ids": list(self.token_ids),
            "num_timed_tokens": self.num_timed_tokens,
            "seconds": self.seconds,
            "prefill_seconds": self.prefill_seconds,
            "steps": list(self.steps),
            "rounds": [_kept(record) for record in self.rounds],
            "text": self.text,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Answer":
        """What `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        return cls(
            token_ids=tuple(data["token_ids"]),
            num_timed_tokens=int(data["num_timed_tokens"]),
            seconds=float(data["seconds"]),
            prefill_seconds=float(data["prefill_seconds"]),
            steps=tuple(data["steps"]),
            rounds=tuple(_record(index, values) for index, values in enumerate(data["rounds"])),
            text=data["text"],
        )


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        system, prompt_id, repetition, seed: its key. The seed is None for greedy decoding.
        domain: of the prompt.
        answer: what came back.
        replayed: whether it was played on a log of token records, not decoded by models.
    """

    system: str
    prompt_id: str
    repetition: int
    seed: int | None
    domain: str
    answer: Answer
    replayed: bool = False

    @property
    def key(self) -> tuple[str, str, int, int | None]:
        return self.system, self.prompt_id, self.repetition, self.seed


def _kept(record: RoundRecord) -> list[Any]:
    values = [getattr(record, name) for name in _KEPT]
    return [round(value, 7) if isinstance(value, float) else value for value in values]


def _record(index: int, values: list[Any]) -> RoundRecord:
    kept = dict(zip(_KEPT, values, strict=True))
    drafted = kept["num_draft_tokens"]
    return RoundRecord(
        round_id=index,
        accept_probability=(),
        tv_distance=(),
        num_expected_accepted=0.0,
        be=kept["num_accepted_tokens"] / drafted if drafted else 0.0,
        status=0,
        **kept,
    )
