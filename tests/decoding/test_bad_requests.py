"""Prompts that cannot be decoded, and what breaks in the middle: after each the engine gives the right answer."""

import gc
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from toys import PROMPT, Replay, TableTarget, engine_of, lm, plain_greedy, toy_llama, toy_target, toy_tokenizer

from metasd import MetaSD, MetaSDError, SamplingParams, UsageError
from metasd.bandits import CostTable, Setting, make_reward
from metasd.bandits.fixed import Fixed
from metasd.config import EngineConfig
from metasd.core import Choice, Offer
from metasd.drafters import load_drafters
from metasd.drafters.lm import LMDrafter

SHORT = SamplingParams(max_new_tokens=12)


@pytest.fixture
def engine() -> MetaSD:
    target = toy_target()
    answer = plain_greedy(target.model, PROMPT, 40)
    return engine_of(target, ["ngram", Replay(target, answer, "liar", 3), lm(target, toy_llama(noise=0.01), "copy")])


def still_right(engine: MetaSD) -> None:
    assert engine.generate(PROMPT, SHORT).token_ids == plain_greedy(toy_llama(), PROMPT, 12)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "at least one token"),
        ([], "at least one token"),
        ([5] * 512, "prompt: expected fewer than 512 tokens, the target's context, got 512"),
        ([5, 320], r"token ids in \[0, 320\), got 320"),
        ([5, -1], r"token ids in \[0, 320\), got -1"),
        (["one", "two"], "batches are not supported yet, call once for each, got 2 prompts"),
        ([[1, 2], [3]], "batches"),
        ([{"role": "user", "content": "Hi"}], "no chat template"),
        ([1.5, 2.0], "got a list of float"),
        (torch.tensor([[1, 2]]), "prompt: expected a string, .*got Tensor"),
        (b"abc", "prompt: expected a string, .*got bytes"),
        (None, "got NoneType"),
        (5, "got int"),
    ],
)
def test_unusable_prompts(engine: MetaSD, prompt: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        engine.generate(prompt, SHORT)
    still_right(engine)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            SamplingParams(max_new_tokens=503),
            r"max_new_tokens: expected at most 502 \(the target's context holds 512 .*got 503",
        ),
        (SamplingParams(logprobs=321), "logprobs: expected at most 320"),
    ],
)
def test_parameters_that_the_target_cannot_serve(engine: MetaSD, params: SamplingParams, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        engine.generate(PROMPT, params)
    still_right(engine)


def test_chat_messages_without_their_keys() -> None:
    target = toy_target()
    tokenizer = toy_tokenizer()
    before = tokenizer.chat_template
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + m.content }}{{ raise_exception('no') if m.role == 'x' }}{% endfor %}"
    )
    try:
        assert target.encode([{"role": "user", "content": "Hi"}])
        for message in ({"role": "user"}, {"role": "user", "text": "Hi"}, {"a": "b", "c": "d"}):
            with pytest.raises(UsageError, match="'role' and 'content'"):
                target.encode([message])
        with pytest.raises(UsageError, match="chat template"):
            target.encode([{"role": "x", "content": "Hi"}])
    finally:
        tokenizer.chat_template = before


class Broken(RuntimeError):
    pass


def breaks_at(length: int) -> Any:
    def call(ids: torch.Tensor, scores: Any) -> Any:
        if ids.shape[1] >= len(PROMPT) + length:
            raise Broken
        return False if scores is None else scores

    return call


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("where", ["logits_processors", "stopping_criteria"])
def test_failures_of_callbacks_leave_no_trace(engine: MetaSD, where: str, length: int) -> None:
    for seed in (None, 1):
        params: dict[str, Any] = {where: [breaks_at(length)], "max_new_tokens": 20, "seed": seed, "temperature": 0.5}
        with pytest.raises(Broken):
            engine.generate(PROMPT, SamplingParams(**params))
        still_right(engine)


