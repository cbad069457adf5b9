"""The loop end to end on a target of 7B shape with random weights, and drafters whose acceptance is set.

    python benchmarks/gpu_loop.py --json OUT.json      # on a GPU: about three minutes
    python benchmarks/gpu_loop.py --tiny               # anywhere: that it runs, no figures

The target says the next link of a fixed chain whatever its weights compute, and a drafter drafts that link except where
a hash of the position says otherwise: forward passes cost what they cost, acceptance is known. Each system decodes the
same tokens, checked; systems take turns. Printed: tokens a second, acceptance length, and a round's time over the sum
of its forward passes, timed alone.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from passport import passport
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from metasd import MetaSD, SamplingParams
from metasd.cache import Window
from metasd.config import EngineConfig
from metasd.core import Coins, Draft
from metasd.drafters import Drafter, StaticDrafter, load_drafters
from metasd.drafters.lm import LMDrafter, StaticLM
from metasd.static import StaticSequence
from metasd.target import Target

LARGE = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip
SMALL = {**LARGE, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 2, "num_attention_heads": 12,
         "num_key_value_heads": 12}  # fmt: skip
TINY = {**SMALL, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": 500, "max_position_embeddings": 512}  # fmt: skip
ACCEPTANCES = (0.4, 0.55, 0.7, 0.8, 0.9)
NUM_DRAFT = 4


def link(token: Tensor, vocab_size: int) -> Tensor:
    """What comes behind a token."""
    return (token * 31 + 7) % vocab_size


class NoText:
    """In place of a tokenizer: tokens without a text."""

    chat_template = None
    all_special_tokens = ()

    def decode(self, ids: Any, **options: Any) -> str:
        return ""


class ChainTarget(Target):
    """A target whose largest logit is that of the chain's next link."""

    def score(self, token_ids: Tensor) -> Tensor:
        return self._chained(token_ids, super().score(token_ids))

    def score_window(self, token_ids: Tensor, window: Window) -> Tensor:
        return self._chained(token_ids, super().score_window(token_ids, window))

    def _chained(self, token_ids: Tensor, logits: Tensor) -> Tensor:
        best = torch.full_like(logits[..., :1], 1e4)
        return logits.scatter(2, link(token_ids, self.vocab_size).unsqueeze(-1), best)


class RiggedStatic(StaticLM):
    """Runs the model for each token, and drafts the chain where its hash says so."""

    def __init__(self, drafter: "Rigged") -> None:
        super().__init__(drafter.cache, drafter.target.vocab_size, None)
        self._acceptance = drafter.acceptance

    def step(self, sequence: StaticSequence, bucket: int, is_first: bool) -> None:
        self._read(sequence, 2, bucket)
        place = sequence.last(1)
        token = rigged(sequence.tokens[place], place, self._acceptance, self._vocab_size)
        sequence.tokens.index_copy_(0, place + 1, token)
        sequence.step.add_(1)


def rigged(token: Tensor, place: Tensor, acceptance: float, vocab_size: int) -> Tensor:
    is_right = (place * 7919 + 13) % 1000 < int(1000 * acceptance)
    return torch.where(is_right, link(token, vocab_size), torch.zeros_like(token))


class Rigged(LMDrafter):
    """A model of its own, whose acceptance is set."""

    def __init__(self, target: Target, model: Any, acceptance: float) -> None:
        super().__init__(target, f"accepts {acceptance:.0%}", model=model)
        self.acceptance = acceptance

    @property
    def static(self) -> StaticDrafter:
        if self._static is None:
            self._static = RiggedStatic(self)
        return self._static

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        made = super().draft(num_draft_tokens, coins)
        if made is None:
            return None
        device, tokens = self.target.device, [torch.tensor(self._tokens[-1:], device=self.target.device)]
        for k in range(num_draft_tokens):
            place = torch.tensor([len(self._tokens) - 1 + k], device=device)
            tokens.append(rigged(tokens[-1], place, self.acceptance, self.target.vocab_size))
        return Draft(torch.cat(tokens[1:]).unsqueeze(0))


def make(config: dict[str, Any], device: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    with torch.device(device):
        return LlamaForCausalLM(LlamaConfig(**config, bos_token_id=None, eos_token_id=None)).eval().to(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    target = ChainTarget(make(TINY if options.tiny else LARGE, device, dtype), NoText())
    small = TINY if options.tiny else SMALL
    drafters: list[str | Drafter] = [Rigged(target, make(small, device, dtype), share) for share in ACCEPTANCES]
    arms = load_drafters(drafters, target)
    systems = {"plain, host loop": engine_of(target, arms, "fixed:arm=null", loop="host"),
               "plain, captured": engine_of(target, arms, "fixed:arm=null", loop="static", delay=0)}  # fmt: skip
    for name in list(arms):
        if name != "null":
            systems[name] = engine_of(target, arms, f"fixed:arm={name}", loop="static", delay=1)
    systems["pool, host loop"] = engine_of(target, arms, "auto", loop="host")
    systems["pool"] = engine_of(target, arms, "auto", loop="static", delay=0)
    systems["pool, half a round late"] = engine_of(target, arms, "auto", loop="static", delay=1)
    found = measure(systems, options.new_tokens, options.turns, target.vocab_size)
    show(found)
    if options.json:
        options.json.write_text(json.dumps({"passport": passport(), "systems": found}, indent=1) + "\n")


def engine_of(target: Target, arms: dict[str, Drafter], bandit: str, **options: Any) -> MetaSD:
    length = "auto" if bandit == "auto" else NUM_DRAFT
    return MetaSD(target, arms, EngineConfig.build(bandit=bandit, num_draft_tokens=length, max_context=512, **options))


def measure(systems: dict[str, MetaSD], new_tokens: int, turns: int, vocab_size: int) -> dict[str, Any]:
    """By system: tokens a second (median over turns), acceptance length, seconds to the first token of the first."""
    prompt = [int(token) for token in torch.arange(64) % vocab_size]
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    wanted = [prompt[-1]]
    for _ in range(new_tokens):
        wanted.append(int(link(torch.tensor(wanted[-1]), vocab_size)))
    rates: dict[str, list[float]] = {name: [] for name in systems}
    facts: dict[str, Any] = {name: {} for name in systems}
    for name, engine in systems.items():
        begin = time.perf_counter()
        engine.generate(prompt, SamplingParams(max_new_tokens=1))
        facts[name]["first_token_seconds"] = time.perf_counter() - begin
        engine.generate(prompt, params)  # captures what it needs
    for _ in range(turns):
        for name, engine in systems.items():
            begin = time.perf_counter()
            result = engine.generate(prompt, params)
            rates[name].append(new_tokens / (time.perf_counter() - begin))
            assert result.token_ids == wanted[1:], f"{name} left the chain"
            facts[name]["acceptance_length"] = result.stats.acceptance_length
    for name in systems:
        facts[name]["tokens_per_second"] = statistics.median(rates[name])
    return facts


def show(found: dict[str, Any]) -> None:
    table = Table(title=f"one sequence, K = {NUM_DRAFT} unless the bandit chooses; prefill included")
    for column in ("system", "tokens/s", "times plain", "acceptance length", "first token, s"):
        table.add_column(column, justify="left" if column == "system" else "right")
    plain = found["plain, captured"]["tokens_per_second"]
    for name, own in found.items():
        table.add_row(name, f"{own['tokens_per_second']:.1f}", f"{own['tokens_per_second'] / plain:.2f}",
                      f"{own['acceptance_length']:.2f}", f"{own['first_token_seconds']:.2f}")  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
