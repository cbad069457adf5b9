"""Each specialist of the demo pool alone on its own domain: acceptance length and speed against plain decoding.

    python benchmarks/specialists.py PROMPTS.jsonl --num 8 --json OUT.json

Greedy, float32, the chat template, the prompt's forward pass and the first round left out. Acceptance length (bonus
included) with four draft tokens; speed as the ratio of tokens a second to plain decoding of the same prompts in the
same run, systems taking turns, at each block length: the best is shown.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from passport import passport
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers.utils import logging as transformers_logging

from metasd import MetaSD, SamplingParams
from metasd.config import EngineConfig
from metasd.core import NULL_ARM
from metasd.drafters import load_drafters
from metasd.prompts import read_prompts
from metasd.target import Target

DOMAINS = ("code", "translation", "summarization", "qa", "math")
FAMILIES = ("eagle", "ngram-lm")
DEPTH = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--num", type=int, default=8, help="prompts of each domain")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--lengths", default="1,2,3,4", help="block lengths that are timed")
    parser.add_argument("--domains", default=",".join(DOMAINS))
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    target = Target.load("demo", dtype="float32")
    arms = load_drafters("demo", target)
    families, lengths = options.families.split(","), [int(length) for length in options.lengths.split(",")]
    params = SamplingParams(max_new_tokens=options.max_new_tokens)
    found: dict[str, dict[str, Any]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        for domain in options.domains.split(","):
            records = [each for each in read_prompts(options.prompts) if in_domain(each.domain, domain)]
            chosen = [records[i * len(records) // options.num] for i in range(min(options.num, len(records)))]
            prompts = [target.encode([{"role": "user", "content": record.text}]) for record in chosen]
            engines = {
                (family, length): engine_of(target, arms, f"{family}-{domain}", length)
                for family in families
                for length in sorted({*lengths, DEPTH})
            }
            found[domain] = measure(engines, prompts, params, progress, domain)
    show(found)
    if options.json:
        options.json.write_text(json.dumps({"passport": passport(), "domains": found}, indent=1) + "\n")


def in_domain(name: str, domain: str) -> bool:
    return name == domain or name.startswith(f"{domain}-")


def engine_of(target: Target, arms: dict[str, Any], arm: str, length: int) -> MetaSD:
    config = EngineConfig.build(bandit=f"fixed:arm={arm}", num_draft_tokens=length)
    return MetaSD(target, {arm: arms[arm], NULL_ARM: arms[NULL_ARM]}, config)


def measure(
    engines: dict[tuple[str, int], MetaSD],
    prompts: list[list[int]],
    params: SamplingParams,
    progress: Progress,
    domain: str,
) -> dict[str, Any]:
    """By family: acceptance length at `DEPTH`, speed against plain by block length."""
    seconds: dict[Any, list[float]] = defaultdict(list)  # a token, of each prompt
    rounds: dict[str, list[int]] = defaultdict(list)
    task = progress.add_task(domain, total=len(prompts) * (len(engines) + 1))
    any_engine = next(iter(engines.values()))
    for turn, prompt in enumerate(prompts):
        systems: list[Any] = [None, *engines]
        shift = turn % len(systems)
        for system in systems[shift:] + systems[:shift]:
            decode = any_engine.generate_plain if system is None else engines[system].generate
            result = decode(prompt, params)
            first = result.rounds[0]
            num_tokens = max(len(result.token_ids) - first.num_output_tokens, 1)
            seconds[system].append((result.stats.decode_seconds - first.seconds) / num_tokens)
            if system is not None and system[1] == DEPTH:
                rounds[system[0]] += [1 + each.num_accepted_tokens for each in result.rounds[:-1]]
            progress.advance(task)
    facts = {}
    for family in dict.fromkeys(family for family, _ in engines):
        speed = {
            length: statistics.fmean(seconds[None]) / statistics.fmean(seconds[family, length])
            for other, length in engines
            if other == family
        }
        best = max(speed, key=lambda length: speed[length])
        facts[family] = {
            "acceptance_length": statistics.fmean(rounds[family]),
            "speed": speed,
            "best_length": best,
            "best_speed": speed[best],
        }
    return {"plain_tokens_per_second": 1 / statistics.fmean(seconds[None]), "prompts": len(prompts), **facts}


def show(found: dict[str, dict[str, Any]]) -> None:
    table = Table(title=f"specialists alone on their own domain: acceptance length at K = {DEPTH}, speed at the best K")
    table.add_column("domain")
    families = [name for name in next(iter(found.values())) if name in FAMILIES]
    for family in families:
        table.add_column(f"{family}: length", justify="right")
        table.add_column("times plain", justify="right")
    for domain, facts in found.items():
        cells = []
        for family in families:
            own = facts[family]
            cells += [f"{own['acceptance_length']:.2f}", f"{own['best_speed']:.2f} (K = {own['best_length']})"]
        table.add_row(domain, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
