"""Answers of a target to prompts, in its own tokens: what drafters are trained on."""

import gzip
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasd.core import MetaSDError, refuse

HELD_OUT = 0.05
"""Share of the answers that training never sees, for its report."""


@dataclass(frozen=True)
class Answer:
    """One answer of the target; `temperature` is what it was drawn with."""

    domain: str
    source: str
    temperature: float
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and objects of a JSONL file, also a gzipped one.

    Raises:
        MetaSDError: no such file, a truncated one, or a line that is no JSON object.
    """
    number = 0
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for number, line in enumerate(file, start=1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("no object")
                yield number, row
    except OSError as error:
        raise MetaSDError(f"cannot read {path}: {error}") from error
    except (EOFError, ValueError) as error:
        raise MetaSDError(f"{path}, line {number or 1}: expected a JSON object a line ({error})") from error


def read_answers(path: Path, vocab_size: int, domains: Sequence[str] = ()) -> list[Answer]:
    """Answers with `prompt_ids` and `output_ids` from a JSONL file.

    Args:
        path: the file, `.jsonl` or `.jsonl.gz`.
        vocab_size: of the target: ids must be below it.
        domains: take only rows of these, "translation" standing for "translation-fren" as well; empty: all.

    Raises:
        MetaSDError: a row lacks a key or has an id outside the vocabulary; the message names file, line and key.
        UsageError: no row is left.
    """
    answers = []
    seen: set[str] = set()
    for number, row in read_rows(path):
        domain = str(row.get("domain", ""))
        seen.add(domain)
        if domains and not any(domain == name or domain.startswith(f"{name}-") for name in domains):
            continue
        ids = []
        for key in ("prompt_ids", "output_ids"):
            value = row.get(key)
            if not isinstance(value, list) or not all(type(item) is int and 0 <= item < vocab_size for item in value):
                raise MetaSDError(f"{path}, line {number}: expected {key} as a list of token ids below {vocab_size}")
            ids.append(tuple(value))
        temperature = row.get("temperature", 0.0)
        answers.append(Answer(domain, str(row.get("source", "")), float(temperature), ids[0], ids[1]))
    if not answers:
        raise refuse("domains", f"some of {', '.join(sorted(seen)) or 'none: the file is empty'}", ", ".join(domains))
    return answers


def split_answers(answers: Sequence[Answer], seed: int = 0) -> tuple[list[Answer], list[Answer]]:
    """Training and held-out answers, shuffled.

    The prompt decides, whatever else is in the data: what is held out from a generalist is so from the specialists that
    start from it.
    """
    shuffled = random.Random(seed).sample(list(answers), len(answers))
    held_out = [answer for answer in shuffled if _is_held_out(answer.prompt_ids)]
    return [answer for answer in shuffled if not _is_held_out(answer.prompt_ids)], held_out


def _is_held_out(prompt_ids: Sequence[int]) -> bool:
    digest = hashlib.sha256(json.dumps(list(prompt_ids)).encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT * 2**32
