"""Penalties, minimum length and custom processors see, for each row, the tokens that plain decoding shows them; and
log-probabilities are the target's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import (
    PROMPT,
    Asleep,
    Replay,
    ScriptTarget,
    engine_of,
    lm,
    plain_greedy,
    toy_llama,
    toy_target,
    toy_tokenizer,
)
from transformers import MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

from metasd import SamplingParams, UsageError
from metasd.drafters import Drafter
from metasd.target import Target

LENGTH = 60
EOS = 23  # the toy's first greedy token


def counted(ids: Tensor, scores: Tensor) -> Tensor:
    """How often each token stands in the answer."""
    return torch.bincount(ids[0, len(PROMPT) :], minlength=scores.shape[1]).to(scores)


def frequency(ids: Tensor, scores: Tensor) -> Tensor:
    return scores - 1.3 * counted(ids, scores)


def presence(ids: Tensor, scores: Tensor) -> Tensor:
    return scores - 1.7 * (counted(ids, scores) > 0)


CASES: dict[str, tuple[dict[str, Any], list[Callable[..., Tensor]]]] = {
    "repetition": ({"repetition_penalty": 1.8}, [RepetitionPenaltyLogitsProcessor(1.8)]),
    "repetition reward": ({"repetition_penalty": 0.7}, [RepetitionPenaltyLogitsProcessor(0.7)]),
    "frequency": ({"frequency_penalty": 1.3}, [frequency]),
    "presence": ({"presence_penalty": 1.7}, [presence]),
    "min_new_tokens": ({"min_new_tokens": 40}, [MinNewTokensLengthLogitsProcessor(len(PROMPT), 40, [EOS])]),
    "all": (
        {"repetition_penalty": 1.2, "frequency_penalty": 1.3, "presence_penalty": 1.7, "min_new_tokens": 50},
        [
            RepetitionPenaltyLogitsProcessor(1.2),
            frequency,
            presence,
            MinNewTokensLengthLogitsProcessor(len(PROMPT), 50, [EOS]),
        ],
    ),
}


def cut(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def pool(target: Target, answer: list[int]) -> list[str | Drafter]:
    return [Replay(target, answer, "liar", 5), "suffix", lm(target, toy_llama(noise=0.01), "copy")]


@pytest.mark.parametrize("k", [2, 8, 48])
@pytest.mark.parametrize("case", CASES)
def test_row_7_penalties_equal_plain(case: str, k: int) -> None:
    """Catches rows in a block that are processed with the tokens before the block only."""
    options, processors = CASES[case]
    target = toy_target(eos=[EOS] if "min_new_tokens" in options else [])
    wanted = plain_greedy(target.model, PROMPT, LENGTH, processors)
    wanted = cut(wanted) if target.eos_token_ids else wanted
    assert wanted != plain_greedy(target.model, PROMPT, LENGTH)
    engine = engine_of(target, pool(target, wanted), bandit="round-robin", num_draft_tokens=k)
    params = SamplingParams(max_new_tokens=LENGTH, **options)
    for result in (engine.generate(PROMPT, params), engine.generate_plain(PROMPT, params)):
        assert result.token_ids == wanted
    assert engine.generate(PROMPT, params).stats.total.num_accepted_tokens > 5


@pytest.mark.parametrize("k", [2, 8])
def test_row_7_processors_of_transformers_equal_plain(k: int) -> None:
    """Stateless ones are called for all rows of a block; their input must not be shared between rows."""
    processors = [RepetitionPenaltyLogitsProcessor(1.8), MinNewTokensLengthLogitsProcessor(len(PROMPT), 40, [EOS])]
    target = toy_target(eos=[EOS])
    wanted = cut(plain_greedy(target.model, PROMPT, LENGTH, processors))
    engine = engine_of(target, pool(target, wanted), bandit="round-robin", num_draft_tokens=k)
    params = SamplingParams(max_new_tokens=LENGTH, logits_processors=processors)
    assert engine.generate(PROMPT, params).token_ids == wanted


class Counter:
    """Forbids, at its n-th call, what depends on n; remembers what it saw."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(ids[0].tolist())
        scores = scores.clone()
        scores[:, len(self.seen) % 3 :: 3] = -torch.inf
        return scores


@pytest.mark.parametrize("k", [2, 8, 48])
def test_row_8_stateful_processor_follows_committed_tokens(k: int) -> None:
    """Called once for each emitted token, with exactly the tokens before it, though drafts are rejected."""
    plain, own = Counter(), Counter()
    target = toy_target()
    wanted = plain_greedy(target.model, PROMPT, LENGTH, [plain])
    engine = engine_of(target, pool(target, wanted), bandit="round-robin", num_draft_tokens=k)
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=LENGTH, logits_processors=[own]))
    assert result.token_ids == wanted
    assert own.seen == plain.seen
    assert 5 < result.stats.total.num_accepted_tokens < result.stats.total.num_draft_tokens


