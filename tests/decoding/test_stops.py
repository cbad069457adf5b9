"""Where an answer ends: exactly where plain decoding ends it, whatever stands in the block behind that token.

The trick: a target that says a known text, and then any token, or any piece of the text, is declared the stop.
"""

from typing import Any

import pytest
import torch
from toys import PROMPT, Replay, ScriptTarget, engine_of, lm, plain_greedy, toy_llama, toy_target, toy_tokenizer

from metasd import MetaSD, SamplingParams
from metasd.metrics import GenerationResult
from metasd.stopping import Detokenizer

TEXT = "the cat sat; 你好 naïve 😀 the dog <x> stop here, 世界 the log."
K = 4


def script() -> list[int]:
    return list(toy_tokenizer()(TEXT)["input_ids"])


def scripted(eos: tuple[int, ...] = (), wrong_every: int = 0) -> MetaSD:
    """An engine whose target says TEXT and whose drafter drafts it in blocks of K."""
    target = ScriptTarget(script(), toy_tokenizer(), eos)
    drafter = Replay(target, script(), wrong_every=wrong_every)
    return engine_of(target, [drafter], bandit="fixed", num_draft_tokens=K)


def both(engine: MetaSD, prompt: Any, params: SamplingParams) -> GenerationResult:
    """The answer, after a check that the plain one is the same in every respect."""
    plain, result = engine.generate_plain(prompt, params), engine.generate(prompt, params)
    assert (result.token_ids, result.text, result.finish_reason) == (plain.token_ids, plain.text, plain.finish_reason)
    return result


def test_the_script_is_accepted_in_blocks() -> None:
    """Guards the suite: offsets below are offsets inside accepted blocks, and characters are split over tokens."""
    result = both(scripted(), [5], SamplingParams(max_new_tokens=len(script())))
    assert result.text == TEXT
    assert result.stats.acceptance_rate == 1
    assert any("\ufffd" in toy_tokenizer().decode([token]) for token in script())


@pytest.mark.parametrize("offset", range(14))
def test_row_1_eos_in_mid_block(offset: int) -> None:
    """Catches an answer that runs on behind an accepted end token, or loses it."""
    target = toy_target()
    answer = plain_greedy(target.model, PROMPT, 20)
    target.eos_token_ids = frozenset([answer[offset]])
    engine = engine_of(target, [Replay(target, answer)], bandit="fixed", num_draft_tokens=K)
    result = both(engine, PROMPT, SamplingParams(max_new_tokens=20))
    assert (result.token_ids, result.finish_reason) == (answer[: answer.index(answer[offset]) + 1], "stop")
    ignored = both(engine, PROMPT, SamplingParams(max_new_tokens=20, ignore_eos=True))
    assert (ignored.token_ids, ignored.finish_reason) == (answer, "length")


@pytest.mark.parametrize("wrong_every", [0, 3])
@pytest.mark.parametrize("size", [1, 2, 5, 11])
def test_row_2_stop_string_at_every_offset(size: int, wrong_every: int) -> None:
    """Catches a search that looks at one block only, or that starts too late; characters are split over tokens."""
    engine, tokens = scripted(wrong_every=wrong_every), script()
    for start in range(0, len(TEXT) - size, 1 if size == 1 else 2):
        stop = TEXT[start : start + size]
        result = both(engine, [5], SamplingParams(max_new_tokens=len(tokens), stop=[stop]))
        assert result.text == TEXT[: TEXT.index(stop)]
        assert result.finish_reason == "stop"
        # The answer ends at the first token with which the stop string is complete.
        texts = [toy_tokenizer().decode(tokens[:n]) for n in range(len(tokens) + 1)]
        assert result.token_ids == tokens[: next(n for n, text in enumerate(texts) if stop in text)]


def test_row_2_first_of_several_stop_strings() -> None:
    engine = scripted()
    result = both(engine, [5], SamplingParams(max_new_tokens=40, stop=["log", "dog", "the dog"]))
    assert result.text == TEXT[: TEXT.index("the dog")]
    assert both(engine, [5], SamplingParams(max_new_tokens=5, stop="never said")).finish_reason == "length"


def test_row_2_stop_before_the_rest_of_a_split_character() -> None:
    """A token with the end of the stop string and the first bytes of the next character already completes it."""
    pieces = Detokenizer(_BytesTokenizer())
    assert [pieces.push(token) for token in (b"a", b"S\xe4", b"\xbd", b"\xa0b")] == ["a", "S", "", "你b"]


class _BytesTokenizer:
    """A token is its bytes."""

    def decode(self, ids: list[bytes], **options: Any) -> str:
        return b"".join(ids).decode(errors="replace")


def test_row_2_special_token_as_stop_string() -> None:
    """A special token never shows in the text, so it must be found by its id."""
    tokens = script()
    target = ScriptTarget([*tokens[:6], 1, *tokens[6:]], toy_tokenizer())
    engine = engine_of(target, [Replay(target, target.script)], bandit="fixed", num_draft_tokens=K)
    result = both(engine, [5], SamplingParams(max_new_tokens=20, stop=["<user>"]))
    assert (result.token_ids, result.finish_reason) == ([*tokens[:6], 1], "stop")


