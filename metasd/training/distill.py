"""Self-distillation: the target answers prompts, half greedily and half at temperature 0.7."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from metasd.core import MetaSDError, refuse
from metasd.target import Target
from metasd.training.answers import read_rows
from metasd.training.job import Advance

TEMPERATURES = (0.0, 0.7)
_BATCH_SIZE = 32
_MAX_PROMPT = 640  # tokens of a prompt


def is_prompt_file(path: Path) -> bool:
    """Whether its first row is a prompt and no answer.

    Raises:
        MetaSDError: the file is empty, or the row is neither.
    """
    for number, row in read_rows(path):
        if "output_ids" in row:
            return False
        if "prompt" in row or "turns" in row:
            return True
        raise MetaSDError(f'{path}, line {number}: expected "prompt", "turns", or "prompt_ids" and "output_ids"')
    raise MetaSDError(f"{path} holds no rows")


def distill(
    target: Target,
    prompts: Path,
    path: Path,
    domains: Sequence[str] = (),
    *,
    max_new_tokens: int,
    both: bool = False,
    advance: Advance,
) -> None:
    """Let the target answer all prompts of a file; lines that are there already are not made again.

    Args:
        target: who answers, through its chat template where it has one.
        prompts: rows with `prompt` or `turns`, and perhaps `domain` and `source`.
        path: JSONL of answers, which `read_answers` takes.
        domains: only these; empty: all.
        max_new_tokens: of an answer.
        both: each prompt at both temperatures; else they take turns.
        advance: hears of progress.
    """
    rows = [row for _, row in read_rows(prompts) if is_wanted(row, domains)]
    rows.sort(key=lambda row: len(text_of(row)))  # prompts of about equal length beside each other: less padding
    if not rows:
        raise refuse("domains", f"some that {prompts.name} holds", ", ".join(domains))
    tasks = [
        (rows[first : first + _BATCH_SIZE], temperature)
        for turn, first in enumerate(range(0, len(rows), _BATCH_SIZE))
        for temperature in (TEMPERATURES if both else TEMPERATURES[turn % len(TEMPERATURES) :][:1])
    ]
    num_rows = sum(len(batch) for batch, _ in tasks)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = sum(1 for _ in path.open()) if path.exists() else 0
    with path.open("a") as file:
        num_seen = 0
        for batch, temperature in tasks:
            num_seen += len(batch)
            if num_seen > done:
                lines = _answer(target, batch, temperature, max_new_tokens)
                file.write("".join(lines[len(batch) - (num_seen - max(done, num_seen - len(batch))) :]))
                file.flush()
            advance("answers", num_seen, num_rows, f"temperature {temperature}")


def is_wanted(row: dict[str, Any], domains: Sequence[str]) -> bool:
    """Whether a row is of one of these domains, "translation" standing for "translation-fren" as well; empty: all."""
    domain = str(row.get("domain", ""))
    return not domains or any(domain == name or domain.startswith(f"{name}-") for name in domains)


def text_of(row: dict[str, Any]) -> str:
    """The prompt of a row, or the first of its turns."""
    return str(row["turns"][0] if "turns" in row else row["prompt"])


def _answer(target: Target, rows: Sequence[dict[str, Any]], temperature: float, max_new_tokens: int) -> list[str]:
    prompts = []
    for row in rows:
        text = text_of(row)
        is_chat = target.tokenizer.chat_template is not None
        prompts.append(target.encode([{"role": "user", "content": text}] if is_chat else text)[-_MAX_PROMPT:])
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64, device=target.device)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        ids[i, longest - len(prompt) :] = torch.tensor(prompt)
        mask[i, longest - len(prompt) :] = 1
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    with torch.inference_mode():
        answers = target.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            pad_token_id=min(target.eos_token_ids, default=0),
            **(sampling if temperature > 0 else {"do_sample": False}),
        )
    lines = []
    for row, prompt, answer in zip(rows, prompts, answers[:, longest:].tolist(), strict=True):
        end = next((i + 1 for i, token in enumerate(answer) if token in target.eos_token_ids), len(answer))
        facts = {"domain": row.get("domain", ""), "source": row.get("source", ""), "temperature": temperature}
        lines.append(json.dumps({**facts, "prompt_ids": prompt, "output_ids": answer[:end]}) + "\n")
    return lines
