"""The prompts of a run: any file of `metasd.prompts`, or Spec-Bench's own; and those that ship with the package."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metasd.core import refuse
from metasd.prompts import read_prompts

FOLDER = Path(__file__).parent / "prompts"
SHIPPED = ("short", "mixed")
"""Prompts of the project's own (CC0): five domains with five each; and two tasks in one prompt."""


@dataclass(frozen=True)
class BenchPrompt:
    """A prompt: its first turn.

    Attributes:
        id: unique in its file; `id` or Spec-Bench's `question_id`, else the number of the line.
        domain: of the row; Spec-Bench's `category` where it has none.
        text: a user message.
    """

    id: str
    domain: str
    text: str


def shipped(name: str) -> Path:
    """The file of a prompt set that ships.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in SHIPPED:
        raise refuse("prompts", f"a file, or one of {', '.join(SHIPPED)}", repr(name))
    return FOLDER / f"{name}.jsonl"


def read_workload(path: Path) -> list[BenchPrompt]:
    """All prompts of a file.

    Raises:
        MetaSDError: the file is missing or empty, or a line has neither `turns` nor `prompt`; the message names it.
        UsageError: two prompts have one id.
    """
    records = read_prompts(path)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    prompts = []
    for number, (record, row) in enumerate(zip(records, rows, strict=True), start=1):
        name = str(row.get("id", row.get("question_id", number)))
        prompts.append(BenchPrompt(name, record.domain or str(row.get("category", "all")), record.text))
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise refuse("prompts", f"rows with different ids in {path.name!r}", f"{prompt.id!r} twice")
        seen.add(prompt.id)
    return prompts


def choose(
    prompts: Sequence[BenchPrompt], domains: Sequence[str] = (), num_per_domain: int | None = None
) -> list[BenchPrompt]:
    """Some of the prompts, in an order in which domains take turns, so that a drift of the machine hits all alike.

    Args:
        domains: those to take; none: all.
        num_per_domain: spread evenly over the domain's rows; None: all.

    Raises:
        UsageError: a domain has no prompt; the message lists those that have.
    """
    by_domain: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_domain.setdefault(prompt.domain, []).append(prompt)
    for domain in domains:
        if domain not in by_domain:
            raise refuse("--domains", f"domains among {', '.join(sorted(by_domain))}", repr(domain))
    taken = []
    for domain in domains or by_domain:
        rows = by_domain[domain]
        count = len(rows) if num_per_domain is None else min(num_per_domain, len(rows))
        taken.append([rows[index * len(rows) // count] for index in range(count)])
    longest = max(len(rows) for rows in taken)
    return [rows[turn] for turn in range(longest) for rows in taken if turn < len(rows)]
