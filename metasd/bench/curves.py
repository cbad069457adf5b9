"""What changes with the rounds: which arms are played, and how the reward adds up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metasd.bench.answers import Row

MAX_POINTS = 200


@dataclass(frozen=True)
class Shares:
    """Of one system: in which share of the answers each arm was played, by round.

    Attributes:
        first_round: of each bin, counted from 1.
        share: by arm, one value a bin; the values of all arms add up to 1.
    """

    first_round: Sequence[int]
    share: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Curve:
    """Values by round, at no more than MAX_POINTS rounds."""

    rounds: Sequence[int]
    values: Sequence[float]


def arm_shares(rows: Sequence[Row], width: int = 4) -> Shares:
    """Shares in bins of `width` rounds of an answer, over all answers that last as long."""
    counts: dict[int, dict[str, int]] = {}
    for row in rows:
        for record in row.answer.rounds:
            bin_ = counts.setdefault(record.round_id // width, {})
            bin_[record.arm] = bin_.get(record.arm, 0) + 1
    totals: dict[str, int] = {}
    for bin_ in counts.values():
        for arm, count in bin_.items():
            totals[arm] = totals.get(arm, 0) + count
    arms = sorted(totals, key=lambda arm: -totals[arm])
    bins = sorted(counts)
    return Shares(
        [index * width + 1 for index in bins],
        {arm: [counts[index].get(arm, 0) / sum(counts[index].values()) for index in bins] for arm in arms},
    )


def cumulative_reward(rows: Sequence[Row]) -> Curve:
    """Block divergence added up over the rounds of the first repetition, one answer after the other; a round without a
    draft adds nothing. It is the reward by which the paper's policies are judged."""
    values, total = [], 0.0
    seeds = [row.seed for row in rows]
    for row in rows:
        if row.repetition == 0 and row.seed == seeds[0]:
            for record in row.answer.rounds:
                total += record.bd
                values.append(total)
    step = max(1, -(-len(values) // MAX_POINTS))
    kept = sorted({*range(step - 1, len(values), step), len(values) - 1} if values else ())
    return Curve([index + 1 for index in kept], [values[index] for index in kept])
