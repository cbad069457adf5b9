"""MetaSD-UCB by hand-computed indices: the paper's form, and the form for tokens a second."""

import math

import pytest
from records import bandit_of, offer, offers, played, teach

from metasd.bandits import CostTable
from metasd.core import Choice, Offer

PAPER = {"objective": "tokens", "reward": "bd"}


def bound(beta: float, rounds: float, played: float) -> float:
    return beta * math.sqrt(2 * math.log(rounds) / played)


def test_tokens_each_arm_once_in_the_order_of_the_pool() -> None:
    bandit = bandit_of("ucb", ("a", "b", "c", "null"), **PAPER)
    seen = []
    for round_id in range(3):
        choice = bandit.select(offers("a", "b", "c"))
        seen.append(choice.arm)
        assert choice.num_draft_tokens == 5
        teach(bandit, played(choice.arm, 5, 5 if choice.arm == "a" else 0, round_id=round_id))
    assert seen == ["a", "b", "c"]
    assert bandit.select(offers("a", "b", "c")).arm == "a"


@pytest.mark.parametrize("beta", [0.0, 0.22, 0.5, 1.0, 2.0])
def test_tokens_argmax_of_the_index(beta: float) -> None:
    """a: 6 rounds with mean BD 0.7; b: 2 rounds with mean 0.5. The arm flips where b's bonus makes up for 0.2."""
    bandit = bandit_of(f"ucb:beta={beta}", **PAPER)
    teach(bandit, *[played("a", 5, 0, tv=[0.3] * 5)] * 6, *[played("b", 5, 0, tv=[0.5] * 5)] * 2)
    index = {"a": 0.7 + bound(beta, 8, 6), "b": 0.5 + bound(beta, 8, 2)}
    assert bandit.select(offers("a", "b")).arm == max(index, key=index.__getitem__)
    assert abs(index["a"] - index["b"]) > 1e-3


def test_tokens_the_flip_is_where_the_formula_says() -> None:
    edge = 0.2 / (math.sqrt(2 * math.log(8) / 2) - math.sqrt(2 * math.log(8) / 6))
    for beta, arm in ((edge * 0.999, "a"), (edge * 1.001, "b")):
        bandit = bandit_of(f"ucb:beta={beta}", **PAPER)
        teach(bandit, *[played("a", 5, 0, tv=[0.3] * 5)] * 6, *[played("b", 5, 0, tv=[0.5] * 5)] * 2)
        assert bandit.select(offers("a", "b")).arm == arm


def test_tokens_the_null_arm_is_played_only_where_all_sleep() -> None:
    bandit = bandit_of("ucb", **PAPER)
    teach(bandit, *[played("a", 5, 0)] * 9, *[played("b", 5, 0)] * 9)
    assert bandit.select(offers("a", "b")).arm in ("a", "b")
    assert bandit.select({"null": Offer()}) == Choice("null", 0)
    assert bandit.select({"a": Offer(), "null": Offer()}) == Choice("null", 0)


def test_sleeping_arms_are_passed_over_and_not_forgotten() -> None:
    bandit = bandit_of("ucb:beta=0", **PAPER)
    teach(bandit, played("a", 5, 5), played("b", 5, 2))
    assert bandit.select(offers("a", "b")).arm == "a"
    assert bandit.select(offers("b")).arm == "b"
    assert bandit.select(offers("a", "b")).arm == "a"


@pytest.mark.parametrize("reward", ["be", "bd", "rb"])
def test_the_reward_is_the_one_that_was_asked_for(reward: str) -> None:
    """a accepts more, b diverges less behind the first rejection: BE and RB say a, BD says b."""
    bandit = bandit_of("ucb:beta=0", objective="tokens", reward=reward)
    a = played("a", 5, 2)
    b = played("b", 5, 0, tv=[1.0, 0.0, 0.0, 0.0, 0.0])
    teach(bandit, a, b)
    assert bandit.select(offers("a", "b")).arm == ("b" if reward == "bd" else "a")


