"""Rewards, and what they say about acceptance, against the formulas of their definitions."""

import itertools
import math
import random

import pytest
from records import offer, played

from metasd.bandits import REWARDS, make_reward
from metasd.bandits.lengths import Hazards
from metasd.core import Position

BE, BD, RB = make_reward("be"), make_reward("bd"), make_reward("rb")
RATES = [0.0, 0.3, 0.7, 0.95]
LENGTHS = [1, 2, 5, 8]


def test_values_by_hand() -> None:
    record = played("a", 4, 2, tv=[0.1, 0.2, 0.6, 0.5], accept=[1.0, 0.5, 0.25, 1.0])
    assert BE.value(record) == 2 / 4
    assert BD.value(record) == pytest.approx((0.9 + 0.8 + 0.4 + 0.5) / 4)
    assert RB.value(record) == pytest.approx(0.9 + 1.0 * 0.8 + 0.5 * 0.4 + 0.5 * 0.25 * 0.5)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rate", RATES)
def test_tokens_are_what_the_mean_promises(rate: float, length: int) -> None:
    """Each reward's mean under a stationary acceptance rate, turned into accepted tokens, gives a + a^2 + ... + a^N."""
    wanted = sum(rate**k for k in range(1, length + 1))
    mean_be = (1 - rate**length) / (length * (1 - rate)) * rate
    assert BE.tokens(mean_be, length) == pytest.approx(wanted)
    assert BD.tokens(rate, length) == pytest.approx(wanted)
    assert RB.tokens(wanted, length) == pytest.approx(wanted)


def test_tokens_at_the_edges() -> None:
    assert BD.tokens(1.0, 5) == 5.0
    assert BD.tokens(1.4, 5) == 5.0  # an optimistic mean is no more than certain acceptance
    assert BD.tokens(1 - 1e-7, 5) == pytest.approx(5, abs=1e-5)
    assert RB.tokens(9.0, 5) == 5.0


@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_evidence_is_right_on_average(rate: float) -> None:
    """Greedy rounds with independent matches, enumerated: reach-weighted acceptance is the rate, for every reward."""
    length = 4
    for reward in map(make_reward, REWARDS):
        sums = [[0.0, 0.0] for _ in range(length)]
        for matches in itertools.product([True, False], repeat=length):
            weight = math.prod(rate if match else 1 - rate for match in matches)
            accepted = next((k for k, match in enumerate(matches) if not match), length)
            record = played("a", length, accepted, tv=[0.0 if match else 1.0 for match in matches])
            for k, evidence in enumerate(reward.evidence(record)):
                sums[k][0] += weight * evidence[0]
                sums[k][1] += weight * evidence[0] * evidence[1]
        for reach, accept in sums:
            assert accept / reach == pytest.approx(rate)


def test_evidence_ends_at_the_first_rejection_where_acceptance_is_counted() -> None:
    record = played("a", 4, 1)
    assert [tuple(entry) for entry in BE.evidence(record)] == [(1.0, 1.0), (1.0, 0.0)]
    assert [tuple(entry) for entry in RB.evidence(record)] == [(1.0, 1.0), (1.0, 0.0)]
    assert [tuple(entry) for entry in BE.evidence(played("a", 2, 2))] == [(1.0, 1.0)] * 2
    record = played("a", 3, 0, tv=[0.5, 0.1, 0.2], accept=[0.4, 1.0, 1.0])
    assert [tuple(entry) for entry in RB.evidence(record)] == [(1.0, 0.5), (0.4, 0.9), (0.4, 0.8)]


def test_rao_blackwell_has_the_mean_of_the_count_and_less_variance() -> None:
    """Blocks of 3 from stationary laws p and q on two tokens: E[RB] = E[N_acc]; a reward that forgot the a_j fails."""
    p, q = (0.7, 0.3), (0.4, 0.6)
    tv = 0.3
    generator = random.Random(1)
    counts, rewards = [], []
    for _ in range(20000):
        accept = [min(1.0, p[x] / q[x]) for x in (int(generator.random() < q[1]) for _ in range(3))]
        count = next((k for k, a in enumerate(accept) if generator.random() >= a), 3)
        counts.append(count)
        rewards.append(RB.value(played("a", 3, count, tv=[tv] * 3, accept=accept)))
    exact = sum((1 - tv) ** k for k in (1, 2, 3))
    assert sum(rewards) / len(rewards) == pytest.approx(exact, abs=0.02)
    assert sum(counts) / len(counts) == pytest.approx(exact, abs=0.05)
    spread = [sum((x - exact) ** 2 for x in values) for values in (rewards, counts)]
    assert spread[0] < 0.4 * spread[1]


