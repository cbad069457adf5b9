"""Caches in slots: park and activate behind the back of a drafter, shared memory, budgets, addresses."""

import itertools
from typing import Any

import pytest
import torch
from test_duplicate import Script
from toys import PROMPT, Replay, engine_of, lm, plain_greedy, toy_llama, toy_target

from metasd import MetaSD, SamplingParams
from metasd.core import MetaSDError, UsageError
from metasd.slots import CacheShape, Residency, Slot, SlotCache, fingerprint_of

K = 4
SHAPE = CacheShape(2, 2, 12, torch.float32, torch.device("cpu"))  # of the toy Llama
TOKEN = SHAPE.bytes_per_token


class Writer(SlotCache):
    """A cache whose states of a token are a number that only this writer has for that token at that place."""

    def __init__(self, name: str, shape: CacheShape = SHAPE) -> None:
        super().__init__(shape, name)
        self.text: list[float] = []

    def append(self, values: list[float]) -> None:
        slot = self.ready(len(values))
        slot.planes[:, self.num_tokens : self.num_tokens + len(values)] = torch.tensor(values)[:, None]
        self.num_tokens += len(values)
        self.text += values

    def take_back(self, count: int) -> None:
        self.rewind(count)
        del self.text[len(self.text) - count :]

    def is_right(self) -> bool:
        assert self.slot is not None
        assert self.num_tokens == len(self.text)
        wanted = torch.tensor(self.text)[:, None].expand(-1, self.shape.head_dim)
        return all(torch.equal(plane[: self.num_tokens], wanted) for plane in self.slot.planes)