def speed_costs() -> CostTable:
    """Plain 1 s; verifying 5 tokens 1.2 s; a draft token of a 0.1 s, of b 0.4 s."""
    table = CostTable()
    table.add_verify(0, 1.0)
    table.add_verify(5, 1.2)
    for arm, seconds in (("a", 0.5), ("b", 2.0)):
        table.add_round(arm, 5, draft_seconds=seconds, verify_seconds=1.2, catch_up_seconds=0.0)
    return table


@pytest.mark.parametrize(
    ("accepted", "wanted"),
    [
        # (1 + accepted of a) / 1.7 against (1 + accepted of b) / 3.2 against 1 / 1
        ((1, 3), "b"),  # 1.18, 1.25
        ((2, 3), "a"),  # 1.76, 1.25
        ((0, 2), "null"),  # 0.59, 0.94
        ((0, 3), "b"),
    ],
)
def test_speed_is_tokens_a_second(accepted: tuple[int, int], wanted: str) -> None:
    bandit = bandit_of("ucb:beta=0", reward="be", costs=speed_costs())
    seconds = {"a": {"draft": 0.5, "verify": 1.2}, "b": {"draft": 2.0, "verify": 1.2}}
    for arm, count in zip("ab", accepted, strict=True):
        teach(bandit, *[played(arm, 5, count, seconds=seconds[arm])] * 8)
    assert bandit.select(offers("a", "b")) == Choice(wanted, 0 if wanted == "null" else 5)


def test_speed_the_bonus_shrinks_with_play() -> None:
    """Reward RB: index (1 + mean + beta (N / 3) sqrt(2 ln t / n)) / cost; the flip against the null arm by hand."""
    seconds = {"draft": 0.5, "verify": 1.2}
    rounds = 10
    teaching = [*[played("a", 5, 0, seconds=seconds)] * 4, *[played("null", 0, 0, seconds={"verify": 1.0})] * 6]
    needed = 1.7 - 1.0  # accepted tokens that make a as fast as plain decoding
    edge = needed / (5 / 3 * math.sqrt(2 * math.log(rounds) / 4))
    for beta, arm in ((edge * 0.99, "null"), (edge * 1.01, "a")):
        bandit = teach(bandit_of(f"ucb:beta={beta}", ("a", "null"), reward="rb", costs=speed_costs()), *teaching)
        assert bandit.select(offers("a")).arm == arm


def test_speed_an_unknown_arm_without_priors_is_tried() -> None:
    bandit = bandit_of("ucb", costs=speed_costs())
    teach(bandit, *[played("a", 5, 5, seconds={"draft": 0.5, "verify": 1.2})] * 9)
    assert bandit.select(offers("a", "b")).arm == "b"


@pytest.mark.parametrize(("prior", "wanted"), [(0.9, "a"), (0.1, "null")])
def test_speed_priors_decide_before_play(prior: float, wanted: str) -> None:
    """An arm that knows beforehand that it is bad here need not be tried."""
    bandit = bandit_of("ucb", ("a", "null"), costs=speed_costs())
    assert bandit.select({"a": offer(5, prior, 8.0), "null": Offer()}).arm == wanted


def test_speed_length_is_chosen_with_the_arm() -> None:
    """Acceptance .9 at two positions and then none: the best free block is the shortest with all there is to gain."""
    table = CostTable()
    table.add_verify(0, 1.0)
    table.add_verify(8, 1.4)
    bandit = bandit_of("ucb:beta=0", ("a", "null"), num_draft_tokens=None, costs=table)
    for count in [2] * 9 + [0]:
        teach(bandit, played("a", 8, count, seconds={"verify": 1.4}))
    choice = bandit.select(offers("a", length=8))
    assert choice == Choice("a", 2)
    assert bandit.select(offers("a", length=1)) == Choice("a", 1)
