"""Rounds at fixed addresses: the same tokens as the host's loop, one read a round, nothing that a graph cannot hold.

Without a GPU the very same functions run one after the other; what capture would forbid is watched for.
"""

import copy
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from capture_watch import FakeMethods, Watch
from made_drafters import NAMES, made
from test_duplicate import Script
from torch._subclasses.fake_tensor import FakeTensorMode
from toys import PROMPT, Replay, engine_of, lm, plain_greedy, toy_llama, toy_target, toy_tokenizer

from metasd import MetaSD, SamplingParams
from metasd.core import SamplingLaw, UsageError
from metasd.drafters import Drafter
from metasd.drafters.eagle.drafter import EagleDrafter
from metasd.drafters.eagle.head import HeadCache
from metasd.drafters.lm import LMDrafter
from metasd.graph import Graphs
from metasd.metrics import GenerationResult
from metasd.pool import Pool
from metasd.static_loop import StaticLoop
from metasd.target import Target

LENGTH = 80
K = 4


def near_ties(engine: MetaSD, params: SamplingParams) -> int:
    """Where plain decoding was nearly undecided, a forward pass of another size may decide otherwise."""
    result = engine.generate_plain(PROMPT, SamplingParams(max_new_tokens=params.max_new_tokens, logprobs=2))
    assert result.logprobs is not None
    return sum(abs(max(entry.top.values()) - min(entry.top.values())) < 1e-4 for entry in result.logprobs)


def arms_of(target: Target) -> list[str | Drafter]:
    answer = plain_greedy(target.model, PROMPT, LENGTH)
    return [
        "ngram", "suffix", lm(target, toy_llama(noise=0.03), "close"), lm(target, toy_llama(noise=1.0), "far"),
        lm(target, target.model, "twin"), Replay(target, answer, "liar", 3), made("eagle", target),
        made("eagle-3", target), made("ngram-lm", target), made("lm-even", target), made("early-exit", target),
    ]  # fmt: skip


WALK = [("close", K), ("eagle", 3), ("far", 2), ("null", 0), ("eagle-3", K), ("liar", K), ("close", 1), ("twin", 8),
        ("ngram-lm", 3), ("lm-even", 2), ("eagle", K), ("eagle", 1), ("early-exit", 2), ("ngram", 3), ("suffix", 2),
        *[("null", 0)] * 5, ("eagle", 5), *[("liar", 8)] * 4, ("far", 3), ("eagle-3", 1)]  # fmt: skip


def play(loop: str, params: SamplingParams, prompt: list[int] = PROMPT, **options: Any) -> GenerationResult:
    target = toy_target()
    script = Script(*options.pop("walk", WALK))
    engine = engine_of(target, arms_of(target), bandit=script, num_draft_tokens="auto", loop=loop, **options)
    return engine.generate(prompt, params)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("budget", [None, 300_000])
def test_greedy_answers_are_those_of_plain_decoding(delay: int, budget: int | None) -> None:
    target = toy_target()
    result = play("static", SamplingParams(max_new_tokens=LENGTH), delay=delay, kv_budget=budget)
    assert result.token_ids == plain_greedy(target.model, PROMPT, LENGTH)
    assert len(result.stats.arms) >= 10


@pytest.mark.parametrize("length", [1, 2, 3, 17])
@pytest.mark.parametrize("delay", [0, 1])
def test_the_length_limit_is_exact(length: int, delay: int) -> None:
    target = toy_target()
    result = play("static", SamplingParams(max_new_tokens=length), delay=delay)
    assert result.token_ids == plain_greedy(target.model, PROMPT, length)
    assert result.finish_reason == "length"


@pytest.mark.parametrize("at", [0, 1, 2, 5, 11])
@pytest.mark.parametrize("delay", [0, 1])
def test_stops_are_exact(at: int, delay: int) -> None:
    """A stop in mid-block, while the next draft is on its way; the engine is as good as new afterwards."""
    answer = plain_greedy(toy_llama(), PROMPT, LENGTH)
    first = answer.index(answer[at])
    target = toy_target(eos=[answer[at]])
    engine = engine_of(target, arms_of(target), bandit=Script(("twin", 8)), num_draft_tokens="auto", loop="static",
                       delay=delay)  # fmt: skip
    for _ in range(2):
        result = engine.generate(PROMPT, SamplingParams(max_new_tokens=LENGTH))
        assert result.finish_reason == "stop"
        assert result.token_ids == answer[: first + 1]