@pytest.mark.parametrize("max_new_tokens", range(1, 12))
def test_row_3_stop_and_length_in_one_block(max_new_tokens: int) -> None:
    """ "stop" where the stop comes first or at the same token, else "length" with exactly max_new_tokens."""
    tokens = script()
    where = 6
    assert tokens.index(tokens[where]) == where
    result = both(scripted((tokens[where],)), [5], SamplingParams(max_new_tokens=max_new_tokens))
    if max_new_tokens > where:
        assert (len(result.token_ids), result.finish_reason) == (where + 1, "stop")
    else:
        assert (len(result.token_ids), result.finish_reason) == (max_new_tokens, "length")


@pytest.mark.parametrize("offset", range(1, 12))
def test_row_5_ids_text_and_logprobs_are_trimmed_together(offset: int) -> None:
    target = toy_target()
    answer = plain_greedy(target.model, PROMPT, 20)
    target.eos_token_ids = frozenset([answer[offset]])
    engine = engine_of(target, [Replay(target, answer)], bandit="fixed", num_draft_tokens=K)
    result = both(engine, PROMPT, SamplingParams(max_new_tokens=20, logprobs=1))
    assert result.logprobs is not None
    assert [entry.token_id for entry in result.logprobs] == result.token_ids
    assert result.text == toy_tokenizer().decode(result.token_ids, skip_special_tokens=True)
    assert sum(record.num_output_tokens for record in result.rounds) == len(result.token_ids)


@pytest.mark.parametrize("length", range(1, 13))
def test_row_6_criterion_in_mid_block(length: int) -> None:
    """Catches a criterion that is asked once a block: it would see several new tokens at once and stop too late."""
    seen: list[int] = []

    def criterion(input_ids: torch.Tensor, scores: Any) -> bool:
        seen.append(input_ids.shape[1])
        return input_ids.shape[1] >= 1 + length

    engine = scripted()
    result = engine.generate([5], SamplingParams(max_new_tokens=30, stopping_criteria=[criterion]))
    assert (len(result.token_ids), result.finish_reason) == (length, "stop")
    assert seen == list(range(2, 2 + length))
    both(engine, [5], SamplingParams(max_new_tokens=30, stopping_criteria=[criterion]))


def test_row_6_every_criterion_sees_every_token() -> None:
    """Also before min_new_tokens, which holds back end tokens and stop strings only."""
    counts = [0, 0]

    def criterion(index: int, limit: int) -> Any:
        def fires(input_ids: torch.Tensor, scores: Any) -> torch.Tensor:
            counts[index] += 1
            return torch.tensor([counts[index] >= limit])

        return fires

    params = SamplingParams(max_new_tokens=30, min_new_tokens=20, stopping_criteria=[criterion(0, 7), criterion(1, 9)])
    result = scripted().generate([5], params)
    assert len(result.token_ids) == 7
    assert counts == [7, 7]


@pytest.mark.parametrize("least", [0, 1, 5, 9, 13])
def test_no_stop_string_before_min_new_tokens(least: int) -> None:
    engine, tokens = scripted(), script()
    result = both(engine, [5], SamplingParams(max_new_tokens=len(tokens), min_new_tokens=least, stop=["t"]))
    texts = [toy_tokenizer().decode(tokens[:n]) for n in range(len(tokens) + 1)]
    length = next(n for n in range(max(least, 1), len(texts)) if "t" in texts[n][len(texts[n - 1]) :])
    assert len(result.token_ids) == length
    assert result.text == texts[length][: texts[length].index("t", len(texts[length - 1]))]


@pytest.mark.parametrize("stop", [(), ("stop",), ("世",), ("naïv", "ïve"), ("dog <x> st",)])
@pytest.mark.parametrize("wrong_every", [0, 3])
def test_row_24_stream_is_the_text(stop: tuple[str, ...], wrong_every: int) -> None:
    """Catches half characters in a piece, and pieces that a later stop string takes back."""
    params = SamplingParams(max_new_tokens=len(script()), stop=stop)
    engine = scripted(wrong_every=wrong_every)
    stream = engine.stream([5], params)
    pieces = list(stream)
    wanted = engine.generate([5], params)
    assert stream.result is not None
    assert "".join(pieces) == stream.result.text == wanted.text
    assert stream.result.token_ids == wanted.token_ids
    assert len(pieces) > 1
    assert "\ufffd" not in "".join(pieces)
    assert list(stream) == []
    assert stream.result is not None


def test_row_24_stream_of_random_bytes_is_the_text() -> None:
    """Random Llamas write broken UTF-8: replacement characters are held back, then given, never twice."""
    target = toy_target()
    engine = engine_of(target, [lm(target, toy_llama(noise=0.01), "copy"), "ngram"], bandit="round-robin")
    for length in (1, 7, 60):
        stream = engine.stream(PROMPT, SamplingParams(max_new_tokens=length))
        text = "".join(stream)
        assert stream.result is not None
        assert text == stream.result.text == toy_tokenizer().decode(stream.result.token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("max_new_tokens", [1, 9, 10, 30])
def test_row_25_usage_counts(max_new_tokens: int) -> None:
    """Catches a count of drafted or verified tokens where emitted ones are meant."""
    result = scripted((script()[11],)).generate([5, 6, 7], SamplingParams(max_new_tokens=max_new_tokens))
    assert result.stats.num_output_tokens == len(result.token_ids)
    assert result.stats.num_prompt_tokens == len(result.prompt_token_ids) == 3
