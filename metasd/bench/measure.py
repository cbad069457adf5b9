"""The measurement: systems take turns on every prompt, after a warm-up, in an order that rotates."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from metasd.bench.answers import Row
from metasd.bench.journal import Journal
from metasd.bench.systems import System
from metasd.bench.workload import BenchPrompt
from metasd.config import SamplingParams
from metasd.core import refuse

Advance = Callable[[str, int, int, str], None]
_MAX_SEED = 2**31


@dataclass(frozen=True)
class Plan:
    """What is decoded how often.

    Args:
        repetitions: of every prompt and seed, at least 1; each begins with policies that have learned nothing.
        max_new_tokens: of an answer.
        temperature: 0 is greedy.
        seeds: of torch's generator; greedy decoding draws nothing and takes one.

    Raises:
        UsageError: a value is out of its range.
    """

    repetitions: int = 1
    max_new_tokens: int = 64
    temperature: float = 0.0
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if self.repetitions < 1:
            raise refuse("--repetitions", "at least 1", self.repetitions)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise refuse("--seeds", "different integers", ", ".join(map(str, self.seeds)) or "none")

    @property
    def used_seeds(self) -> tuple[int | None, ...]:
        return self.seeds if self.temperature else (None,)


def order(names: Sequence[str], index: int, repetition: int) -> list[str]:
    """Who comes first changes with every prompt and repetition, so that nobody always follows the same one."""
    shift = (index + repetition) % len(names)
    return [*names[shift:], *names[:shift]]


def measure(
    systems: Mapping[str, System],
    prompts: Sequence[tuple[BenchPrompt, list[int]]],
    plan: Plan,
    journal: Journal,
    advance: Advance = lambda stage, done, total, note: None,
) -> list[Row]:
    """Decode every prompt with every system as often as the plan says; what the journal holds is not run again.

    Sampling draws from torch's global generator, seeded anew for each answer, and not from `SamplingParams.seed`:
    that would silence the clocks and the memory of policies, which are measured here.

    Args:
        systems: by name.
        prompts: with the token ids that the target reads.
        plan: how often and how long.
        journal: what was measured before; it takes what comes.
        advance: told of progress: stage, how many are done, of how many, and who is at work.

    Returns:
        the rows of these systems and prompts, in the order of prompts.
    """
    keys = [
        (system, prompt.id, repetition, seed)
        for seed in plan.used_seeds
        for repetition in range(plan.repetitions)
        for prompt, _ in prompts
        for system in systems
    ]
    missing = {key for key in keys if key not in journal.rows}
    _warm_up(systems, sorted({key[0] for key in missing}, key=list(systems).index), prompts, plan, advance)
    done = len(keys) - len(missing)
    for seed in plan.used_seeds:
        for repetition in range(plan.repetitions):
            _begin(systems, journal, repetition, seed)
            for (prompt, ids), name in _turns(list(systems), prompts, repetition):
                if (name, prompt.id, repetition, seed) not in missing:
                    continue
                advance("answers", done, len(keys), name)
                params = _params(plan, prompt)
                if seed is not None:
                    torch.manual_seed(_mixed(seed, repetition, prompt.id))
                system = systems[name]
                row = Row(name, prompt.id, repetition, seed, prompt.domain, system.decode(ids, params))
                journal.add(row, system.state())
                done += 1
    advance("answers", done, len(keys), "")
    return [journal.rows[key] for key in keys]


def _turns(
    names: Sequence[str], prompts: Sequence[tuple[BenchPrompt, list[int]]], repetition: int
) -> Iterator[tuple[tuple[BenchPrompt, list[int]], str]]:
    for index, prompt in enumerate(prompts):
        for name in order(names, index, repetition):
            yield prompt, name


def _begin(systems: Mapping[str, System], journal: Journal, repetition: int, seed: int | None) -> None:
    """Every repetition begins with policies that know nothing; one that was cut short with what they knew there."""
    for name, system in systems.items():
        system.load(journal.states.get((name, repetition, seed)))


def _warm_up(
    systems: Mapping[str, System],
    names: Sequence[str],
    prompts: Sequence[tuple[BenchPrompt, list[int]]],
    plan: Plan,
    advance: Advance,
) -> None:
    """On the longest prompt, so that caches have their final size; what is learned there is forgotten."""
    prompt, ids = max(prompts, key=lambda each: len(each[1]))
    for done, name in enumerate(names):
        advance("warm-up", done, len(names), name)
        systems[name].decode(ids, _params(plan, prompt))
    if names:
        advance("warm-up", len(names), len(names), "")


def _params(plan: Plan, prompt: BenchPrompt) -> SamplingParams:
    return SamplingParams(temperature=plan.temperature, max_new_tokens=plan.max_new_tokens, label=prompt.domain)


def _mixed(seed: int, repetition: int, prompt_id: str) -> int:
    """A seed for one answer: the same for every system, and another for each prompt and repetition."""
    return random.Random(f"{seed} {repetition} {prompt_id}").randrange(_MAX_SEED)


def digest(prompts: Sequence[BenchPrompt]) -> str:
    """Tells prompt sets apart."""
    text = "\n".join(f"{prompt.id}\t{prompt.domain}\t{prompt.text}" for prompt in prompts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
