"""On a GPU: rounds that are replayed graphs give the tokens of the host's loop."""

import copy
from typing import Any

import pytest
import torch
from made_drafters import eagle
from test_duplicate import Script
from toys import PROMPT, engine_of, toy_llama, toy_tokenizer

from metasd import MetaSD, SamplingParams
from metasd.drafters.lm import LMDrafter
from metasd.target import Target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WALK = [("close", 4), ("eagle", 3), ("far", 2), ("null", 0), ("twin", 4), ("suffix", 4), ("ngram", 2), ("close", 1),
        ("twin", 8), ("eagle", 4), *[("null", 0)] * 3, ("far", 5), *[("suffix", 6)] * 5, ("twin", 2)]  # fmt: skip
LAWS: dict[str, dict[str, Any]] = {
    "greedy": {}, "temperature": {"temperature": 0.8}, "cutoffs": {"temperature": 1.0, "top_p": 0.9, "top_k": 30}
}  # fmt: skip


def on_gpu(**options: Any) -> Any:
    return copy.deepcopy(toy_llama(context_length=4096, **options)).cuda()


@pytest.fixture(scope="module")
def target() -> Target:
    torch.backends.cuda.matmul.allow_tf32 = False
    return Target(on_gpu(), toy_tokenizer())


def engine(target: Target, loop: str, delay: int, **options: Any) -> MetaSD:
    def own(name: str, **noise: float) -> LMDrafter:
        return LMDrafter(target, name, model=on_gpu(**noise))

    arms = [own("close", noise=0.03), own("far", noise=1.0), LMDrafter(target, "twin", model=target.model), "ngram",
            "suffix", eagle(target)]  # fmt: skip
    return engine_of(target, arms, bandit=Script(*WALK), num_draft_tokens="auto", loop=loop, delay=delay, **options)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("share", [False, True])
def test_captured_equals_eager_over_500_rounds(target: Target, name: str, delay: int, share: bool) -> None:
    """With a switch nearly each round; with a budget an arm's cache moves over the bus. A near-tie may break either way
    between forward passes of different sizes; the toy models have none here."""
    params = SamplingParams(max_new_tokens=1200, seed=7, **LAWS[name])
    budget = 2 * (4096 + 9) * 2 * 2 * 2 * 12 * 4 if share else None
    captured, eager = engine(target, "static", delay, kv_budget=budget), engine(target, "host", 0)
    have, want = captured.generate(PROMPT, params), eager.generate(PROMPT, params)
    assert have.token_ids == want.token_ids
    assert len(have.rounds) >= 500
    assert len(captured._loops[False].graphs) > 10
    assert captured.generate(PROMPT, params).token_ids == want.token_ids  # from graphs alone


def test_a_duplicate_is_accepted_whole(target: Target) -> None:
    arms = [LMDrafter(target, "twin", model=target.model)]
    made = engine_of(target, arms, bandit=Script(("twin", 4)), num_draft_tokens="auto", loop="static", delay=1)
    result = made.generate(PROMPT, SamplingParams(max_new_tokens=500))
    assert sum(record.num_accepted_tokens < record.num_draft_tokens for record in result.rounds[:-1]) <= 1
