"""What all policies share: baselines, sleeping arms, what is carried between requests, and saved states."""

import json
from collections import Counter
from typing import Any

import pytest
from bandit_specs import specs
from records import bandit_of, offers, played, teach

from metasd.bandits import REWARDS, Bandit, CostTable, make_bandit
from metasd.bandits.base import Policy
from metasd.core import Choice, Offer, UsageError

ARMS = ("a", "b", "c", "null")


def choices(bandit: Bandit, count: int, *awake: str) -> list[str]:
    seen = []
    for round_id in range(count):
        choice = bandit.select(offers(*awake))
        seen.append(choice.arm)
        accepted = {"a": 1, "b": 3}.get(choice.arm, 0)
        teach(bandit, played(choice.arm, choice.num_draft_tokens, accepted, round_id=round_id))
    return seen


def test_fixed_plays_one_arm_and_sleeps_with_it() -> None:
    assert choices(bandit_of("fixed", ARMS), 3, "a", "b") == ["a"] * 3
    assert choices(bandit_of("fixed:arm=c", ARMS), 3, "a", "b", "c") == ["c"] * 3
    assert bandit_of("fixed:arm=c", ARMS).select(offers("a", "b")) == Choice("null", 0)
    assert bandit_of("fixed:arm=null", ARMS).select(offers("a", "b")) == Choice("null", 0)


def test_round_robin_passes_over_sleepers() -> None:
    bandit = bandit_of("round-robin", ARMS)
    assert choices(bandit, 4, "a", "b", "c") == ["a", "b", "c", "a"]
    assert choices(bandit, 3, "a", "c") == ["c", "a", "c"]
    assert choices(bandit, 2, "a", "b", "c") == ["a", "b"]


def test_random_is_uniform_over_those_awake() -> None:
    bandit = bandit_of("random:seed=3", ARMS)
    counts = Counter(choices(bandit, 3000, "a", "b", "c"))
    assert counts.keys() == {"a", "b", "c"}
    assert all(abs(count - 1000) < 160 for count in counts.values())  # six standard deviations
    assert Counter(choices(bandit, 50, "a", "c")).keys() == {"a", "c"}


