"""A shipped policy in a made-up world, round by round, until B tokens are out."""

from dataclasses import dataclass, field
from typing import Any

from metasd.bandits import Bandit
from metasd.core import NULL_ARM, Offer, Position, RoundRecord
from metasd.simulation.world import World


@dataclass
class Trace:
    """What a run was like.

    Attributes:
        arms: index of the arm in each round.
        tokens: emitted at the end of each round.
        num_switches: rounds with another arm than the one before.
        seconds: rounds, and what switches cost.
    """

    arms: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    num_switches: int = 0
    seconds: float = 0.0


def offers_of(world: World) -> dict[str, Offer]:
    """Every arm is awake in every round."""
    positions = tuple(Position(f"depth{k}", 0.5, 0.0) for k in range(world.block))
    return {**{arm: Offer(positions) for arm in world.setting.arms}, NULL_ARM: Offer()}


def play(bandit: Bandit, world: World) -> Trace:
    """Let a policy decode one answer; it chooses among the arms by tokens a round."""
    offers, arms = offers_of(world), {arm: i for i, arm in enumerate(world.setting.arms)}
    positions, block, cost = offers[world.setting.arms[0]].positions, world.block, world.setting.switch_rounds
    trace, token, last = Trace(), 0, -1
    bandit.start()
    while token < world.num_tokens:
        choice = bandit.select(offers)
        arm = arms[choice.arm]
        accepted = world.accepted[token][arm]
        count = min(accepted + 1, world.num_tokens - token)
        record = _record(len(trace.arms), choice.arm, block, positions)
        record.__dict__.update(
            num_accepted_tokens=accepted,
            num_output_tokens=count,
            accept_probability=world.accept[token][arm],
            tv_distance=world.tv[token][arm],
            num_expected_accepted=world.rb[token][arm],
            bd=world.bd[token][arm],
            be=accepted / block,
            token_scores=world.scores(token, count),
            switched=arm != last >= 0,
            catch_up_seconds=cost if arm != last >= 0 else 0.0,
        )
        trace.num_switches += record.switched
        token, last = token + count, arm
        trace.arms.append(arm)
        trace.tokens.append(token)
        bandit.update(record.round_id, record)
    bandit.finish()
    trace.seconds = len(trace.arms) + cost * trace.num_switches
    return trace


_FIELDS: dict[str, Any] = {
    "status": 0, "draft_seconds": 0.0, "verify_seconds": 1.0, "overhead_seconds": 0.0,
    "model_seconds": None,
}  # fmt: skip


def _record(round_id: int, arm: str, block: int, positions: tuple[Position, ...]) -> RoundRecord:
    """A record without what the round was like: a frozen dataclass, field by field, takes longer than a step."""
    record: RoundRecord = object.__new__(RoundRecord)
    record.__dict__.update(_FIELDS, round_id=round_id, arm=arm, num_draft_tokens=block, positions=positions)
    return record
