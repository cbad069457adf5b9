"""Rounds and offers for bandits, made by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from metasd.bandits import Bandit, CostTable, make_bandit
from metasd.core import Offer, Position, RoundRecord


def offer(length: int, prior: float = 0.5, weight: float = 0.0, key: str = "depth") -> Offer:
    return Offer(tuple(Position(f"{key}{k}", prior, weight) for k in range(length)))


def offers(*arms: str, length: int = 5, **options: Any) -> dict[str, Offer]:
    """These arms are awake, and the null arm."""
    return {**{arm: offer(length, **options) for arm in arms}, "null": Offer()}


def played(
    arm: str,
    length: int,
    accepted: int,
    *,
    tv: Sequence[float] | None = None,
    accept: Sequence[float] | None = None,
    seconds: Mapping[str, float] | None = None,
    round_id: int = 0,
    key: str = "depth",
) -> RoundRecord:
    """A round; by default a greedy one: accepted tokens have TV 0, the others 1; verifying a token more costs 5 %."""
    seconds = {"draft": 0.02 * length, "verify": 1 + 0.05 * length} if seconds is None else seconds
    tv = tuple(tv) if tv is not None else tuple(0.0 if k < accepted else 1.0 for k in range(length))
    accept = tuple(accept) if accept is not None else tuple(1.0 - value for value in tv)
    expected, reach = 0.0, 1.0
    for a, value in zip(accept, tv, strict=True):
        expected += reach * (1 - value)
        reach *= a
    return RoundRecord(
        round_id=round_id,
        arm=arm,
        num_draft_tokens=length,
        num_accepted_tokens=accepted,
        num_output_tokens=accepted + 1,
        accept_probability=accept,
        tv_distance=tv,
        num_expected_accepted=expected,
        bd=sum(1 - value for value in tv) / length if length else 0.0,
        be=accepted / length if length else 0.0,
        status=0,
        positions=offer(length, key=key).positions,
        **{f"{name}_seconds": value for name, value in (seconds or {}).items()},
    )


def bandit_of(spec: str, arms: Sequence[str] = ("a", "b", "null"), **options: Any) -> Bandit:
    """Five draft tokens and nominal costs unless told otherwise."""
    return make_bandit(spec, arms, **{"num_draft_tokens": 5, "costs": CostTable(), **options})


def teach(bandit: Bandit, *records: RoundRecord) -> Bandit:
    for record in records:
        bandit.update(record.round_id, record)
    return bandit
