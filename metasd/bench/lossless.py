"""Greedy answers of every system against plain decoding, token for token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metasd import check
from metasd.bench.answers import Row
from metasd.bench.systems import PLAIN
from metasd.check import GreedyOutcome
from metasd.engine import MetaSD


@dataclass(frozen=True)
class Verdict:
    """Whether a run was lossless.

    Attributes:
        is_compared: whether answers were compared; sampled ones are not, `metasd check` tests their law.
        num_answers: that were compared, by system.
        near_ties: differing answers at whose first difference two logits lie so close that passes of different width
            may round to different winners.
        mismatches: differing answers that nothing excuses.
    """

    is_compared: bool
    num_answers: Mapping[str, int]
    near_ties: Sequence[tuple[str, GreedyOutcome]]
    mismatches: Sequence[tuple[str, GreedyOutcome]]

    @property
    def is_passed(self) -> bool:
        return not self.mismatches

    def line(self) -> str:
        """The verdict in one line."""
        if not self.is_compared:
            return "sampled answers are not compared token for token; metasd check tests their law"
        total = sum(self.num_answers.values())
        ties = f", but for {len(self.near_ties)} near-ties" if self.near_ties else ""
        if self.is_passed:
            return f"lossless: all {total} answers equal plain decoding's, token for token{ties}"
        return f"NOT lossless: {len(self.mismatches)} of {total} answers differ from plain decoding's"


def compare(rows: Sequence[Row], prompt_ids: Mapping[str, list[int]], engine: MetaSD) -> Verdict:
    """Compare each row with plain decoding's first answer to its prompt.

    Args:
        rows: those of `plain` among them.
        prompt_ids: by prompt.
        engine: whose target judges a difference: one forward pass over the common part.
    """
    if any(row.seed is not None for row in rows):
        return Verdict(False, {}, (), ())
    reference = {row.prompt_id: row.answer.token_ids for row in rows if row.system == PLAIN and row.repetition == 0}
    counts: dict[str, int] = {}
    near_ties: list[tuple[str, GreedyOutcome]] = []
    mismatches: list[tuple[str, GreedyOutcome]] = []
    judged: dict[tuple[str, tuple[int, ...]], GreedyOutcome] = {}
    for row in rows:
        if row.replayed:
            continue
        counts[row.system] = counts.get(row.system, 0) + 1
        answer, plain = row.answer.token_ids, reference[row.prompt_id]
        if answer == plain:
            continue
        key = row.prompt_id, answer
        if key not in judged:
            ids = prompt_ids[row.prompt_id]
            judged[key] = check.compare(engine, row.prompt_id, ids, list(answer), list(plain), PLAIN)
        (near_ties if judged[key].is_near_tie else mismatches).append((row.system, judged[key]))
    return Verdict(True, counts, near_ties, mismatches)