def test_failures_of_drafters_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    target = toy_target()
    copy = lm(target, toy_llama(noise=0.01), "copy")
    engine = engine_of(target, [copy], bandit="fixed")
    for name in ("draft", "commit", "rewind", "offer", "reset"):
        calls = []

        def fail(*arguments: Any, name: str = name, calls: list[int] = calls) -> Any:
            calls.append(1)
            if len(calls) > (name != "reset"):
                raise Broken
            return getattr(LMDrafter, name)(copy, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(copy, name, fail)
            with pytest.raises(Broken):
                engine.generate(PROMPT, SamplingParams(max_new_tokens=60))
        still_right(engine)


def test_a_failure_inside_the_targets_forward_pass(engine: MetaSD, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the layers have read the block then."""
    layer = engine.target.model.model.layers[1]
    with monkeypatch.context() as patch:
        patch.setattr(layer.mlp, "forward", breaks_at(0))
        with pytest.raises(TypeError):
            engine.generate(PROMPT, SHORT)
    still_right(engine)


def test_an_abandoned_stream_frees_the_engine(engine: MetaSD) -> None:
    for _ in engine.stream(PROMPT, SHORT):
        break
    still_right(engine)
    next(iter(engine.stream(PROMPT, SHORT)))
    gc.collect()
    still_right(engine)
    kept = engine.stream(PROMPT, SHORT)  # never read: nothing was started
    still_right(engine)
    assert "".join(kept) == engine.generate(PROMPT, SHORT).text


def test_a_stream_in_use_is_not_disturbed(engine: MetaSD) -> None:
    stream = engine.stream(PROMPT, SHORT)
    pieces = iter(stream)
    first = next(pieces)
    with pytest.raises(MetaSDError, match="busy: finish or close the open stream"):
        engine.generate(PROMPT, SHORT)
    assert first + "".join(pieces) == engine.generate(PROMPT, SHORT).text
    other = engine.stream(PROMPT, SHORT)
    held = iter(other)
    next(held)
    other.close()
    still_right(engine)
    with pytest.raises(UsageError, match="n: expected 1 for a stream"):
        engine.stream(PROMPT, SamplingParams(n=2))


def test_engines_that_share_a_target_take_turns(engine: MetaSD) -> None:
    """Catches two interleaved answers that write into one cache."""
    other = engine_of(engine.target, ["suffix"])
    pieces = iter(engine.stream(PROMPT, SHORT))
    text = next(pieces)
    with pytest.raises(MetaSDError, match="busy"):
        other.generate(PROMPT, SHORT)
    assert text + "".join(pieces) == other.generate(PROMPT, SHORT).text
    still_right(engine)


def test_a_bandit_of_ones_own_may_choose_only_what_is_offered() -> None:
    """A length beyond the offer would run a drafter past its own context, or draft past the end of the answer."""

    class Greedy(Fixed):
        def choose(self, available: Mapping[str, Offer]) -> Choice:
            return Choice("duplicate", 99)

    target = toy_target()
    drafters = load_drafters([lm(target, toy_llama(), "duplicate")], target)
    setting = Setting(tuple(drafters), make_reward("bd"), "tokens", 5, CostTable())
    engine = MetaSD(target, drafters, EngineConfig.build(bandit=Greedy(setting)))
    with pytest.raises(UsageError, match=r"bandit: expected a choice among .*'duplicate'.* got Choice"):
        engine.generate(PROMPT, SamplingParams(max_new_tokens=4))


def test_nan_logits_are_said_and_not_hidden() -> None:
    """A target whose row is NaN yields id 0 for good; without a word that looks like an answer."""
    target = TableTarget(torch.full((3, 3), torch.nan))
    engine = engine_of(target, ["ngram"])
    with pytest.warns(RuntimeWarning, match=r"NaN, \+inf or nothing to choose from in the logits of rounds 0, 1"):
        engine.generate([1], SamplingParams(max_new_tokens=3))


def test_a_drafter_of_another_target_is_refused() -> None:
    target, other = toy_target(), toy_target()
    with pytest.raises(UsageError, match="built for this target"):
        engine_of(target, [lm(other, toy_llama(), "stray")])


def test_two_models_of_one_folder_name_can_be_told_apart() -> None:
    target = toy_target()
    twins = [
        LMDrafter(target, f"{place}/model", name=name, model=toy_llama()) for place, name in (("a", ""), ("b", "other"))
    ]
    assert list(load_drafters(twins, target)) == ["model", "other", "null"]
