"""The policies beside UCB, each against its definition."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bandit_specs import CLASSIFIER
from records import bandit_of, offers, played, teach

from metasd.bandits import Context
from metasd.bandits.auto import Auto
from metasd.bandits.base import Policy
from metasd.bandits.exp3 import EXP3
from metasd.bandits.kl_ucb import divergence, upper_bound
from metasd.bandits.router import PromptClassifier
from metasd.core import RoundRecord, TokenScores, UsageError

PAPER = {"objective": "tokens", "reward": "bd"}
ARMS = ("a", "b", "c", "d", "null")


def round_of(arm: str, value: float, **options: Any) -> RoundRecord:
    return played(arm, 5, 0, tv=[1 - value] * 5, **options)


def play(bandit: Policy, values: dict[str, float], count: int) -> list[str]:
    chosen = []
    for t in range(count):
        arm = bandit.select(offers(*values)).arm
        chosen.append(arm)
        teach(bandit, round_of(arm, values[arm], round_id=t))
    return chosen


def test_discounted_ucb_by_hand() -> None:
    """a three times, then b twice; the newest round counts 1, the one before 0.9, and so on."""
    bandit = bandit_of("discounted-ucb:discount=0.9,beta=0.5", **PAPER)
    teach(bandit, *[round_of("a", 0.6)] * 3, *[round_of("b", 0.4)] * 2)
    weights = {"a": 0.9**4 + 0.9**3 + 0.9**2, "b": 0.9 + 1}
    for arm, weight in weights.items():
        assert bandit.played(arm) == pytest.approx(weight)
    total = sum(weights.values())
    index = {arm: mean + 0.5 * math.sqrt(2 * math.log(total) / weights[arm]) for arm, mean in (("a", 0.6), ("b", 0.4))}
    assert bandit.select(offers("a", "b")).arm == max(index, key=index.__getitem__)


def test_sliding_ucb_knows_the_window_only() -> None:
    bandit = bandit_of("sliding-ucb:window=4,beta=0", **PAPER)
    teach(bandit, *[round_of("a", 1.0)] * 3, round_of("b", 0.5))
    assert bandit.select(offers("a", "b")).arm == "a"
    teach(bandit, round_of("b", 0.5), *[round_of("a", 0.1)] * 2)
    assert bandit.mean("a") == pytest.approx(0.1)
    assert bandit.select(offers("a", "b")).arm == "b"
    teach(bandit, *[round_of("b", 0.5)] * 4)
    assert bandit.num_rounds["a"] == 0
    assert bandit.select(offers("a", "b")).arm == "a"  # unknown again


@pytest.mark.parametrize("mean", [0.0, 1e-6, 0.2, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("distance", [0.0, 1e-6, 0.01, 0.3, 3.0])
def test_the_kl_bound_is_where_the_divergence_is_the_distance(mean: float, distance: float) -> None:
    bound = upper_bound(mean, distance)
    assert mean <= bound <= 1
    if distance and mean < 1 and bound < 1 - 1e-8:
        assert divergence(mean, max(bound - 2e-4, mean)) <= distance + 1e-9
        assert divergence(mean, min(bound + 2e-4, 1 - 1e-9)) >= distance - 1e-9


def test_explore_then_commit() -> None:
    bandit = bandit_of("explore-then-commit:rounds=2", ARMS, **PAPER)
    bandit.start()
    values = {"a": 0.2, "b": 0.8, "c": 0.5, "d": 0.1}
    assert play(bandit, values, 11) == [*"aabbccdd", *"bbb"]
    bandit.start()
    assert play(bandit, values | {"c": 0.9}, 11) == [*"aabbccdd", *"ccc"]


def test_sequential_halving() -> None:
    """Four arms, 8 rounds in two phases: each once, then the better two twice, then the best."""
    bandit = bandit_of("sequential-halving:rounds=2", ARMS, **PAPER)
    bandit.start()
    assert play(bandit, {"a": 0.2, "b": 0.8, "c": 0.5, "d": 0.1}, 11) == [*"abcd", *"bbcc", *"bbb"]


def test_sequential_halving_with_a_sleeper_goes_on() -> None:
    bandit = bandit_of("sequential-halving:rounds=2", ARMS, **PAPER)
    bandit.start()
    chosen = play(bandit, {"a": 0.2, "b": 0.8, "d": 0.1}, 20)
    assert Counter(chosen[:3]) == {"a": 1, "b": 1, "d": 1}


def test_exp3_odds_are_what_the_gains_say() -> None:
    bandit = bandit_of("exp3", **PAPER)
    assert isinstance(bandit, EXP3)
    assert bandit.odds(["a", "b"]) == pytest.approx([0.5, 0.5])
    bandit.gains.update(a=3.0, b=1.0)
    bandit.num_rounds.update(a=5.0, b=3.0)
    rate = math.sqrt(math.log(2) / (8 * 2))
    assert bandit.odds(["a", "b"])[0] == pytest.approx(1 / (1 + math.exp(-2 * rate)))


def test_exp3_estimates_are_unbiased_whoever_was_likely() -> None:
    """The sum of gain / probability over many rounds is the arm's gain a round; 4 standard errors."""
    bandit = bandit_of("exp3:gamma=0.5,seed=2", **PAPER)
    assert isinstance(bandit, EXP3)
    play(bandit, {"a": 0.2, "b": 0.8}, 4000)
    assert bandit.gains["a"] / 4000 == pytest.approx(0.2, abs=4 * 0.2 * math.sqrt(3 / 4000))
    assert bandit.gains["b"] / 4000 == pytest.approx(0.8, abs=4 * 0.8 * math.sqrt(1 / 4000))