# ---- acceptance by position, and block lengths ----


def test_hazards_weigh_evidence_by_reach() -> None:
    hazards = Hazards()
    positions = offer(2, prior=0.5, weight=2.0).positions
    assert hazards.accept("a", positions[0]) == 0.5
    hazards.add("a", positions, [(1.0, 1.0), (0.25, 0.0)])
    assert hazards.accept("a", positions[0]) == pytest.approx((1 + 2 * 0.5) / (1 + 2))
    assert hazards.accept("a", positions[1]) == pytest.approx((0 + 2 * 0.5) / (0.25 + 2))
    assert hazards.accept("b", positions[0]) == 0.5
    expected = hazards.expected_tokens("a", positions)
    assert expected == pytest.approx([0.0, 2 / 3, 2 / 3 + 2 / 3 * (1 / 2.25)])
    hazards.scale(0.5)
    assert hazards.accept("a", positions[0]) == pytest.approx((0.5 + 1.0) / (0.5 + 2))


def test_positions_with_one_key_share_what_is_learned() -> None:
    hazards = Hazards()
    position = Position("match4", 0.5, 1.0)
    hazards.add("a", (position, position), [(1.0, 1.0), (1.0, 1.0)])
    assert hazards.accept("a", Position("match4", 0.9, 0.0)) == pytest.approx(1.0)


@pytest.mark.parametrize("draft", [0.0, 0.05, 0.2, 0.5, 2.0])
@pytest.mark.parametrize("rate", [0.2, 0.6, 0.9])
def test_best_length_is_the_argmax(rate: float, draft: float) -> None:
    expected = [sum(rate**k for k in range(1, n + 1)) for n in range(9)]
    verify = [1 + 0.02 * n for n in range(9)]
    catch_up = 0.1
    seconds = [verify[n] + n * draft + catch_up * (n > 0) for n in range(9)]
    speed = [(1 + expected[n]) / seconds[n] for n in range(9)]
    for least in (0, 1, 3):
        wanted = least + speed[least:].index(max(speed[least:]))
        found = Hazards().best_length("a", offer(8, prior=rate).positions, 1.0, draft, catch_up, verify, least)
        assert found == (wanted, pytest.approx(expected[wanted]), pytest.approx(seconds[wanted]))


def test_best_length_prefers_the_shorter_among_ties() -> None:
    assert Hazards().best_length("a", offer(2, prior=0.0).positions, 1.0, 0.0, 0.0, [1.0] * 3, 0)[0] == 0
    assert Hazards().best_length("a", (), 1.0, 0.0, 0.0, [1.0], 0) == (0, 0.0, 1.0)


def test_following_emitted_tokens_is_evidence_weighted_by_reach() -> None:
    """The block goes on with the first token by 0.5, and not with the second: the third position is never reached."""
    hazards, positions = Hazards(), offer(3).positions
    assert hazards.follow("a", positions, 1.0, [0.5, 0.0, 1.0], [0.9, 0.4, 1.0], 2.0) == (2, 0.0)
    assert hazards.state() == {"a": {"all": [3.0, 2.2], "depth0": [2.0, 1.8], "depth1": [1.0, 0.4]}}
    assert hazards.follow("b", positions, 1.0, [1.0], [0.9], 1.0) == (1, 1.0)
    assert hazards.follow("b", positions[1:], 1.0, [0.25], [0.8], 1.0) == (1, 0.25)
    assert hazards.state()["b"] == {"all": [2.0, 0.9 + 0.8], "depth0": [1.0, 0.9], "depth1": [1.0, 0.8]}
