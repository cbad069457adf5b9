"""Prompt files: one JSON object a line, with `turns` (a list of strings, as in Spec-Bench) or `prompt` (a string)."""

import json
from dataclasses import dataclass
from pathlib import Path

from metasd.core import MetaSDError

BUILT_IN = (
    "Explain in simple words why the sky is blue in the day and red in the evening.",
    "Write a Python function that returns the n-th Fibonacci number, first recursively, then with a loop.",
    "A train travels 60 miles in an hour and a half. How far does it travel in four hours? Show each step.",
    "Translate into French: The library is closed on Monday. The library is open on Tuesday.",
    "Repeat this list with each word in capital letters: apple, pear, plum, cherry, apple, pear, plum, cherry, quince.",
    "Name three differences between a frog and a toad.",
)
"""Prompts of the project's own, for `metasd check` without a file."""


@dataclass(frozen=True)
class PromptRecord:
    """A prompt of a file."""

    text: str
    domain: str = ""


def read_prompts(path: Path, limit: int | None = None) -> list[PromptRecord]:
    """Read a prompt file; of several turns the first.

    Args:
        path: a `.jsonl` file.
        limit: take so many, spread evenly over the file; None: all.

    Raises:
        MetaSDError: the file is missing or empty, or a line is not such an object; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MetaSDError(f"prompts: cannot read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MetaSDError(f"prompts: {str(path)!r} is not UTF-8 text") from None
    records = [_parse(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not records:
        raise MetaSDError(f"prompts: {str(path)!r} holds no prompts")
    if limit is None or limit >= len(records):
        return records
    return [records[index * len(records) // limit] for index in range(limit)]


def _parse(path: Path, number: int, line: str) -> PromptRecord:
    where = f"prompts: {str(path)!r}, line {number}"
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise MetaSDError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    turns = entry.get("turns", [entry.get("prompt")]) if isinstance(entry, dict) else None
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0].strip():
        raise MetaSDError(f'{where}: expected an object with "turns" (a list of strings) or "prompt" (a string)')
    return PromptRecord(turns[0], str(entry.get("domain", "")))
