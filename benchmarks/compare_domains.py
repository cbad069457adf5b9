"""Plain decoding, the pool, and transformers' own decoding, side by side in one interleaved run.

    python benchmarks/compare_domains.py PROMPTS.jsonl --domains summarization,rag,math,code --num 10 --json OUT.json

Greedy, float32, the chat template, prefill apart: a system's rate is its tokens after the first forward pass over their
seconds, of each prompt the median of several repetitions; a domain's rate is all tokens over all seconds. The order of
the systems rotates with each prompt. Answers are compared token for token.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from passport import passport
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers.utils import logging as transformers_logging

from metasd import MetaSD, SamplingParams
from metasd.prompts import PromptRecord, read_prompts

Measured = tuple[int, float, list[int]]  # tokens, seconds, token ids


class _Clock:
    """A stopping criterion that never stops: it notes when the first forward pass is over."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if self.first is None:
            self.first = (time.perf_counter(), input_ids.shape[1])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def of_engine(decode: Callable[..., Any], max_new_tokens: int) -> Callable[[list[int]], Measured]:
    def run(ids: list[int]) -> Measured:
        result = decode(ids, SamplingParams(max_new_tokens=max_new_tokens))
        first = result.rounds[0]  # left out, as the other side's first pass is
        seconds = result.stats.decode_seconds - first.seconds
        return len(result.token_ids) - first.num_output_tokens, seconds, result.token_ids

    return run


def of_transformers(model: Any, max_new_tokens: int, **options: Any) -> Callable[[list[int]], Measured]:
    def run(ids: list[int]) -> Measured:
        clock, prompt = _Clock(), torch.tensor([ids])
        with torch.inference_mode():
            output = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=[clock],
                **options,
            )
        end = time.perf_counter()
        assert clock.first is not None
        return output.shape[1] - clock.first[1], end - clock.first[0], output[0, len(ids) :].tolist()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--drafters", default="ngram,suffix,null")
    parser.add_argument("--domains", default="summarization,rag,math,code")
    parser.add_argument("--num", type=int, default=10, help="prompts of each domain")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()

    engine = MetaSD.from_pretrained(options.target, drafters=options.drafters, dtype="float32")
    model, length = engine.target.model, options.max_new_tokens
    systems = {
        "transformers": of_transformers(model, length),
        "plain": of_engine(engine.generate_plain, length),
        "prompt lookup": of_transformers(model, length, prompt_lookup_num_tokens=5),
        "pool": of_engine(engine.generate, length),
    }
    records = [record for record in read_prompts(options.prompts) if record.domain in options.domains.split(",")]
    chosen: list[PromptRecord] = []
    for domain in options.domains.split(","):
        chosen += [record for record in records if record.domain == domain][: options.num]
    prompts = [engine.target.encode([{"role": "user", "content": record.text}]) for record in chosen]
    for run in systems.values():  # warm up
        run(prompts[0])

    runs: dict[tuple[int, str], list[Measured]] = defaultdict(list)
    for repetition in range(options.repetitions):
        for index in track(
            range(len(prompts)), description=f"repetition {repetition + 1}", console=Console(stderr=True)
        ):
            names = list(systems)
            shift = (index + repetition) % len(names)
            for name in names[shift:] + names[:shift]:
                runs[index, name].append(systems[name](prompts[index]))

    rates = {
        domain: {name: rate(runs, [k for k, r in enumerate(chosen) if r.domain == domain], name) for name in systems}
        for domain in options.domains.split(",")
    }
    differing = {
        name: sum(runs[k, name][0][2] != runs[k, "transformers"][0][2] for k in range(len(prompts))) for name in systems
    }
    show(rates, differing, len(prompts))
    if options.json:
        facts = {"passport": passport(), "tokens_per_second": rates, "answers": len(prompts), "differing": differing}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


def rate(runs: dict[tuple[int, str], list[Measured]], indices: list[int], name: str) -> float:
    """Tokens a second over some prompts, each with the median of its repetitions' seconds a token."""
    tokens = sum(runs[k, name][0][0] for k in indices)
    seconds = sum(runs[k, name][0][0] * statistics.median(s / max(n, 1) for n, s, _ in runs[k, name]) for k in indices)
    return tokens / seconds


def show(rates: dict[str, dict[str, float]], differing: dict[str, int], num_prompts: int) -> None:
    table = Table(title="tokens a second (times plain)")
    table.add_column("domain")
    names = list(next(iter(rates.values())))
    for name in names:
        table.add_column(name, justify="right")
    for domain, row in rates.items():
        table.add_row(domain, *(f"{row[name]:.1f} ({row[name] / row['plain']:.2f})" for name in names))
    table.add_row("answers unlike transformers'", *(f"{differing[name]} of {num_prompts}" for name in names))
    Console().print(table)


if __name__ == "__main__":
    main()
