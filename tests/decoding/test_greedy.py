"""Greedy answers are token for token those of plain decoding: every drafter, bandit, reward and rule. Errors of caches,
positions and commits show here first."""

import functools
from typing import Any

import pytest
import torch
from bandit_specs import specs
from made_drafters import NAMES, made
from toys import PROMPT, Asleep, Replay, engine_of, lm, plain_greedy, toy_llama, toy_target

from metasd import SamplingParams
from metasd.bandits import REWARDS
from metasd.drafters import Drafter
from metasd.target import Target

LENGTH = 60
GREEDY = SamplingParams(max_new_tokens=LENGTH)


@functools.cache
def answer(seed: int = 5) -> list[int]:
    return plain_greedy(toy_llama(seed), PROMPT, LENGTH)


def noisy(target: Target, noise: float) -> Drafter:
    return lm(target, toy_llama(noise=noise), f"noise{noise}")


MAKERS: dict[str, Any] = {
    "ngram": lambda target: "ngram",
    "suffix": lambda target: "suffix",
    "null": lambda target: "null",
    "lm": lambda target: noisy(target, 0.01),
    "lm-even": lambda target: made("lm-even", target),
    "eagle": lambda target: made("eagle", target),
    "eagle-3": lambda target: made("eagle-3", target),
    "ngram-lm": lambda target: made("ngram-lm", target),
    "early-exit": lambda target: made("early-exit", target),
    "copy with noise 0.001": lambda target: noisy(target, 0.001),
    "copy with noise 1": lambda target: noisy(target, 1.0),
    "oracle": lambda target: Replay(target, answer()),
    "liar at every 2nd": lambda target: Replay(target, answer(), "liar", 2),
    "liar at every 3rd": lambda target: Replay(target, answer(), "liar", 3),
    "liar always": lambda target: Replay(target, answer(), "liar", 1),
    "asleep": lambda target: Asleep(target),
    "offers and drafts nothing": lambda target: Asleep(target, offers=True),
}


def everything(target: Target) -> list[str | Drafter]:
    return [
        "ngram",
        "suffix",
        noisy(target, 0.01),
        noisy(target, 1.0),
        Replay(target, answer(), "liar", 3),
        made("eagle", target),
    ]


def test_the_toy_answer_is_no_cycle_and_has_margins() -> None:
    """Guards the suite itself: a constant answer, or ties, would let broken caches pass."""
    tokens = torch.tensor([PROMPT + answer()])
    with torch.inference_mode():
        best = toy_llama()(tokens).logits[0, len(PROMPT) - 1 : -1].topk(2).values
    assert len(set(answer())) > LENGTH // 2
    assert (best[:, 0] - best[:, 1]).min() > 1e-3


def test_every_registered_drafter_is_covered() -> None:
    assert set(NAMES) <= set(MAKERS)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("length", [1, 5, "auto"])
@pytest.mark.parametrize("name", MAKERS)
def test_greedy_equals_plain_for_each_drafter(name: str, length: int | str, rule: str) -> None:
    target = toy_target()
    engine = engine_of(target, [MAKERS[name](target)], bandit="fixed", num_draft_tokens=length, rule=rule)
    assert engine.generate(PROMPT, GREEDY).token_ids == answer()


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("bandit", [*specs("suffix"), "ucb for tokens"])
def test_greedy_equals_plain_for_each_bandit(bandit: str, reward: str, rule: str) -> None:
    """A pool that switches between right, wrong and noisy drafters; the second request meets what the first left."""
    target = toy_target()
    name, _, objective = bandit.partition(" for ")
    options = {"objective": objective or "speed", "reward": reward, "rule": rule, "num_draft_tokens": 4}
    engine = engine_of(target, everything(target), bandit=name, **options)
    for _ in range(2):
        result = engine.generate(PROMPT, GREEDY)
        assert result.token_ids == answer()
    if bandit in ("random", "round-robin"):
        assert result.stats.num_switches > 5


