"""From rows to numbers: rates are ratios of totals, intervals a paired bootstrap over prompts."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metasd.bench.answers import Row
from metasd.bench.systems import ORACLE, PLAIN
from metasd.core import NULL_ARM
from metasd.metrics import summarize

OVERALL = "overall"
NUM_RESAMPLES = 2000
SINGLE = "arm:"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; None where there is but one prompt."""

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Cell:
    """One system on one domain, or overall.

    Attributes:
        num_prompts: behind the numbers.
        tokens_per_second: all timed tokens over all their seconds.
        speed_up: multiple of plain's rate on the same prompts; None where no answer was longer than its first step.
        over_oracle: multiple of the oracle's rate; None where it could not be found.
        acceptance_length: tokens a step, bonus included; None where a system does not tell its steps.
        acceptance_rate: accepted drafts over drafted tokens; this and what follows is None without rounds.
        acceptance_by_position: share of the drafts that reach a length whose token there was accepted.
        block_divergence: mean over rounds with a draft.
        switches: of arms, an answer.
        catch_up_share, overhead_share: of the seconds in rounds.
        best_arm_share: rounds in which the oracle's arm was played, over all rounds.
        is_replayed: whether any of the rows was.
    """

    num_prompts: int
    tokens_per_second: float
    speed_up: Estimate | None
    over_oracle: Estimate | None = None
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    acceptance_by_position: tuple[float, ...] | None = None
    block_divergence: float | None = None
    switches: float | None = None
    catch_up_share: float | None = None
    overhead_share: float | None = None
    best_arm_share: float | None = None
    is_replayed: bool = False


@dataclass(frozen=True)
class Timing:
    """Timed tokens and their seconds of some prompts, in one order for all systems."""

    tokens: Floats
    seconds: Floats

    def rate(self, rows: NDArray[np.int64] | slice = slice(None)) -> Floats:
        """Tokens a second over these prompts; of `[num_draws, num_prompts]` one rate a draw."""
        return np.asarray(self.tokens[rows].sum(-1) / np.maximum(self.seconds[rows].sum(-1), 1e-12))


@dataclass(frozen=True)
class Oracle:
    """The best single drafter of each domain, found on other prompts.

    Attributes:
        rows: the rows of the drafters that it plays, under its own name.
        system_by_prompt: what it plays; `plain` where no drafter is faster.
        missing: domains with one prompt only, for which there are no others.
    """

    rows: Sequence[Row]
    system_by_prompt: Mapping[str, str]
    missing: Sequence[str]


def timing(rows: Sequence[Row], prompt_ids: Sequence[str]) -> Timing:
    """Of one system: a prompt's tokens are its first repetition's, each with the median of the repetitions' seconds a
    token; seeds add up."""
    by_prompt: dict[str, dict[int | None, list[Row]]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt_id, {}).setdefault(row.seed, []).append(row)
    tokens, seconds = [], []
    for prompt_id in prompt_ids:
        counts, times = 0, 0.0
        for repetitions in by_prompt[prompt_id].values():
            first = min(repetitions, key=lambda row: row.repetition).answer.num_timed_tokens
            paces = [row.answer.seconds / row.answer.num_timed_tokens for row in repetitions if _is_timed(row)]
            if first and paces:
                counts += first
                times += first * statistics.median(paces)
        tokens.append(counts)
        seconds.append(times)
    return Timing(np.asarray(tokens, dtype=np.float64), np.asarray(seconds, dtype=np.float64))


def _is_timed(row: Row) -> bool:
    return row.answer.num_timed_tokens > 0


def ratio(own: Timing, other: Timing, domains: Sequence[str], seed: int = 0) -> Estimate | None:
    """Own rate over another's on the same prompts, with the bootstrap's interval: prompts are drawn anew within each
    domain, the same ones for both. None where one of them has no timed tokens."""
    if not (own.tokens.sum() and other.tokens.sum()):
        return None
    value = float(own.rate() / other.rate())
    if len(domains) < 2:
        return Estimate(value, None)
    draws = resampled(domains, seed)
    draws = draws[(own.tokens[draws].sum(-1) > 0) & (other.tokens[draws].sum(-1) > 0)]
    low, high = np.quantile(own.rate(draws) / other.rate(draws), [0.025, 0.975])
    return Estimate(value, (float(low), float(high)))


