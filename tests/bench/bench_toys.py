"""Systems that do as they are told, and rows made by hand."""

from collections.abc import Sequence
from typing import Any, Self

from toys import toy_target

from metasd.bench.answers import Answer, Row
from metasd.bench.run import Bench, Request
from metasd.bench.systems import System, Workshop
from metasd.bench.workload import BenchPrompt
from metasd.config import SamplingParams
from metasd.core import RoundRecord

TEXTS = (
    "the cat sat on the mat. the cat sat",
    "the dog sat on the log. the dog",
    "stop; stop; stop;",
    "a; c! a; c! a;",
)
PROMPTS = [BenchPrompt(str(index), "ab"[index % 2], text) for index, text in enumerate(TEXTS)]


class Told(System):
    """Answers with its name's length and its count; learns how many prompts it has seen."""

    def __init__(self, name: str, log: list[tuple[str, tuple[int, ...]]]) -> None:
        self.name, self.log, self.num_seen = name, log, 0

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        raise NotImplementedError

    def decode(self, prompt_ids: list[int], params: SamplingParams) -> Answer:
        self.log.append((self.name, tuple(prompt_ids)))
        self.num_seen += 1
        return Answer((1, 2, 3), 2, 0.5, 0.25, (1, 1, 1), text=f"seen {self.num_seen}")

    def state(self) -> dict[str, Any] | None:
        return {"num_seen": self.num_seen}

    def load(self, state: dict[str, Any] | None) -> None:
        self.num_seen = state["num_seen"] if state else 0


class Liar(System):
    """Plain decoding, but its last token is another one."""

    def __init__(self, shop: Workshop) -> None:
        self.name, self._engine = "liar", shop.engine([])

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        return cls(shop)

    def decode(self, prompt_ids: list[int], params: SamplingParams) -> Answer:
        honest = Answer.of_result(self._engine.generate_plain(prompt_ids, params))
        ids = (*honest.token_ids[:-1], (honest.token_ids[-1] + 1) % 320)
        return Answer(ids, honest.num_timed_tokens, honest.seconds, honest.prefill_seconds, honest.steps)


def record(arm: str, drafted: int, accepted: int, index: int = 0, **more: Any) -> RoundRecord:
    """A round made by hand."""
    return RoundRecord(
        round_id=index,
        arm=arm,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        num_output_tokens=accepted + 1,
        accept_probability=(),
        tv_distance=(),
        num_expected_accepted=0.0,
        be=accepted / drafted if drafted else 0.0,
        status=0,
        **{"bd": 0.0, **more},
    )


def row(
    system: str,
    prompt: str,
    tokens: int,
    seconds: float,
    domain: str = "a",
    repetition: int = 0,
    rounds: Sequence[RoundRecord] = (),
    seed: int | None = None,
) -> Row:
    """A measurement made by hand; its first token came with the prompt."""
    answer = Answer(tuple(range(tokens + 1)), tokens, seconds, 0.1, (1,) * (tokens + 1), tuple(rounds))
    return Row(system, prompt, repetition, seed, domain, answer)


def toy_bench(systems: str, **options: Any) -> Bench:
    """A run over the toy target."""
    given = {"drafters": "ngram,suffix", **options}
    return Bench.prepare(Request(systems, **given), PROMPTS, toy_target())
