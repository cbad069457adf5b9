"""A small drafter of each registered name, for a target over a toy Llama's vocabulary."""

import atexit
import functools
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
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


def eagle3(target: Target) -> EagleDrafter:
    """A random EAGLE-3 head in the speculators layout, on what enters both layers; every third token is not drafted."""
    config, size = target.model.config, target.model.config.vocab_size
    layer = {
        "model_type": "llama", "hidden_size": config.hidden_size, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": size,
        "max_position_embeddings": 512, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    ids = torch.tensor([token for token in range(size) if token % 3 != 1])
    flags = {"norm_before_residual": True, "norm_before_fc": False, "fc_norm": False, "norm_output": False}
    whole = {
        "speculators_model_type": "eagle3", "transformer_layer_config": layer, "draft_vocab_size": len(ids),
        "eagle_aux_hidden_state_layer_ids": [0, 1], **flags,
    }  # fmt: skip
    folder = FOLDER / f"third-{size}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(whole))
    head = EagleHead(
        replace(head_config(target), version=3, num_features=2, fc_bias=False, intermediate_size=64, num_heads=4)
    )
    generator = torch.Generator().manual_seed(4)
    tensors = {"lm_head.weight": torch.randn(len(ids), config.hidden_size, generator=generator)}
    tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": torch.isin(torch.arange(size), ids)}
    for part, weight in head.state_dict().items():
        name = part if part.split(".")[0] in ("fc", "norm") else f"layers.0.{_PLACES.get(part.split('.')[0], '')}{part}"
        tensors[name] = torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5
    save_file(tensors, folder / "model.safetensors")
    return EagleDrafter(target, str(folder), "eagle-3")


_PLACES = {f"{name}_proj": "self_attn." for name in "qkvo"} | {
    f"{name}_proj": "mlp." for name in ("gate", "up", "down")
}


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
    "eagle-3": eagle3,
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