@pytest.mark.parametrize("preset", ["metasd-paper", None])
def test_greedy_equals_transformers_generate(preset: str | None) -> None:
    target = toy_target()
    options: dict[str, Any] = {"preset": preset} if preset else {"num_draft_tokens": "auto"}
    result = engine_of(target, everything(target), **options).generate(PROMPT, GREEDY)
    tokens = torch.tensor([PROMPT])
    with torch.inference_mode():
        theirs = target.model.generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=LENGTH, eos_token_id=None
        )
    assert result.token_ids == theirs[0, len(PROMPT) :].tolist()


def test_plain_through_the_loop_equals_plain() -> None:
    target = toy_target()
    result = engine_of(target, everything(target)).generate_plain(PROMPT, GREEDY)
    assert result.token_ids == answer()
    assert {record.arm for record in result.rounds} == {"null"}


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_prompts(length: int) -> None:
    """A prompt of one token leaves every cache empty at the first round."""
    target = toy_target()
    wanted = plain_greedy(target.model, PROMPT[:length], 30)
    for drafter in ("ngram", "suffix", noisy(target, 0.01)):
        engine = engine_of(target, [drafter], bandit="fixed")
        assert engine.generate(PROMPT[:length], SamplingParams(max_new_tokens=30)).token_ids == wanted


@pytest.mark.parametrize("max_new_tokens", [1, 2, 5, 6, 7])
def test_length_limit_is_exact(max_new_tokens: int) -> None:
    target = toy_target()
    engine = engine_of(target, [Replay(target, answer())], bandit="fixed")
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=max_new_tokens))
    assert (result.token_ids, result.finish_reason) == (answer()[:max_new_tokens], "length")


def test_answer_may_fill_the_context() -> None:
    """A block that reaches beyond the last position would read a position that the model does not have."""
    target = toy_target(context_length=len(PROMPT) + 30)
    engine = engine_of(target, [Replay(target, answer()), "suffix"], bandit="round-robin", num_draft_tokens=7)
    highest: list[int] = []
    score, cache = target.score, target._cache
    target.score = lambda ids: (highest.append(cache.num_tokens + ids.shape[1]), score(ids))[1]
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=30))
    assert result.token_ids == answer()[:30]
    assert max(highest) <= target.context_length


def test_n_answers() -> None:
    """Row 33: n = 3 gives three answers; greedy ones agree, drawn ones differ."""
    target = toy_target()
    engine = engine_of(target, everything(target), bandit="round-robin")
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=20, n=3))
    assert [each.token_ids for each in (result, *result.alternatives)] == [answer()[:20]] * 3
    drawn = engine.generate(PROMPT, SamplingParams(max_new_tokens=20, n=3, temperature=1.0, seed=1))
    assert len({tuple(each.token_ids) for each in (drawn, *drawn.alternatives)}) == 3
    assert len(engine.generate_plain(PROMPT, SamplingParams(max_new_tokens=5, n=3)).alternatives) == 2


def test_row_scoring_gives_the_very_logits_of_plain_decoding() -> None:
    """scoring="row": bit for bit the same rows, also behind rejections, so no tie can break differently."""
    rows: dict[str, list[torch.Tensor]] = {"plain": [], "row": []}
    for name, kept in rows.items():
        target = toy_target(scoring="row")
        engine = engine_of(target, [noisy(target, 0.03)], bandit="fixed", scoring="row")
        score = target.score
        target.score = lambda ids, score=score, kept=kept: (kept.append(score(ids)), kept[-1])[1]
        decode = engine.generate_plain if name == "plain" else engine.generate
        result = decode(PROMPT, GREEDY)
        assert result.token_ids == answer()
        accepted = [record.num_accepted_tokens for record in result.rounds]
        rows[name] = [row[0, k] for row, count in zip(kept, accepted, strict=True) for k in range(count + 1)]
        if name == "row":
            assert 0 < sum(accepted) < sum(record.num_draft_tokens for record in result.rounds)
    assert all(torch.equal(a, b) for a, b in zip(rows["plain"], rows["row"], strict=True))
