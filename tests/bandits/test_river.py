"""UCB1, Thompson sampling, EXP3, epsilon-greedy against river's, with the same rewards and random numbers."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from records import bandit_of, offers, played
from river import bandit as river
from river import proba
from scipy.stats import beta

from metasd.bandits.thompson import Thompson
from metasd.core import RoundRecord

ARMS = ("a", "b", "c", "d")
RATES = {"a": 0.3, "b": 0.6, "c": 0.5, "d": 0.1}
PAPER = {"objective": "tokens", "reward": "bd"}
ROUNDS = 300


def rewards(seed: int = 5) -> Callable[[str, int], float]:
    """Of an arm in a round, whoever asks."""
    return lambda arm, t: min(1.0, max(0.0, random.Random(f"{seed} {arm} {t}").gauss(RATES[arm], 0.2)))


def record(arm: str, value: float) -> RoundRecord:
    return played(arm, 5, 0, tv=[1 - value] * 5)


def ours(spec: str, reward: Callable[[str, int], float], bandit: Any = None) -> list[str]:
    policy, chosen = bandit or bandit_of(spec, ARMS, **PAPER), []
    for t in range(ROUNDS):
        arm = policy.select({arm: offer for arm, offer in offers(*ARMS).items() if arm != "null"}).arm
        chosen.append(arm)
        policy.update(t, record(arm, reward(arm, t)))
    return chosen


def theirs(policy: Any, reward: Callable[[str, int], float]) -> list[str]:
    chosen = []
    for t in range(ROUNDS):
        arm = policy.pull(list(ARMS))
        chosen.append(arm)
        policy.update(arm, reward(arm, t))
    return chosen


@pytest.mark.parametrize("width", [0.1, 0.22, 1.0])
def test_ucb(width: float) -> None:
    wanted = theirs(river.UCB(delta=width, burn_in=1), rewards())
    assert ours(f"ucb:beta={width}", rewards()) == wanted
    assert ours(f"ucb:beta={width + 0.3}", rewards()) != wanted


def test_epsilon_greedy() -> None:
    """Each arm once at first, by an exploration that always draws; then the two follow each other."""
    policy = river.EpsilonGreedy(epsilon=0.2, seed=3)
    mine = bandit_of("epsilon-greedy:epsilon=0.2,seed=3", ARMS, **PAPER)
    reward = rewards()
    for t, arm in enumerate(ARMS):
        policy.update(arm, reward(arm, -1 - t))
        mine.update(t, record(arm, reward(arm, -1 - t)))
    assert ours("", reward, mine) == theirs(policy, reward)


@pytest.mark.parametrize("gamma", [0.1, 0.5])
def test_exp3(gamma: float) -> None:
    """River divides by the arms that it has met: all of them are made known to it first."""
    policy = river.Exp3(gamma=gamma, seed=11)
    for arm in ARMS:
        policy._weights[arm] = 1.0
    wanted = theirs(policy, rewards())
    assert ours(f"exp3:gamma={gamma},seed=11", rewards()) == wanted
    assert ours(f"exp3:gamma={gamma},seed=12", rewards()) != wanted


def test_thompson(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both draw by the quantile function at the same uniform numbers, arm by arm; rewards are 0 or 1."""
    coins = {"ours": random.Random(4), "theirs": random.Random(4)}

    def bernoulli(arm: str, t: int) -> float:
        return float(random.Random(f"{arm} {t}").random() < RATES[arm])

    monkeypatch.setattr(
        Thompson,
        "draw",
        lambda self, successes, failures: [
            float(beta.ppf(coins["ours"].random(), s, f)) for s, f in zip(successes, failures, strict=True)
        ],
    )
    monkeypatch.setattr(
        proba.Beta, "sample", lambda self: float(beta.ppf(coins["theirs"].random(), self.alpha, self.beta))
    )
    policy, mine = (
        river.ThompsonSampling(reward_obj=proba.Beta()),
        bandit_of("thompson:rounds_per_reward=1", ARMS, **PAPER),
    )
    for t, arm in enumerate(ARMS):
        policy.update(arm, bernoulli(arm, -1 - t))
        mine.update(t, record(arm, bernoulli(arm, -1 - t)))
    assert ours("", bernoulli, mine) == theirs(policy, bernoulli)