@pytest.mark.parametrize("at", range(4, 14))
def test_row_8_minimum_length_beside_a_stateful_processor(at: int) -> None:
    """The end token is forbidden for exactly `at` tokens, also where the block is verified position by position."""
    target = toy_target()
    answer = plain_greedy(target.model, PROMPT, LENGTH, [Counter()])
    target.eos_token_ids = frozenset([answer[at]])
    forbid = MinNewTokensLengthLogitsProcessor(len(PROMPT), at, [answer[at]])
    wanted = plain_greedy(target.model, PROMPT, LENGTH, [forbid, Counter()])
    wanted = wanted[: wanted.index(answer[at]) + 1]
    engine = engine_of(target, [Replay(target, wanted)], bandit="fixed", num_draft_tokens=8)
    params = SamplingParams(max_new_tokens=LENGTH, min_new_tokens=at, logits_processors=[Counter()])
    assert engine.generate(PROMPT, params).token_ids == wanted


def test_row_8_stateful_processor_before_a_stop() -> None:
    """Up to the token that ends the answer in mid-block, the calls are those of plain decoding."""
    target = toy_target()
    plain, own = Counter(), Counter()
    answer = plain_greedy(target.model, PROMPT, LENGTH, [plain])
    target.eos_token_ids = frozenset([answer[7]])
    engine = engine_of(target, [Replay(target, answer)], bandit="fixed", num_draft_tokens=8)
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=LENGTH, logits_processors=[own]))
    length = answer.index(answer[7]) + 1
    assert result.token_ids == answer[:length]
    assert own.seen[:length] == plain.seen[:length]


def test_row_8_stateful_processors_and_the_block_rule_do_not_go_together() -> None:
    engine = engine_of(toy_target(), ["ngram"], rule="block")
    with pytest.raises(UsageError, match="logits_processors"):
        engine.generate(PROMPT, SamplingParams(logits_processors=[Counter()]))
    declared = Counter()
    declared.is_stateless = True
    engine.generate(PROMPT, SamplingParams(max_new_tokens=3, logits_processors=[declared]))


def test_row_8_stepwise_verification_draws_what_the_block_draws() -> None:
    """The same coins at the same positions: a processor that does nothing changes no token, whatever it claims."""

    def nothing(ids: Tensor, scores: Tensor) -> Tensor:
        return scores

    target = toy_target()
    engine = engine_of(target, [lm(target, toy_llama(noise=0.1), "copy")], bandit="fixed")
    params: dict[str, Any] = {"max_new_tokens": LENGTH, "temperature": 0.9, "top_p": 0.8, "seed": 3}
    block = engine.generate(PROMPT, SamplingParams(**params))
    stepwise = engine.generate(PROMPT, SamplingParams(**params, logits_processors=[nothing]))
    assert stepwise.token_ids == block.token_ids
    pairs = zip(stepwise.rounds, block.rounds, strict=True)
    for a, b in pairs:
        assert a.num_accepted_tokens == b.num_accepted_tokens
        # Behind the first rejection nothing is scored; a position that was reached counts with certainty.
        scored = min(a.num_accepted_tokens + 1, a.num_draft_tokens)
        assert a.tv_distance == pytest.approx(b.tv_distance[:scored], abs=1e-6)
        assert a.num_expected_accepted == pytest.approx(scored - sum(a.tv_distance), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", ["liar", "copy", "asleep"])
def test_row_10_logprobs_are_the_targets(name: str, temperature: float) -> None:
    """Against one forward pass over the whole text: catches rows that are off by one behind a rejection."""
    target = toy_target()
    answer = plain_greedy(target.model, PROMPT, 40)
    drafter = {
        "liar": Replay(target, answer, "liar", 3),
        "copy": lm(target, toy_llama(noise=0.03), "copy"),
        "asleep": Asleep(target),
    }[name]
    engine = engine_of(target, [drafter], bandit="fixed")
    params = SamplingParams(max_new_tokens=40, temperature=temperature, top_k=9, logprobs=4, seed=1)
    result = engine.generate(PROMPT, params)
    with torch.inference_mode():
        full = target.model(torch.tensor([PROMPT + result.token_ids])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    assert result.logprobs is not None
    assert len(result.logprobs) == len(result.token_ids)
    for row, token, entry in zip(full, result.token_ids, result.logprobs, strict=True):
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(row[token].item(), abs=1e-4)
        best = row.topk(4)
        assert list(entry.top) == best.indices.tolist()
        assert list(entry.top.values()) == pytest.approx(best.values.tolist(), abs=1e-4)
    bare = engine.generate(PROMPT, SamplingParams(max_new_tokens=3, logprobs=0))
    assert bare.logprobs is not None
    assert [entry.top for entry in bare.logprobs] == [{}] * 3
    assert engine.generate(PROMPT, SamplingParams(max_new_tokens=3)).logprobs is None


def test_a_stateful_processor_is_not_called_behind_the_end() -> None:
    """Row 8: an accepted block that runs past the end; plain decoding would have stopped calling there."""
    script = list(range(10, 30))
    end = script[6]
    calls = []

    def note(input_ids: Tensor, scores: Tensor) -> Tensor:
        calls.append(input_ids.shape[1])
        return scores

    target = ScriptTarget(script, toy_tokenizer(), eos=[end])
    engine = engine_of(target, [Replay(target, script)], bandit="fixed:arm=oracle")
    result = engine.generate([1], SamplingParams(max_new_tokens=20, logits_processors=[note]))
    assert result.token_ids == script[:7]
    assert calls == list(range(1, 8))  # one call for each emitted token, the last one for the end token