def fingerprint(num_tokens: int) -> bytes:
    return fingerprint_of(range(num_tokens))


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
@pytest.mark.parametrize("num_slots", [1, 2])
def test_any_walk_keeps_every_cache(page_size: int, num_slots: int) -> None:
    """Three caches in one or two slots, 300 turns of appending and taking back: each offset in a page comes. Catches a
    page that is copied too little, one that counts as current after its tokens were replaced, a page given twice."""
    generator = torch.Generator().manual_seed(page_size)

    def number(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    writers = {name: Writer(name) for name in "abc"}
    residency = Residency(writers, 400, num_slots * 400 * TOKEN, page_size)
    fresh = itertools.count()
    for sequence in range(3):
        residency.reset()
        for writer in writers.values():
            writer.text.clear()
        for _ in range(100):
            writer = writers["abc"[number(3)]]
            residency.bring(writer.name, fingerprint)
            assert writer.is_right(), sequence
            writer.take_back(min(number(6), writer.num_tokens))
            writer.append([float(next(fresh)) for _ in range(min(number(12), 400 - writer.num_tokens))])
    assert residency.num_bytes_copied > 0


def test_with_room_for_all_nothing_is_copied() -> None:
    for budget in (None, 3 * 100 * TOKEN):
        writers = {name: Writer(name) for name in "abc"}
        residency = Residency(writers, 100, budget)
        residency.reset()
        for name in "abcab":
            assert residency.bring(name, fingerprint) == 0
            writers[name].append([1.0, 2.0])
        assert residency.num_bytes_copied == 0


def test_parking_again_copies_what_is_new() -> None:
    """Catches a swap that copies the whole prefix each time: the way out needs only what the pages lack."""
    writers = {name: Writer(name) for name in "ab"}
    residency = Residency(writers, 100, 100 * TOKEN, 16)
    residency.reset()
    residency.bring("a", fingerprint)
    writers["a"].append([float(i) for i in range(50)])
    assert residency.bring("b", fingerprint) == 50 * TOKEN
    assert residency.bring("a", fingerprint) == 50 * TOKEN  # b has nothing, a comes back
    writers["a"].append([7.0])
    assert residency.bring("b", fingerprint) == TOKEN
    residency.bring("a", fingerprint)
    writers["a"].take_back(3)
    writers["a"].append([8.0, 9.0])
    assert residency.bring("b", fingerprint) == 2 * TOKEN
    residency.bring("a", fingerprint)
    assert writers["a"].is_right()


def test_the_largest_have_slots_of_their_own() -> None:
    large, small = SHAPE, CacheShape(1, 2, 12, torch.float32, torch.device("cpu"))
    writers = {
        "s1": Writer("s1", small),
        "l1": Writer("l1", large),
        "s2": Writer("s2", small),
        "l2": Writer("l2", large),
    }
    residency = Residency(writers, 100, 100 * (2 * large.bytes_per_token + small.bytes_per_token))
    residency.reset()
    for name in ("l1", "l2", "s1"):
        residency.bring(name, fingerprint)
        writers[name].append([1.0])
    assert residency.num_bytes_copied == 0
    assert residency.bring("s2", fingerprint) == small.bytes_per_token
    assert writers["l1"].is_right()
    assert writers["l2"].is_right()


def test_another_context_is_refused() -> None:
    """Catches the silent loss of acceptance that a cache of other tokens means (vllm#47930)."""
    writers = {name: Writer(name) for name in "ab"}
    residency = Residency(writers, 100, 100 * TOKEN)
    residency.reset()
    residency.bring("a", fingerprint)
    writers["a"].append([1.0, 2.0])
    residency.bring("b", fingerprint)
    with pytest.raises(MetaSDError, match="a: the cache that was parked is of another context"):
        residency.bring("a", lambda num_tokens: fingerprint_of(range(1, num_tokens + 1)))


def test_a_cache_that_was_filled_while_away_is_refused() -> None:
    writers = {name: Writer(name) for name in "ab"}
    residency = Residency(writers, 100, 100 * TOKEN)
    residency.reset()
    residency.bring("a", fingerprint)
    writers["b"].append([1.0])
    with pytest.raises(MetaSDError, match="b: it has filled its cache without being active"):
        residency.bring("b", fingerprint)


def test_a_budget_too_small_names_the_drafter_and_the_bytes() -> None:
    target = toy_target()
    drafters = ["ngram", lm(target, toy_llama(noise=0.1), "noisy")]
    room = (512 + 5 + 1) * TOKEN
    with pytest.raises(
        UsageError, match=f"kv_budget: expected at least {room} bytes, for noisy alone with 518 tokens, got 9"
    ):
        engine_of(target, drafters, kv_budget=9)
    assert engine_of(target, drafters, kv_budget=room).generate(PROMPT, SamplingParams(max_new_tokens=9)).token_ids


@pytest.mark.parametrize("value", [0, -1, 2.5, "1GB", True])
@pytest.mark.parametrize("name", ["kv_budget", "max_context"])
def test_bad_numbers(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name}: expected an integer of at least 1"):
        engine_of(toy_target(), ["ngram"], **{name: value})


def test_a_context_that_is_too_long() -> None:
    target = toy_target()
    with pytest.raises(UsageError, match="max_context: expected at most 512, the target's context, got 513"):
        engine_of(target, ["ngram"], max_context=513)
    engine = engine_of(target, ["ngram"], max_context=16)
    with pytest.raises(UsageError, match="prompt: expected fewer than 16 tokens, the option max_context, got 20"):
        engine.generate([*PROMPT, *PROMPT])
    with pytest.raises(
        UsageError, match=r"max_new_tokens: expected at most 6 \(the option max_context holds 16 tokens"
    ):
        engine.generate(PROMPT, SamplingParams(max_new_tokens=7))
    assert len(engine.generate(PROMPT, SamplingParams(max_new_tokens=6)).token_ids) == 6


def test_a_cache_without_room_says_so() -> None:
    writer = Writer("a")
    writer.move(Slot(SHAPE, 3), None)
    writer.append([1.0, 2.0])
    with pytest.raises(MetaSDError, match="a: its cache has room for 3 tokens, and 4 are needed; raise max_context"):
        writer.append([1.0, 2.0])


def twins(kv_budget: int | None, page_size: int, **options: Any) -> MetaSD:
    """Two duplicates of the target and a noisy copy that take turns; with a budget all three share one slot."""
    target = toy_target(context_length=4096)
    answer = plain_greedy(target.model, PROMPT, 60)
    arms = [lm(target, target.model, "twin"), lm(target, target.model, "other"), Replay(target, answer, "liar", 2),
            lm(target, toy_llama(noise=1.0, context_length=4096), "far")]  # fmt: skip
    script = Script(
        ("twin", K), ("other", 3), ("far", 2), ("twin", 1), ("liar", K), ("other", 1), ("far", K), ("null", 0)
    )
    engine = engine_of(target, arms, bandit=script, max_context=1024, kv_budget=kv_budget, **options)
    caches = {name: drafter.cache for name, drafter in engine.pool.drafters.items() if drafter.cache is not None}
    engine.pool.residency = Residency(caches, engine.max_context + K + 3, kv_budget, page_size)
    return engine


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("share", [None, 1, 2], ids=["room for all", "one slot", "two slots"])
@pytest.mark.parametrize("catch_up", ["lazy", "eager"])
def test_duplicates_are_accepted_whole_over_500_tokens(share: int | None, page_size: int, catch_up: str) -> None:
    """A switch in each round. Catches a swap that loses, repeats or mixes up tokens: acceptance shows it."""
    budget = None if share is None else share * (1024 + K + 3) * TOKEN
    engine = twins(budget, page_size, catch_up=catch_up)
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=500, logprobs=2))
    own = [record for record in result.rounds if record.arm in ("twin", "other")]
    missed = [record for record in own if record.num_accepted_tokens < record.num_draft_tokens]
    assert result.logprobs is not None
    margins = [abs(max(entry.top.values()) - min(entry.top.values())) for entry in result.logprobs]
    assert len(missed) <= sum(margin < 1e-4 for margin in margins)
    assert result.stats.num_switches > 150
    assert (engine.pool.residency.num_bytes_copied > 0) == (share is not None)