SAMPLED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.9},
    "top-p": {"temperature": 1.2, "top_p": 0.8},
    "top-k": {"temperature": 0.7, "top_k": 20, "min_p": 0.01},
}


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("rule", ["token", "block"])
def test_sampled_answers_are_those_of_the_host_loop(name: str, rule: str) -> None:
    """Coins are addressed, so both loops draw the same tokens. Catches a stale law, cutoff, nonce, step or feature."""
    params = SamplingParams(max_new_tokens=LENGTH, seed=3, **SAMPLED[name])
    wanted = play("host", params, rule=rule)
    have = play("static", params, rule=rule, delay=0)
    assert have.token_ids == wanted.token_ids
    assert [record.arm for record in have.rounds] == [record.arm for record in wanted.rounds]
    for mine, theirs in zip(have.rounds, wanted.rounds, strict=True):
        assert mine.num_accepted_tokens == theirs.num_accepted_tokens
        assert mine.tv_distance == pytest.approx(theirs.tv_distance, abs=1e-4)
        assert mine.bd == pytest.approx(theirs.bd, abs=1e-4)


@pytest.mark.parametrize("name", SAMPLED)
def test_one_loop_serves_every_law_and_prompt(name: str) -> None:
    """Catches state that a request leaves behind for the next one."""
    target = toy_target()
    engine = engine_of(target, arms_of(target), bandit=Script(*WALK), num_draft_tokens="auto", loop="static")
    other = SamplingParams(max_new_tokens=30, seed=1, temperature=0.5, top_p=0.5)
    params = SamplingParams(max_new_tokens=LENGTH, seed=3, **SAMPLED[name])
    first = engine.generate(PROMPT, params)
    engine.generate([*PROMPT, 5, 6, 7] * 9, other)
    engine.generate(PROMPT, SamplingParams(max_new_tokens=9))
    assert engine.generate(PROMPT, params).token_ids == first.token_ids


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("delay", [0, 1])
def test_each_drafter_alone(name: str, delay: int) -> None:
    """With the bandit of a user, who knows of no delay."""
    target = toy_target()
    drafter = made(name, target)
    engine = engine_of(target, [drafter], bandit="ucb", num_draft_tokens=3, loop="static", delay=delay)
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=LENGTH))
    assert result.token_ids == plain_greedy(target.model, PROMPT, LENGTH)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_duplicate_is_accepted_whole(delay: int) -> None:
    """Over 200 rounds with switches, gaps longer than every width, and a budget that makes two arms share a slot."""
    target = toy_target(context_length=4096)
    arms = [lm(target, target.model, "twin"), lm(target, toy_llama(noise=1.0, context_length=4096), "far")]
    walk = [("twin", K), ("far", 2), ("twin", 1), ("twin", 3), *[("null", 0)] * 30, ("twin", 2), ("far", 8)]
    size = 2048 + 8 + 1
    engine = engine_of(target, arms, bandit=Script(*walk), num_draft_tokens="auto", loop="static", delay=delay,
                       max_context=2048, kv_budget=size * 2 * 2 * 2 * 12 * 4)  # fmt: skip
    params = SamplingParams(max_new_tokens=500)
    result = engine.generate([*PROMPT, *range(2, 300)], params)
    twin = [record for record in result.rounds if record.arm == "twin"]
    missed = sum(record.num_accepted_tokens < record.num_draft_tokens for record in twin)
    assert len(twin) > 40
    assert missed <= 1
    assert engine.pool.residency.num_bytes_copied > 0


@contextmanager
def watched() -> Iterator[list[Hashable]]:
    """Every function of a graph runs twice: once to warm up, and once under watch, as capture has it."""
    keys: list[Hashable] = []

    def watching(self: Graphs, key: Hashable, function: Callable[[], None]) -> None:
        if key not in keys:
            before = [tensor.clone() for tensor in self._moving]
            function()
            for tensor, value in zip(self._moving, before, strict=True):
                tensor.copy_(value)
            keys.append(key)
        with Watch():
            function()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graphs, "run", watching)
        yield keys


@pytest.mark.parametrize("name", ["greedy", *SAMPLED])
def test_graphs_read_nothing_from_the_device(name: str) -> None:
    """In draft steps, catch-up and verification, at one and at K + 1 positions, for every kind of draft; and what a
    graph's function leaves behind is all in what is taken back after warming up."""
    params = SamplingParams(max_new_tokens=LENGTH, seed=3, **SAMPLED.get(name, {}))
    wanted = play("static", params)
    with watched() as keys:
        assert play("static", params).token_ids == wanted.token_ids
    kinds = {key[0] for key in keys if isinstance(key, tuple)}
    assert kinds == {"draft", "ingest", "verify"}


