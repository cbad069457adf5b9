"""Rows 26 and 27: a duplicate of the target is accepted whole in every round, also after rejections and after being
switched away and back. A cache that is rewound or caught up wrong costs acceptance, and nothing else shows it."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from toys import PROMPT, Forgetful, Replay, TableTarget, engine_of, lm, plain_greedy, toy_llama, toy_target

from metasd import SamplingParams
from metasd.bandits import Context
from metasd.core import Choice, Coins, Draft, Offer, Request, RoundRecord, SamplingLaw
from metasd.drafters.lm import LMDrafter
from metasd.metrics import GenerationResult
from metasd.target import Target

K = 4


class Script(Forgetful):
    """A bandit that plays a fixed sequence of (arm, length), over and over."""

    def __init__(self, *choices: tuple[str, int]) -> None:
        self.choices, self.turn = choices, -1

    def select(self, available: Mapping[str, Offer]) -> Choice:
        self.turn += 1
        arm, length = self.choices[self.turn % len(self.choices)]
        return Choice(arm, min(length, available[arm].max_num_draft_tokens)) if arm in available else Choice("null", 0)

    def start(self, reproducible: bool = False, context: Context = Context()) -> None:  # noqa: B008
        self.turn = -1

    def update(self, round_id: int, feedback: RoundRecord) -> None:
        pass


SCRIPTS = {
    "alone": [("twin", K)],
    "any length": [("twin", length) for length in (1, 5, 2, 7, 3)],
    "rejected between": [("twin", K), ("liar", K)],
    "away for long": [("twin", K), *[("null", 0)] * 9, ("twin", 2), ("liar", 5), ("far", 3), ("null", 0)],
    "rejected at once": [("far", 6), ("twin", K), ("far", 1), ("twin", 1)],
    "null in turn": [("twin", 1), ("null", 0)],
}


def record_with(script: str, num_rounds: int, params: dict[str, Any], target: Target | None = None) -> GenerationResult:
    target = target or toy_target(context_length=4096)
    answer = [9] if params.get("temperature") else plain_greedy(target.model, PROMPT, 60)
    model = target.model
    far = lm(target, toy_llama(noise=1.0, context_length=4096), "far")
    drafters = [lm(target, model, "twin"), Replay(target, answer, "liar", 2), far]
    engine = engine_of(target, drafters, bandit=Script(*SCRIPTS[script]))
    return engine.generate(PROMPT, SamplingParams(max_new_tokens=num_rounds * (K + 1), **params))


@pytest.mark.parametrize("script", SCRIPTS)
def test_row_26_a_duplicate_is_accepted_whole_greedy(script: str) -> None:
    """200 rounds. A near-tie may break either way between one position and K + 1, so a miss must be one."""
    result = record_with(script, 200, {"logprobs": 2})
    twin = [record for record in result.rounds if record.arm == "twin"]
    assert sum(len(SCRIPTS[script]) for _ in twin) > 100
    missed = [record for record in twin if record.num_accepted_tokens < record.num_draft_tokens]
    assert result.logprobs is not None
    margins = [abs(max(entry.top.values()) - min(entry.top.values())) for entry in result.logprobs]
    assert len(missed) <= sum(margin < 1e-4 for margin in margins)


@pytest.mark.parametrize("script", SCRIPTS)
def test_row_26_a_duplicate_is_accepted_when_sampling(script: str) -> None:
    result = record_with(script, 100, {"temperature": 0.8, "top_p": 0.9, "seed": 1})
    twin = [record for record in result.rounds if record.arm == "twin"]
    drafted = sum(record.num_draft_tokens for record in twin)
    assert sum(record.num_accepted_tokens for record in twin) >= 0.999 * drafted
    assert max(max(record.tv_distance) for record in twin if record.tv_distance) < 1e-3


@pytest.mark.slow
def test_row_26_a_duplicate_of_the_demo_target() -> None:
    target = Target.load("demo")
    prompt = target.encode("The three largest cities of France are")
    engine = engine_of(target, [lm(target, target.model, "twin"), "ngram"], bandit=Script(("twin", K), ("null", 0)))
    result = engine.generate(prompt, SamplingParams(max_new_tokens=24, ignore_eos=True, logprobs=2))
    twin = result.stats.arms["twin"]
    assert result.logprobs is not None
    assert min(abs(max(entry.top.values()) - min(entry.top.values())) for entry in result.logprobs) > 1e-3
    assert twin.num_accepted_tokens == twin.num_draft_tokens >= 15


@pytest.mark.parametrize("seen", [1, 2, 3, 8])
@pytest.mark.parametrize("drafts_before", [0, 1, 3])
def test_row_27_catch_up_after_a_gap_equals_fresh(drafts_before: int, seen: int) -> None:
    """Every row of its law is what a drafter gives that read the whole text at once."""
    target = toy_target()
    text = PROMPT + plain_greedy(target.model, PROMPT, 20)
    coins = Coins(torch.tensor([3]), nonce=5)

    def fresh() -> LMDrafter:
        return lm(target, toy_llama(noise=0.1), "copy")

    def request(tokens: list[int]) -> Request:
        return Request(tokens, SamplingLaw(1.0), 100)

    with torch.inference_mode():
        late, early = fresh(), fresh()
        late.reset(request(text[:seen]))
        late.commit([])
        if drafts_before:
            late.draft(drafts_before, Coins(torch.tensor([1]), nonce=0))
            late.rewind(drafts_before)
        late.commit(text[seen:])
        early.reset(request(text))
        early.commit([])
        a, b = late.draft(K, coins), early.draft(K, coins)
    assert a is not None
    assert b is not None
    assert a.logits is not None
    assert b.logits is not None
    assert a.token_ids.tolist() == b.token_ids.tolist()
    torch.testing.assert_close(a.logits, b.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("script", SCRIPTS)
def test_row_26_drafts_behind_rejections_equal_fresh(script: str) -> None:
    """A duplicate is never rejected, so a noisy copy: each of its drafts is its own greedy continuation of the
    committed text, and it never reads a token again that it has read and that was accepted."""
    target, model = toy_target(), toy_llama(noise=0.03)
    copy = lm(target, model, "twin")
    drafts: list[list[int]] = []
    fed: list[int] = []
    draft, feed = copy.draft, copy.cache.feed

    def keep(length: int, coins: Coins) -> Draft | None:
        made = draft(length, coins)
        assert made is not None
        drafts.append(made.token_ids[0].tolist())
        return made

    copy.draft = keep
    copy.cache.feed = lambda ids, n: (fed.append(ids.shape[1]), feed(ids, n))[1]
    answer = plain_greedy(target.model, PROMPT, 60)
    far = lm(target, toy_llama(noise=1.0), "far")
    engine = engine_of(target, [copy, Replay(target, answer, "liar", 2), far], bandit=Script(*SCRIPTS[script]))
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=60))
    text, num_rejected, wasted = list(PROMPT), 0, 0
    for record in result.rounds:
        if record.arm == "twin":
            assert drafts.pop(0) == plain_greedy(model, text, record.num_draft_tokens)
            num_rejected += record.num_draft_tokens - record.num_accepted_tokens
            wasted += max(0, record.num_draft_tokens - record.num_accepted_tokens - 1)
        text += result.token_ids[len(text) - len(PROMPT) :][: record.num_output_tokens]
    assert text == PROMPT + answer
    assert num_rejected > 0
    assert sum(fed) <= len(text) + wasted


def test_row_27_catch_up_reads_each_token_once() -> None:
    """Catches a drafter that reads its whole prefix again at each switch: right, but slow."""
    target = toy_target()
    twin = lm(target, target.model, "twin")
    fed: list[int] = []
    feed = twin.cache.feed
    twin.cache.feed = lambda ids, n: (fed.append(ids.shape[1]), feed(ids, n))[1]
    engine = engine_of(target, [twin], bandit=Script(("twin", 3), ("null", 0), ("null", 0)))
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=60))
    assert sum(fed) <= len(PROMPT) + len(result.token_ids)
    assert result.stats.num_switches > 10


def test_a_drafter_with_a_shorter_context_sleeps_beyond_it() -> None:
    """Catches a drafter that judges its room by the tokens that it has seen: while it is away, it falls behind."""
    target = toy_target()
    short = lm(target, toy_llama(noise=0.01, context_length=24), "short")
    most: list[int] = []
    feed = short.cache.feed
    short.cache.feed = lambda ids, n: (feed(ids, n), most.append(short.cache.num_tokens))[0]
    choices = [("short", K), *[("null", 0)] * 11, *[("short", K)] * 9]
    engine = engine_of(target, [short], bandit=Script(*choices))
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=40))
    assert result.token_ids == plain_greedy(target.model, PROMPT, 40)
    assert max(most) <= 24
    assert engine.generate([*PROMPT, *PROMPT, *PROMPT], SamplingParams(max_new_tokens=9)).stats.arms.keys() == {"null"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_16_padded_vocabularies(temperature: float) -> None:
    """A drafter whose vocabulary is padded further must not draft what the target cannot read; one whose vocabulary is
    shorter cannot follow a text with such a token."""
    target = TableTarget(torch.randn(300, 300, generator=torch.Generator().manual_seed(0)))
    params = SamplingParams(max_new_tokens=40, temperature=temperature, seed=1)
    for width in (320, 280):
        model = toy_llama(seed=1, vocab_size=width)
        engine = engine_of(target, [lm(target, model, "padded")], bandit="fixed")
        for prompt in ([1, 2, 3], [1, 299, 3]):
            result = engine.generate(prompt, params)
            assert len(result.token_ids) == 40
            if temperature == 0:
                assert result.token_ids == engine.generate_plain(prompt, params).token_ids
    assert "padded" not in result.stats.arms
