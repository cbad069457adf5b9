"""CF on a Markov toy with real rounds: unbiased over windows, whoever drafts; two simpler ways are not."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from records import played

from metasd.bandits.rewards import Counterfactual
from metasd.core import TokenScores

N = 3
P = ((0.7, 0.2, 0.1), (0.1, 0.3, 0.6), (0.3, 0.3, 0.4))
Q = {
    "near": ((0.6, 0.3, 0.1), (0.2, 0.3, 0.5), (0.1, 0.4, 0.5)),
    "far": ((0.1, 0.1, 0.8), (0.5, 0.4, 0.1), (0.1, 0.8, 0.1)),
}
Law = Sequence[float]


def shared(p: Law, q: Law) -> list[float]:
    return [min(a, b) for a, b in zip(p, q, strict=True)]


def stationary() -> list[float]:
    law = [1 / 3] * 3
    for _ in range(500):
        law = [sum(law[i] * P[i][j] for i in range(3)) for j in range(3)]
    return law


def exact(arm: str) -> float:
    """E[N_acc] of a block of N from the target's stationary law, by enumeration."""

    def expected(state: int, left: int) -> float:
        if not left:
            return 0.0
        return sum(mass * (1 + expected(token, left - 1)) for token, mass in enumerate(shared(P[state], Q[arm][state])))

    return sum(weight * expected(state, N) for state, weight in enumerate(stationary()))


def speculate(state: int, arm: str, coins: random.Random) -> list[int]:
    """The tokens of one round: accepted drafts, and one more."""
    tokens: list[int] = []
    for _ in range(N):
        p, q = P[state], Q[arm][state]
        token = coins.choices(range(3), q)[0]
        if coins.random() >= p[token] / q[token]:
            rest = [a - b for a, b in zip(p, shared(p, q), strict=True)]
            return [*tokens, coins.choices(range(3), rest)[0]]
        tokens.append(token)
        state = token
    return [*tokens, coins.choices(range(3), P[state])[0]]


def scores(state: int, tokens: Sequence[int], arm: str) -> TokenScores:
    ratio, overlap = [], []
    for token in tokens:
        p, q = P[state], Q[arm][state]
        ratio.append(min(1.0, q[token] / p[token]))
        overlap.append(sum(shared(p, q)))
        state = token
    return TokenScores(tuple(ratio), tuple(overlap))


def means(drafting: Sequence[str], rounds: int, way: str) -> dict[str, float]:
    """Mean CF of each arm where these draft in turn: over windows, from a round's own tokens, or without ratios."""
    coins, state, reward = random.Random(8), 0, Counterfactual(N)
    sums, counts = dict.fromkeys(Q, 0.0), dict.fromkeys(Q, 0.0)
    for t in range(rounds):
        tokens = speculate(state, drafting[t % len(drafting)], coins)
        told = {arm: scores(state, tokens, arm) for arm in Q}
        if way == "product":
            told = {arm: replace(each, ratio=each.overlap) for arm, each in told.items()}
        if way == "one round":
            for arm, each in told.items():
                value, reach = 0.0, 1.0
                for ratio, overlap in list(zip(each.ratio, each.overlap, strict=True))[:N]:
                    value, reach = value + reach * overlap, reach * ratio
                sums[arm] += value
                counts[arm] += 1
        else:
            record = replace(played("x", N, len(tokens) - 1), token_scores=told, num_draft_tokens=0)
            for arm, value, count in reward.observe(record):
                sums[arm] += count * value
                counts[arm] += count
        state = tokens[-1]
    return {arm: sums[arm] / counts[arm] for arm in Q}


@pytest.mark.parametrize("drafting", [("near",), ("far",), ("near", "far")])
def test_windows_are_unbiased_whoever_drafts(drafting: tuple[str, ...]) -> None:
    """40,000 rounds, about 80,000 windows of standard deviation 0.6, each of which shares tokens with two others:
    standard error below 0.004, so 0.02 fails by chance less than once in 10^5."""
    found = means(drafting, 40_000, "windows")
    for arm, value in found.items():
        assert value == pytest.approx(exact(arm), abs=0.02)


def test_a_rounds_own_tokens_are_biased() -> None:
    one, other = (means((arm,), 40_000, "one round") for arm in Q)
    assert max(abs(found["near"] - exact("near")) for found in (one, other)) > 0.1


def test_a_product_of_overlaps_is_biased() -> None:
    """By 3 % for the arm that is far from the target; a standard error is below 1 %."""
    assert abs(means(("near", "far"), 40_000, "product")["far"] / exact("far") - 1) > 0.02


def test_an_arm_that_was_not_asked_begins_anew() -> None:
    """Windows do not reach over tokens for which an arm has no scores."""
    reward = Counterfactual(2)
    asked = replace(played("x", 1, 0), num_draft_tokens=0, token_scores={"a": TokenScores((1.0,), (0.5,))})
    silent = replace(asked, token_scores={})
    assert reward.observe(asked) == []
    assert reward.observe(silent) == []
    assert reward.observe(asked) == []
    assert reward.observe(asked) == [("a", 1.0, 0.5)]


def test_who_drafts_and_is_not_asked_has_rao_blackwell() -> None:
    record = played("a", 3, 1)
    assert Counterfactual(3).observe(record) == [("a", record.num_expected_accepted, 1.0)]
