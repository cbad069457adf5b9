"""A run and all that is known of it, as plain JSON types as well."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metasd.bench.answers import Row
from metasd.bench.curves import Curve, Shares, arm_shares, cumulative_reward
from metasd.bench.lossless import Verdict
from metasd.bench.measure import Plan
from metasd.bench.statistics import SINGLE, Cell, find_oracle
from metasd.core import NULL_ARM, jsonable


@dataclass(frozen=True)
class Outcome:
    """What a run found.

    Attributes:
        passport: versions, device, commit and command.
        settings: target, drafters, prompts and the engines' options.
        plan: how often, how long.
        rows: every measurement.
        table: domain -> system -> Cell.
        verdict: of the comparison with plain decoding.
        not_run: why each system that was asked for does not run.
        arm_by_domain: what `specialist` and `router` play.
    """

    passport: Mapping[str, Any]
    settings: Mapping[str, Any]
    plan: Plan
    rows: Sequence[Row]
    table: Mapping[str, Mapping[str, Cell]]
    verdict: Verdict
    not_run: Mapping[str, str]
    arm_by_domain: Mapping[str, str]

    @property
    def systems(self) -> list[str]:
        """Those measured."""
        return list(dict.fromkeys(row.system for row in self.rows))

    def rows_of(self, system: str) -> list[Row]:
        return [row for row in self.rows if row.system == system]

    @property
    def policies(self) -> list[str]:
        """Systems that choose among several drafters."""
        found = []
        for system in self.systems:
            arms = {record.arm for row in self.rows_of(system) for record in row.answer.rounds}
            if len(arms - {NULL_ARM}) > 1 and not system.startswith(SINGLE):
                found.append(system)
        return found

    def shares(self) -> dict[str, Shares]:
        """By policy."""
        return {system: arm_shares(self.rows_of(system)) for system in self.policies}

    def rewards(self) -> dict[str, Curve]:
        """By policy."""
        return {system: cumulative_reward(self.rows_of(system)) for system in self.policies}

    def facts(self) -> dict[str, Any]:
        """Everything but the rounds, in plain JSON types."""
        oracle = find_oracle(self.rows)
        return {
            "passport": dict(self.passport),
            "settings": {**self.settings, **jsonable(self.plan)},
            "verdict": {
                "line": self.verdict.line(),
                "is_passed": self.verdict.is_passed,
                "num_answers": dict(self.verdict.num_answers),
                "near_ties": [{"system": name, **jsonable(each)} for name, each in self.verdict.near_ties],
                "mismatches": [{"system": name, **jsonable(each)} for name, each in self.verdict.mismatches],
            },
            "not_run": dict(self.not_run),
            "arm_by_domain": dict(self.arm_by_domain),
            "oracle": {"system_by_prompt": dict(oracle.system_by_prompt), "without_oracle": list(oracle.missing)},
            "table": jsonable(self.table),
            "arm_shares": jsonable(self.shares()),
            "cumulative_reward": jsonable(self.rewards()),
            "rows": [_short(row) for row in self.rows],
        }

    def notes(self) -> list[str]:
        """What a reader of the tables must know, a line each."""
        plays = ", ".join(f"{domain}: {arm}" for domain, arm in self.arm_by_domain.items())
        notes = [self.verdict.line()]
        notes += [
            f"near-tie: {name}, prompt {each.prompt}, token {each.position}, margin {each.margin:.1e}"
            for name, each in self.verdict.near_ties
        ]
        notes += [
            f"DIFFERENT: {name}, prompt {each.prompt}, token {each.position}, margin {each.margin:.1e}"
            for name, each in self.verdict.mismatches
        ]
        if {"specialist", "router"} & set(self.systems):
            notes.append(f"made for each domain: {plays}")
        oracle = find_oracle(self.rows)
        if oracle.system_by_prompt:
            domain_of = {row.prompt_id: row.domain for row in self.rows}
            counts: dict[str, Counter[str]] = {}
            for prompt, system in oracle.system_by_prompt.items():
                counts.setdefault(domain_of[prompt], Counter())[system.removeprefix(SINGLE)] += 1
            chosen = (f"{domain}: {' and '.join(arms)}" for domain, arms in counts.items())
            notes.append(f"the oracle, chosen on the domain's other prompts: {', '.join(chosen)}")
        if oracle.missing:
            has_singles = any(system.startswith(SINGLE) for system in self.systems)
            reason = "two prompts of the domain" if has_singles else "single drafters among the systems"
            notes.append(f"no oracle for {', '.join(oracle.missing)}: it needs {reason}")
        return notes + [f"not run: {name}: {reason}" for name, reason in self.not_run.items()]


def _short(row: Row) -> dict[str, Any]:
    answer = row.answer
    return {
        "system": row.system,
        "prompt_id": row.prompt_id,
        "domain": row.domain,
        "repetition": row.repetition,
        "seed": row.seed,
        "replayed": row.replayed,
        "num_tokens": len(answer.token_ids),
        "num_timed_tokens": answer.num_timed_tokens,
        "seconds": answer.seconds,
        "prefill_seconds": answer.prefill_seconds,
        "steps": list(answer.steps),
    }