def test_addresses_and_coins_over_100_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that crosses graphs stays where it is, and each round has a nonce of its own."""
    target = toy_target()
    engine = engine_of(target, arms_of(target), bandit=Script(*WALK), num_draft_tokens="auto", loop="static")
    seen: set[tuple[int, ...]] = set()
    nonces: list[int] = []
    read = StaticLoop.read

    def look(self: StaticLoop, num_draft_tokens: int) -> Any:
        sequence = self.sequence
        tensors = [*sequence.moving, sequence.seed, *sequence.features.values()]
        for drafter in engine.pool.drafters.values():
            if drafter.static is not None:
                tensors += [drafter.static.drawing.logits, drafter.static.drawing.cutoff]
            if drafter.cache is not None and drafter.cache.slot is not None:
                tensors.append(drafter.cache.slot.planes)
        seen.add(tuple(tensor.data_ptr() for tensor in tensors))
        nonces.append(int(sequence.nonce))
        return read(self, num_draft_tokens)

    monkeypatch.setattr(StaticLoop, "read", look)
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=300, temperature=1.0, seed=1))
    assert len(result.rounds) >= 100
    assert len(seen) == 1
    assert nonces == list(range(1, len(result.rounds) + 1))


def test_what_nobody_timed_is_no_number() -> None:
    """Forward passes inside static rounds have no clock: the engine's share is unknown there, not all of it."""
    params = SamplingParams(max_new_tokens=20)
    assert play("static", params).stats.total.engine_seconds is None
    share = play("host", params).stats.total
    assert share.engine_seconds is not None
    assert 0 < share.engine_seconds < share.seconds


def test_what_is_not_possible_takes_the_host_loop() -> None:
    """Penalties, processors, a prompt of one token: the answer is right all the same."""
    target = toy_target()
    engine = engine_of(target, ["ngram", lm(target, toy_llama(noise=0.03), "close")], loop="static")
    for params in (SamplingParams(max_new_tokens=20, repetition_penalty=1.3), SamplingParams(max_new_tokens=20)):
        for prompt in (PROMPT, [9]):
            result = engine.generate(prompt, params)
            assert result.token_ids == engine_of(target, ["null"]).generate(prompt, params).token_ids


def test_log_probabilities_are_those_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_new_tokens=LENGTH, logprobs=3)
    have, wanted = play("static", params, delay=1), play("host", params)
    assert have.logprobs is not None
    assert wanted.logprobs is not None
    for mine, theirs in zip(have.logprobs, wanted.logprobs, strict=True):
        assert mine.token_id == theirs.token_id
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)


def on_fake_gpu(model: Any) -> Any:
    """The model with parameters and buffers that are fake CUDA tensors; to be called inside a FakeTensorMode."""
    for module in model.modules():
        for kind in (module._parameters, module._buffers):
            for name, tensor in kind.items():
                if tensor is not None:
                    fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
                    kind[name] = torch.nn.Parameter(fake, requires_grad=False) if kind is module._parameters else fake
    return model


@pytest.mark.parametrize("law", [SamplingLaw(0.0), SamplingLaw(0.8), SamplingLaw(0.8, top_k=9, top_p=0.9)])
def test_the_graphs_functions_stay_on_the_gpu(law: SamplingLaw, monkeypatch: pytest.MonkeyPatch) -> None:
    """On fake CUDA tensors, without a GPU: catches a tensor that is made on the CPU, and one whose size is data."""
    models = [copy.deepcopy(toy_llama(seed)) for seed in (5, 1)]
    head = made("eagle", toy_target())
    assert isinstance(head, EagleDrafter)
    network = copy.deepcopy(head._head)
    monkeypatch.setattr(Graphs, "run", lambda self, key, function: function())
    with FakeTensorMode(allow_non_fake_inputs=True), FakeMethods(), torch.inference_mode():
        target = Target(on_fake_gpu(models[0]), toy_tokenizer())
        assert target.device.type == "cuda"
        target.reserve(600)
        eagle = copy.copy(head)
        eagle.target, eagle._head = target, on_fake_gpu(network)
        eagle._matrix, eagle._bias = torch.empty(head._matrix.shape, device="cuda"), None
        eagle._map = torch.empty(eagle._matrix.shape[:1], dtype=torch.int64, device="cuda")
        eagle._embedding, eagle.cache = torch.empty(head._embedding.shape, device="cuda"), HeadCache(eagle._head)
        pool = Pool({"lm": LMDrafter(target, "lm", model=on_fake_gpu(models[1])), "eagle": eagle}, 600)
        pool.residency.reset()
        loop = StaticLoop(target, pool, 600, "token")
        loop._law.set(law)
        loop._most = 300
        target._tap = target._tap_on(pool.feature_layers)
        loop.verify("lm", 0)
        for arm in ("lm", "eagle"):
            static = pool.drafters[arm].static
            assert static is not None
            static.drawing.law.set(law)
            loop.catch_up(arm, 60)
            loop.draft(arm, K)
            loop.verify(arm, K)
            assert loop.logits.shape == (1, K + 1, 320)
            assert loop.logits.device.type == "cuda"
        assert all(tensor.device.type == "cuda" for tensor in loop.sequence.moving)


@pytest.mark.parametrize(("name", "value"), [("loop", "fast"), ("delay", 2), ("delay", "late"), ("catch_up", "now")])
def test_bad_options(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name}: expected one of"):
        engine_of(toy_target(), ["ngram"], **{name: value})