def shadows(**overlap: float) -> dict[str, TokenScores]:
    return {arm: TokenScores((value,) * 3, (value,) * 3) for arm, value in overlap.items()}


def scored(arm: str, accepted: int, **overlap: float) -> RoundRecord:
    record = played(arm, 5, accepted)
    record.__dict__["token_scores"] = shadows(**overlap)
    return record


def test_hedge_moves_to_an_arm_that_it_never_played() -> None:
    bandit = bandit_of("hedge", objective="tokens")
    for t in range(30):
        bandit.update(t, scored("a", 2, a=0.2, b=0.9))
    assert Counter(bandit.select(offers("a", "b")).arm for _ in range(50))["b"] >= 49


def test_auto_scores_arms_that_did_not_draft() -> None:
    """b never drafts, but its laws agree with every token; the same rounds without b's scores leave it unknown."""
    known, unknown = (bandit_of("auto", objective="tokens") for _ in range(2))
    assert isinstance(known, Auto)
    for bandit, overlap in ((known, {"b": 1.0}), (unknown, {})):
        for t in range(12):
            bandit.select(offers("a", "b"))
            bandit.update(t, scored("a", 2, **overlap))
    assert known.select(offers("a", "b")).arm == "b"
    assert known.hazards.expected_tokens("b", offers("b")["b"].positions)[-1] == pytest.approx(5.0)
    assert known.num_rounds["b"] == 12
    assert unknown.num_rounds["b"] == 0


def test_auto_follows_blocks_through_later_rounds() -> None:
    """Rounds of three tokens: a block of five that the first round's start could have had ends in the second."""
    bandit = bandit_of("auto", objective="tokens")
    for t, value in enumerate((0.5, 0.25)):
        bandit.select(offers("a", "b"))
        bandit.update(t, scored("a", 2, b=value))
    sums = bandit.state()["hazards"]["b"]
    assert sums["depth0"] == pytest.approx([2.0, 0.5 + 0.25])
    reach = 0.5**3
    assert sums["depth3"] == pytest.approx([reach, reach * 0.25])
    assert sums["depth4"] == pytest.approx([reach * 0.25, reach * 0.25 * 0.25])


def test_auto_forgets_when_the_text_changes() -> None:
    bandits = {spec: bandit_of(spec, objective="tokens") for spec in ("auto", "auto:change=0")}
    for bandit in bandits.values():
        bandit.start()
        for t in range(40):
            bandit.select(offers("a", "b"))
            teach(bandit, round_of("a", 0.8 if t < 25 else 0.2, round_id=t))
    assert bandits["auto"].played("a") < 15 < bandits["auto:change=0"].played("a") == pytest.approx(40)


def test_auto_charges_a_switch() -> None:
    """b is a little better; with a dear catch-up that is not worth the way."""
    for seconds, wanted in ((0.0, "b"), (3.0, "a")):
        bandit = bandit_of("auto:scale=0")
        for t in range(20):
            bandit.select(offers("a", "b"))
            arm = "ab"[t % 2]
            record = round_of(arm, 0.6 if arm == "a" else 0.62, round_id=t, seconds={"verify": 1.0})
            record.__dict__.update(switched=True, catch_up_seconds=seconds)
            bandit.update(t, record)
        bandit._last = "a"
        assert bandit.select(offers("a", "b")).arm == wanted


