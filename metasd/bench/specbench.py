"""Spec-Bench's answer files: one JSONL for each system, which its own scripts can read."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metasd.bench.answers import Row
from metasd.core import MetaSDError


def write_answers(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write `<system>.jsonl` for each system: a line for each prompt, a choice for each repetition and seed.

    `wall_time` holds the prompt's forward pass, as Spec-Bench's own times do; `accept_lengths` are tokens a step. A
    question id that is a number is written as one.

    Args:
        rows: of all systems.
        folder: is made where it is not there.

    Raises:
        MetaSDError: it cannot be written.
    """
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for system in dict.fromkeys(row.system for row in rows):
            path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', system)}.jsonl"
            lines = [json.dumps(entry, ensure_ascii=False) for entry in _entries(rows, system)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise MetaSDError(f"--spec-bench: cannot write in {str(folder)!r}: {error.strerror}") from None
    return paths


def read_answers(path: Path) -> list[dict[str, Any]]:
    """The entries of one system's file.

    Raises:
        MetaSDError: it cannot be read, or is not such a file.
    """
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        for entry in entries:
            if not {"question_id", "category", "choices"} <= set(entry):
                raise ValueError("an entry lacks question_id, category or choices")
    except (OSError, ValueError, TypeError) as error:
        raise MetaSDError(f"{str(path)!r}: expected Spec-Bench's answers: {error}") from None
    return entries


def _entries(rows: Sequence[Row], system: str) -> list[Mapping[str, Any]]:
    by_prompt: dict[str, list[Row]] = {}
    for row in rows:
        if row.system == system:
            by_prompt.setdefault(row.prompt_id, []).append(row)
    return [
        {
            "question_id": int(prompt_id) if prompt_id.isdigit() else prompt_id,
            "category": own[0].domain,
            "answer_id": f"{system}-{prompt_id}",
            "model_id": system,
            "choices": [_choice(index, row) for index, row in enumerate(own)],
            "tstamp": time.time(),
            **({"replayed": True} if own[0].replayed else {}),
        }
        for prompt_id, own in by_prompt.items()
    ]


def _choice(index: int, row: Row) -> Mapping[str, Any]:
    answer = row.answer
    return {
        "index": index,
        "turns": [answer.text],
        "decoding_steps": [len(answer.steps)],
        "new_tokens": [len(answer.token_ids)],
        "wall_time": [answer.prefill_seconds + answer.seconds],
        "accept_lengths": list(answer.steps),
    }