def test_a_swap_that_mixes_caches_up_costs_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test above."""
    monkeypatch.setattr("metasd.slots.activate", lambda *arguments: None)
    result = twins((1024 + K + 3) * TOKEN, 16).generate(PROMPT, SamplingParams(max_new_tokens=200))
    own = [record for record in result.rounds if record.arm in ("twin", "other")]
    assert sum(record.num_accepted_tokens for record in own) < 0.9 * sum(record.num_draft_tokens for record in own)


def test_addresses_never_change() -> None:
    """Over 100 rounds and two requests: a captured graph writes where it was captured."""
    engine = twins((1024 + K + 3) * TOKEN, 16)
    seen: set[tuple[int, ...]] = set()

    def look(input_ids: Any, scores: Any) -> bool:
        caches = [drafter.cache for drafter in engine.pool.drafters.values() if drafter.cache is not None]
        slots = [cache.slot for cache in (*caches, engine.target._cache)]
        seen.add(tuple(slot.planes.data_ptr() for slot in slots if slot is not None))
        return False

    for prompt in (PROMPT, [*PROMPT, 9, 8, 7]):
        engine.generate(prompt, SamplingParams(max_new_tokens=250, stopping_criteria=[look]))
    (addresses,) = seen
    assert len(addresses) == 4
    assert len(set(addresses)) == 2  # three drafters in one slot, and the target


def test_engines_that_share_drafters_take_turns() -> None:
    """Catches a pool that finds its slots taken away by another one over the same drafters."""
    target = toy_target()
    arms = [lm(target, target.model, "twin"), lm(target, target.model, "other")]
    script = Script(("twin", K), ("other", 3))
    budgets = (None, (512 + 5 + 1) * TOKEN, 2 * (512 + 5 + 1) * TOKEN)
    engines = [engine_of(target, arms, bandit=script, kv_budget=budget) for budget in budgets]
    params = SamplingParams(max_new_tokens=60)
    wanted = plain_greedy(target.model, PROMPT, 60)
    for engine in [*engines, *engines[::-1]]:
        result = engine.generate(PROMPT, params)
        assert result.token_ids == wanted
        assert result.stats.acceptance_rate > 0.95