def test_oracle_and_router() -> None:
    oracle = bandit_of("oracle:code=a,qa=b")
    for label, wanted in (("code", "a"), ("qa", "b")):
        oracle.start(False, Context(label=label))
        assert oracle.select(offers("a", "b")).arm == wanted
    with pytest.raises(UsageError, match="label: expected one of code, qa, got 'math'"):
        oracle.start(False, Context(label="math"))
    router = bandit_of(f"router:path={CLASSIFIER},low=a,high=b")
    for prompt, wanted in (([1, 1, 2], "a"), ([12, 13, 3], "b")):
        router.start(False, Context(prompt_ids=prompt))
        assert router.select(offers("a", "b")).arm == wanted


def test_classifier_round_trip(tmp_path: Path) -> None:
    made = PromptClassifier.fit([("x", [1, 1, 2]), ("y", [3]), ("y", [2, 3])])
    made.save(tmp_path / "c.json")
    loaded = PromptClassifier.load(tmp_path / "c.json")
    assert loaded.counts == made.counts == {"x": {1: 2, 2: 1}, "y": {3: 2, 2: 1}}
    assert [loaded.label_of(prompt) for prompt in ([1], [3], [])] == ["x", "y", "y"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("oracle", "oracle: expected an arm for each label"),
        ("oracle:code=z", "oracle, label code: expected one of a, b, null, got 'z'"),
        ("router", "router: expected path=FILE"),
        ("router:path=none.json,other=a", "expected a file from `metasd train router`, got none.json"),
        (f"router:path={CLASSIFIER},low=a", "router: expected an arm for high, or for other, got low"),
        ("discounted-ucb:discount=1", "discount: expected a number between 0 and 1"),
        ("sliding-ucb:window=0", "window: expected at least 1 round"),
        ("ucbspec:delta=0", "delta: expected a number between 0 and 1"),
        ("kl-ucb:scale=-1", "scale: expected a number of at least 0"),
        ("thompson:rounds_per_reward=0", "rounds_per_reward: expected a number above 0"),
        ("epsilon-greedy:epsilon=2", "epsilon: expected a number from 0 to 1"),
        ("sliding-ucb:window=2.5", "window: expected an integer of at least 0, got 2.5"),
        ("thompson:seed=-1", "seed: expected an integer of at least 0, got -1.0"),
        ("epsilon-greedy:seed=0.5", "seed: expected an integer of at least 0, got 0.5"),
        ("sequential-halving:rounds=1.5", "rounds: expected an integer of at least 0, got 1.5"),
        ("oracle:other=a,decay=x", "decay: expected a finite number, got 'x'"),
        (f"router:path={CLASSIFIER},other=a,decay=x", "decay: expected a finite number, got 'x'"),
        ("exp3:gamma=2", "gamma: expected a number from 0 to 1"),
        ("explore-then-commit:rounds=0", "rounds: expected at least 1"),
        ("hedge:rate=0", "rate: expected a number above 0"),
        ("auto:stay=0", "stay: expected at least 1 round"),
        ("auto:change=-1", "change: expected a number of at least 0"),
        ("ucb:carry=never", "carry: expected query, decay or prompt"),
    ],
)
def test_wrong_parameters(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        bandit_of(spec)


def test_carry_by_kind_of_prompt() -> None:
    """a is good for one kind of prompt, b for another; a third prompt of the first kind meets what the first left."""
    code, prose = list(range(100, 160)), list(range(500, 560))
    bandit = bandit_of("ucb:carry=prompt,beta=0.3", **PAPER)
    for prompt, values in ((code, {"a": 0.9, "b": 0.1}), (prose, {"a": 0.1, "b": 0.9})) * 3:
        bandit.start(False, Context(prompt_ids=prompt))
        play(bandit, values, 30)
        bandit.finish()
    for prompt, wanted in ((code[:50], "a"), (prose[5:], "b")):
        bandit.start(False, Context(prompt_ids=prompt))
        assert bandit.select(offers("a", "b")).arm == wanted
    restored = bandit_of("ucb:carry=prompt,beta=0.3", **PAPER)
    restored.load(bandit.state())
    restored.start(False, Context(prompt_ids=code))
    assert restored.select(offers("a", "b")).arm == "a"