def test_random_seeds() -> None:
    first, again, other = (choices(bandit_of(f"random:seed={seed}", ARMS), 30, "a", "b", "c") for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("length", [3, None])
@pytest.mark.parametrize("name", specs("a"))
def test_choices_stay_within_the_offer(name: str, length: int | None) -> None:
    bandit = bandit_of(name, ARMS, num_draft_tokens=length)
    for round_id in range(40):
        available = offers("a", "b", length=1 + round_id % 4) if round_id % 5 else {"null": Offer()}
        choice = bandit.select(available)
        assert choice.num_draft_tokens <= available[choice.arm].max_num_draft_tokens
        assert (choice.arm == "null") <= (choice.num_draft_tokens == 0)
        if length is not None and choice.arm != "null":
            assert choice.num_draft_tokens == min(length, available[choice.arm].max_num_draft_tokens)
        teach(bandit, played(choice.arm, choice.num_draft_tokens, 0, round_id=round_id))


@pytest.mark.parametrize("name", specs("a"))
def test_no_draft_tokens_means_plain_decoding(name: str) -> None:
    assert bandit_of(name, ARMS, num_draft_tokens=0).select(offers("a", "b")) == Choice("null", 0)


@pytest.mark.parametrize("name", ["fixed", "random", "round-robin"])
def test_baselines_with_a_free_length_keep_drafting(name: str) -> None:
    """Never accepted so far: they still draft, else they would learn nothing any more."""
    bandit = bandit_of(name, ("a", "null"), num_draft_tokens=None)
    for _ in range(20):
        choice = bandit.select(offers("a"))
        assert choice == Choice("a", max(1, choice.num_draft_tokens))
        teach(bandit, played("a", choice.num_draft_tokens, 0))


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("name", specs("a"))
def test_state_round_trip_as_json(name: str, reward: str) -> None:
    """A loaded bandit chooses what the saved one goes on to choose."""
    tables = CostTable(), CostTable()
    one, other = (bandit_of(name, ARMS, reward=reward, costs=costs) for costs in tables)
    choices(one, 17, "a", "b", "c")
    saved = json.loads(json.dumps(one.state()))
    other.load(saved)
    assert other.state() == one.state() == saved
    assert choices(other, 30, "a", "b", "c") == choices(one, 30, "a", "b", "c")
    assert saved == json.loads(json.dumps(saved))
    assert other.state() == one.state() != saved


@pytest.mark.parametrize("name", specs("a"))
def test_states_of_others_are_refused_and_change_nothing(name: str) -> None:
    bandit = bandit_of(name, ARMS)
    choices(bandit, 5, "a", "b", "c")
    before = bandit.state()
    other_arms = bandit_of(name, ("a", "b", "null")).state()
    other_policy = bandit_of("round-robin" if name != "round-robin" else "ucb", ARMS).state()
    broken = [{}, {**before, "num_rounds": {"a": 1}}, {**before, "hazards": 3}, {**before, "total_reward": {"a": "x"}}]
    for state in (other_arms, other_policy, *broken):
        with pytest.raises(UsageError, match="bandit state"):
            bandit.load(state)
        assert bandit.state() == before


def test_error_of_other_arms_names_them() -> None:
    with pytest.raises(UsageError, match=r"expected the arms \['a', 'b', 'null'\], got \['x', 'null'\]"):
        bandit_of("ucb").load(bandit_of("ucb", ("x", "null")).state())


def test_carry_decay_and_query() -> None:
    for spec, factor in (("ucb", 0.9), ("ucb:decay=0.5", 0.5), ("ucb:decay=1", 1.0), ("ucb:carry=query", 0.0)):
        bandit = bandit_of(spec)
        assert isinstance(bandit, Policy)
        bandit.start()
        teach(bandit, *[played("a", 5, 3)] * 4)
        mean = bandit.mean("a")
        bandit.finish()
        assert bandit.played("a") == 4
        bandit.start()
        assert bandit.played("a") == pytest.approx(4 * factor)
        if factor:
            assert bandit.mean("a") == pytest.approx(mean)


@pytest.mark.parametrize("name", specs("a"))
def test_a_reproducible_request_starts_fresh_and_leaves_no_trace(name: str) -> None:
    costs = CostTable()
    bandit = bandit_of(name, ARMS, costs=costs)
    bandit.start(reproducible=True)
    first = choices(bandit, 20, "a", "b", "c")
    bandit.finish()
    bandit.start()
    choices(bandit, 30, "a", "b", "c")
    bandit.finish()
    before, clocks = bandit.state(), costs.state()
    bandit.start(reproducible=True)
    assert choices(bandit, 20, "a", "b", "c") == first
    bandit.finish()
    assert bandit.state() == before
    assert costs.state() == clocks


def test_rounds_of_unknown_arms_and_rounds_without_a_draft_teach_nothing() -> None:
    """Of acceptance; what a forward pass of one position takes is learned from any round without a draft."""
    bandit = bandit_of("ucb", ARMS)
    before = bandit.state()
    teach(bandit, played("x", 5, 5))
    assert bandit.state() == before
    teach(bandit, played("a", 0, 0))
    after = bandit.state()
    assert {**after, "costs": before["costs"]} == before
    assert list(after["costs"]["verify"]) == ["0"]


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("best", {}, "bandit: expected one of auto, ucb, .*, got 'best'"),
        ("ucb:alpha=1", {}, "bandit UCB: expected options among beta, carry, decay, got 'alpha'"),
        ("fixed:arm=z", {}, "arm: expected one of a, b, null"),
        ("random:beta=1", {}, "options among carry, decay, seed"),
        ("ucb", {"reward": "speed"}, "reward: expected one of auto, be, bd, rb, cf"),
        ("ucb:beta", {}, "expected name:key=value"),
    ],
)
def test_unknown_parameters(spec: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_bandit(spec, ("a", "b", "null"), **options)
    with pytest.raises(UsageError, match="arms: expected at least one arm"):
        make_bandit("ucb", ())


def test_auto_and_ready_bandits() -> None:
    bandit = make_bandit("auto:scale=0.5", ("a", "null"))
    assert bandit.state()["policy"] == "Auto"
    assert make_bandit(bandit, ("a", "null")) is bandit
