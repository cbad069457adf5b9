"""A small drafter of each registered name, for a target over a toy Llama's vocabulary."""

import atexit
import functools
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from toys import lm, toy_llama

from metasd.drafters import DRAFTERS, Drafter
from metasd.drafters.eagle.checkpoint import save_head
from metasd.drafters.eagle.drafter import EagleDrafter
from metasd.drafters.eagle.head import EagleHead
from metasd.drafters.early_exit import EarlyExitDrafter
from metasd.drafters.lm import LMDrafter
from metasd.drafters.ngram_lm import NgramLMDrafter, write_ngram_lm
from metasd.target import Target
from metasd.training.eagle_run import head_config
from metasd.training.ngram_lm import count_ngrams

FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def eagle(target: Target, seed: int = 0, draft_ids: Sequence[int] | None = None) -> EagleDrafter:
    """A random EAGLE-1 head, written to a folder and loaded again; without `draft_ids` all but one token."""
    size = target.model.config.vocab_size
    head = EagleHead(head_config(target))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
    ids = torch.tensor([token for token in range(size) if token != size // 2] if draft_ids is None else draft_ids)
    folder = FOLDER / f"head{seed}-{size}-{len(ids)}"
    save_head(folder, head, ids, {})
    return EagleDrafter(target, str(folder), "eagle")


@functools.cache
def counts_file(vocab_size: int) -> Path:
    """Counts of a random text over some of the vocabulary."""
    text = random.Random(8).choices(range(max(vocab_size - 1, 2)), k=50 * vocab_size)
    path = FOLDER / f"counts{vocab_size}.safetensors"
    write_ngram_lm(path, count_ngrams([([], text)]), vocab_size, {})
    return path


def lm_with_fewer_rows(target: Target) -> LMDrafter:
    """A causal model that drafts even tokens only."""
    size = target.vocab_size
    path = FOLDER / f"ids{size}.json"
    path.write_text(str(list(range(0, size, 2))))
    model = toy_llama(seed=1, vocab_size=size)
    return LMDrafter(target, "lm-even", vocab_ids=str(path), model=model)


SPECIAL: dict[str, Callable[[Target], Drafter]] = {
    "lm": lambda target: lm(target, toy_llama(seed=1, vocab_size=target.vocab_size), "lm"),
    "lm-even": lm_with_fewer_rows,
    "eagle": eagle,
    "early-exit": lambda target: EarlyExitDrafter(target, 1),
    "ngram-lm": lambda target: NgramLMDrafter(target, str(counts_file(target.vocab_size)), "ngram-lm"),
}
"""Drafters that a bare name does not build."""
NAMES = list(dict.fromkeys([*DRAFTERS.names(), *SPECIAL]))
"""What the contract tests run over."""


def made(name: str, target: Target) -> Drafter:
    """A drafter of a registered name."""
    drafter: Drafter = SPECIAL[name](target) if name in SPECIAL else DRAFTERS.load(name).from_options(target, {})
    return drafter
