"""Row 15: drafters that do not pay are dropped within a few rounds and the loss is bounded; row 31: what the numbers of
an answer mean."""

import itertools

import pytest
import torch
from torch import Tensor
from toys import (
    PROMPT,
    Asleep,
    Clock,
    Replay,
    ScriptTarget,
    TableTarget,
    engine_of,
    install_clock,
    plain_greedy,
    toy_target,
    toy_tokenizer,
)

from metasd import MetaSD, SamplingParams
from metasd.bandits import REWARDS
from metasd.core import Coins, Draft, RoundRecord
from metasd.metrics import summarize

FORWARD = 1.0  # seconds of a forward pass of the target, whatever its width


class TimedTarget(TableTarget):
    """Each forward pass moves the clock."""

    clock: Clock

    def score(self, token_ids: Tensor) -> Tensor:
        self.clock.now += FORWARD * (1 + 0.05 * (token_ids.shape[1] - 1))
        return super().score(token_ids)


class TimedReplay(Replay):
    """Each draft token moves the clock; from some token of the answer on, it may be right or wrong all the time."""

    def __init__(self, target: TimedTarget, name: str, seconds: float, wrong_every: int) -> None:
        answer = [0]
        for _ in range(999):
            answer.append(int(target.table[answer[-1]].argmax()))
        super().__init__(target, answer[1:], name, wrong_every)
        self._clock, self._seconds = target.clock, seconds

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        self._clock.now += self._seconds * num_draft_tokens
        return super().draft(num_draft_tokens, coins)


def timed(monkeypatch: pytest.MonkeyPatch) -> TimedTarget:
    target = TimedTarget(torch.randn(50, 50, generator=torch.Generator().manual_seed(1)))
    target.clock = install_clock(monkeypatch, Clock())
    return target


def seconds_of(engine: MetaSD, num_tokens: int) -> tuple[float, list[RoundRecord]]:
    result = engine.generate([0], SamplingParams(max_new_tokens=num_tokens))
    return sum(record.seconds for record in result.rounds), result.rounds


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("length", [4, "auto"])
def test_row_15_null_arm_wins_over_a_liar(length: int | str, reward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An always wrong drafter at half the target's cost a token: at most 5 of the first 20 rounds, 25 % of the time."""
    target = timed(monkeypatch)
    liar = TimedReplay(target, "liar", 0.5, wrong_every=1)
    engine = engine_of(target, [liar], num_draft_tokens=length, reward=reward)
    seconds, rounds = seconds_of(engine, 100)
    played = [record.arm == "liar" for record in rounds]
    assert 1 <= sum(played[:20]) <= 5
    assert seconds <= 1.25 * 100 * FORWARD
    seconds, _ = seconds_of(engine, 100)
    assert seconds <= 1.12 * 100 * FORWARD  # the second request knows already


@pytest.mark.parametrize("reward", REWARDS)
def test_row_15_a_good_drafter_is_found_among_bad_ones(reward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = timed(monkeypatch)
    bad = [TimedReplay(target, f"bad{index}", 0.3, wrong_every=1) for index in range(3)]
    good = TimedReplay(target, "good", 0.02, wrong_every=0)
    engine = engine_of(target, [*bad, good], reward=reward, num_draft_tokens="auto")
    seconds, rounds = seconds_of(engine, 300)
    assert seconds < 0.4 * 300 * FORWARD
    assert sum(record.arm == "good" for record in rounds) > 0.7 * len(rounds)


def test_row_15_a_pool_that_sleeps_costs_nothing() -> None:
    target = TableTarget(torch.randn(50, 50, generator=torch.Generator().manual_seed(1)))
    engine = engine_of(target, [Asleep(target)], num_draft_tokens=4)
    engine.generate([0], SamplingParams(max_new_tokens=30))
    assert target.num_forwards == 30


def test_row_15_always_the_same_drafter_never_gives_up() -> None:
    """bandit="fixed" with a free block length: a first rejection must not turn it into plain decoding for good."""
    target = toy_target()
    answer = plain_greedy(target.model, PROMPT, 60)
    late = Replay(target, [*[1] * 5, *answer[5:]], "late")
    engine = engine_of(target, [late], bandit="fixed", num_draft_tokens="auto")
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=60))
    assert result.token_ids == answer
    assert result.stats.arms["late"].num_accepted_tokens > 20


def test_a_clock_that_stands_still() -> None:
    """A coarse clock reads zero seconds; a cost of zero would be divided by."""
    target = toy_target()
    with pytest.MonkeyPatch.context() as patch:
        install_clock(patch, Clock())
        engine = engine_of(target, ["ngram", "suffix"], num_draft_tokens="auto")
        result = engine.generate(PROMPT, SamplingParams(max_new_tokens=20))
    assert result.token_ids == plain_greedy(target.model, PROMPT, 20)


def test_row_31_metric_definitions() -> None:
    """By hand: a liar at every 3rd token, blocks of 4, so rounds accept 2, 2, 2, ... and emit 3."""
    target = ScriptTarget(range(2, 40), toy_tokenizer())
    engine = engine_of(target, [Replay(target, target.script, "liar", 3)], bandit="fixed", num_draft_tokens=4)
    result = engine.generate([1], SamplingParams(max_new_tokens=18))
    stats = result.stats
    assert [record.num_accepted_tokens for record in result.rounds] == [2] * 6
    assert [record.num_draft_tokens for record in result.rounds] == [4] * 5 + [2]
    assert stats.acceptance_length == 3.0  # tokens a round, the target's own included
    assert stats.acceptance_rate == 12 / 22
    assert stats.total.acceptance_by_position == (1.0, 1.0, 0.0, 0.0)
    assert stats.total.block_divergence == pytest.approx((5 * 0.75 + 1.0) / 6)  # the 4th is right, though unreachable
    assert stats.num_output_tokens == 18
    assert stats.num_switches == 0
    assert [record.be for record in result.rounds] == [0.5] * 5 + [1.0]
    assert stats.tokens_per_second == pytest.approx(18 / sum(record.seconds for record in result.rounds))
    assert stats.arms == {"liar": stats.total}


def test_row_31_rounds_without_a_draft_count_for_the_length_only() -> None:
    target = toy_target()
    result = engine_of(target, [Asleep(target)]).generate(PROMPT, SamplingParams(max_new_tokens=7))
    assert (result.stats.acceptance_length, result.stats.acceptance_rate) == (1.0, 0.0)
    assert (result.stats.total.acceptance_by_position, result.stats.total.block_divergence) == ((), 0.0)
    assert summarize([]).acceptance_length == 0.0


def test_row_31_by_position_counts_blocks_that_reach_so_far() -> None:
    target = ScriptTarget(range(2, 40), toy_tokenizer())
    engine = engine_of(target, [Replay(target, target.script)], bandit="fixed", num_draft_tokens=4)
    result = engine.generate([1], SamplingParams(max_new_tokens=13))
    assert [record.num_draft_tokens for record in result.rounds] == [4, 4, 2]
    assert result.stats.total.acceptance_by_position == (1.0, 1.0, 1.0, 1.0)


def test_row_31_switches() -> None:
    target = toy_target()
    answer = plain_greedy(target.model, PROMPT, 24)
    drafters = [Replay(target, answer, "a", 2), Replay(target, answer, "b", 2)]
    result = engine_of(target, drafters, bandit="round-robin").generate(PROMPT, SamplingParams(max_new_tokens=20))
    arms = [record.arm for record in result.rounds]
    assert result.stats.num_switches == sum(a != b for a, b in itertools.pairwise(arms)) >= 8