def resampled(domains: Sequence[str], seed: int = 0) -> NDArray[np.int64]:
    """Indices `[NUM_RESAMPLES, num_prompts]`, as many of each domain as there are; of all together where a domain has
    only one prompt, since that could never vary."""
    generator, labels = np.random.default_rng(seed), np.asarray(domains)
    groups = [np.flatnonzero(labels == domain) for domain in dict.fromkeys(domains)]
    if any(len(group) < 2 for group in groups):
        groups = [np.arange(len(domains))]
    return np.concatenate(
        [group[generator.integers(len(group), size=(NUM_RESAMPLES, len(group)))] for group in groups], axis=1
    )


def find_oracle(rows: Sequence[Row]) -> Oracle:
    """Of each domain every other prompt makes one half, the rest the other; what is fastest on one half, among all
    single drafters and plain decoding, is played on the other. So no arm is chosen on what it is judged by."""
    candidates = [name for name in _names(rows) if name == PLAIN or name.startswith(SINGLE)]
    chosen: dict[str, str] = {}
    missing = []
    for domain in dict.fromkeys(row.domain for row in rows):
        prompts = list(dict.fromkeys(row.prompt_id for row in rows if row.domain == domain))
        if len(prompts) < 2 or len(candidates) < 2:
            missing.append(domain)
            continue
        for half in (0, 1):
            others = prompts[1 - half :: 2]
            rates = {name: float(timing(_of(rows, name), others).rate()) for name in candidates}
            chosen |= dict.fromkeys(prompts[half::2], max(rates, key=lambda name: rates[name]))
    played = [replace(row, system=ORACLE) for row in rows if chosen.get(row.prompt_id) == row.system]
    return Oracle(played, chosen, missing)


def table(rows: Sequence[Row], seed: int = 0) -> dict[str, dict[str, Cell]]:
    """domain -> system -> Cell, and the same for OVERALL; the oracle is a system where every prompt has its arm.

    Args:
        rows: of all systems, each on the same prompts; `plain` among them.
        seed: of the bootstrap.
    """
    oracle = find_oracle(rows)
    rows = [*rows, *oracle.rows]
    domain_of = {row.prompt_id: row.domain for row in rows}
    groups = {domain: [p for p in domain_of if domain_of[p] == domain] for domain in dict.fromkeys(domain_of.values())}
    groups[OVERALL] = list(domain_of)
    found: dict[str, dict[str, Cell]] = {}
    for group, prompts in groups.items():
        inside, domains = set(prompts), [domain_of[prompt] for prompt in prompts]
        mine = {name: [row for row in _of(rows, name) if row.prompt_id in inside] for name in _names(rows)}
        times = {name: timing(own, prompts) for name, own in mine.items() if {row.prompt_id for row in own} == inside}
        found[group] = {}
        for name, own in times.items():
            over = ratio(own, times[ORACLE], domains, seed) if ORACLE in times else None
            cell = Cell(len(prompts), float(own.rate()), ratio(own, times[PLAIN], domains, seed), over)
            found[group][name] = _with_rounds(cell, mine[name], oracle.system_by_prompt)
    return found


def _with_rounds(cell: Cell, rows: Sequence[Row], best: Mapping[str, str]) -> Cell:
    """What the rounds tell, where a system has them."""
    steps = [length for row in rows for length in row.answer.steps]
    rounds = [record for row in rows for record in row.answer.rounds]
    cell = replace(cell, is_replayed=any(row.replayed for row in rows))
    if not rounds:
        return replace(cell, acceptance_length=sum(steps) / len(steps) if steps else None)
    total = summarize(rounds)
    hits = [
        record.arm == (NULL_ARM if best[row.prompt_id] == PLAIN else best[row.prompt_id].removeprefix(SINGLE))
        for row in rows
        if row.prompt_id in best
        for record in row.answer.rounds
    ]
    return replace(
        cell,
        acceptance_length=total.acceptance_length,
        acceptance_rate=total.acceptance_rate if total.num_draft_tokens else None,
        acceptance_by_position=total.acceptance_by_position,
        block_divergence=total.block_divergence if total.num_draft_tokens else None,
        switches=sum(record.switched for record in rounds) / len(rows),
        catch_up_share=total.catch_up_seconds / total.seconds if total.seconds else 0.0,
        overhead_share=total.overhead_seconds / total.seconds if total.seconds else 0.0,
        best_arm_share=sum(hits) / len(hits) if hits else None,
    )


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.system for row in rows))


def _of(rows: Sequence[Row], system: str) -> list[Row]:
    return [row for row in rows if row.system == system]
