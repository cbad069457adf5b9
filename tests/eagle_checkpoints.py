"""EAGLE checkpoints of tiny random weights as foreign trainers save them, and what such a head computes."""

import json
import math
import pathlib
import zlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

HIDDEN, VOCAB, DRAFT_VOCAB, WIDE = 32, 64, 24, 48
HEADS, KV_HEADS = 4, 2
TARGET = LlamaConfig(
    vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=WIDE, num_hidden_layers=8, num_attention_heads=HEADS
)
DRAFT_IDS = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:DRAFT_VOCAB].sort().values
_FLAGS = {"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False}


def tensor(name: str, *shape: int) -> Tensor:
    """The same name and shape give the same weights, whatever else is in a checkpoint."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    noise = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1 + 0.3 * noise
    return noise * (0.3 if name.endswith("bias") else 1.2 / math.sqrt(shape[-1]))


@dataclass(frozen=True)
class Checkpoint:
    """What a trainer writes: a config and tensors; changed by methods that return another one."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def with_config(self, **changes: Any) -> "Checkpoint":
        return replace(self, config=self.config | changes)

    def with_tensors(self, **changes: Tensor | None) -> "Checkpoint":
        """None takes a tensor away; a double underscore stands for a point."""
        merged = self.tensors | {name.replace("__", "."): value for name, value in changes.items()}
        return replace(self, tensors={name: value for name, value in merged.items() if value is not None})

    def save(self, folder: pathlib.Path, form: str = "safetensors") -> pathlib.Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if form == "safetensors":
            save_file(self.tensors, folder / "model.safetensors")
        elif form == "sharded":
            names = sorted(self.tensors)
            parts = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
            for file, part in parts.items():
                save_file({name: self.tensors[name] for name in part}, folder / file)
            places = {name: file for file, part in parts.items() for name in part}
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        else:
            is_zip = form == "bin"
            torch.save(self.tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
        return folder


def _sizes(head_dim: int) -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": 1,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": head_dim, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "max_position_embeddings": 128, "vocab_size": VOCAB, "rope_theta": 500.0,
        "tie_word_embeddings": False, "transformers_version": "4.40.0", "_name_or_path": "somewhere",
    }  # fmt: skip


def _layer(prefix: str, width: int, head_dim: int) -> dict[str, Tensor]:
    shapes = {
        "self_attn.q_proj.weight": (HEADS * head_dim, width),
        "self_attn.k_proj.weight": (KV_HEADS * head_dim, width),
        "self_attn.v_proj.weight": (KV_HEADS * head_dim, width),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * head_dim),
        "mlp.gate_proj.weight": (WIDE, HIDDEN),
        "mlp.up_proj.weight": (WIDE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, WIDE),
        "post_attention_layernorm.weight": (HIDDEN,),
    }
    return {prefix + name: tensor(name, *shape) for name, shape in shapes.items()}


def eagle1(*, fc_bias: bool = True, qkv_bias: bool = False, draft: bool = False) -> Checkpoint:
    config = _sizes(8) | {"architectures": ["LlamaForCausalLM"]}
    tensors = _layer("layers.0.", HIDDEN, 8) | {"fc.weight": tensor("fc", HIDDEN, 2 * HIDDEN)}
    if fc_bias:
        tensors["fc.bias"] = tensor("fc.bias", HIDDEN)
    else:
        config["bias"] = False
    if qkv_bias:
        config["qkv_bias"] = True
        for part, count in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"layers.0.self_attn.{part}_proj.bias"] = tensor(f"{part}.bias", 8 * count)
    if draft:
        config["draft_vocab_size"] = DRAFT_VOCAB
        tensors["d2t"] = DRAFT_IDS - torch.arange(DRAFT_VOCAB)
    return Checkpoint(config, tensors)


def _third(prefix: str, feature_size: int, num_features: int, head_dim: int, draft: bool) -> dict[str, Tensor]:
    rows = DRAFT_VOCAB if draft else VOCAB
    tensors = _layer(prefix, 2 * HIDDEN, head_dim) | {
        f"{prefix}input_layernorm.weight": tensor("input_layernorm", HIDDEN),
        f"{prefix}hidden_norm.weight": tensor("hidden_norm", HIDDEN),
        "fc.weight": tensor("fc", HIDDEN, num_features * feature_size),
        "norm.weight": tensor("norm", HIDDEN),
        "lm_head.weight": tensor("lm_head", rows, HIDDEN),
    }
    if draft:
        is_drafted = torch.zeros(VOCAB, dtype=torch.bool)
        is_drafted[DRAFT_IDS] = True
        tensors |= {"d2t": DRAFT_IDS - torch.arange(DRAFT_VOCAB), "t2d": is_drafted}
    return tensors


def eagle3(*, feature_size: int = HIDDEN, draft: bool = True) -> Checkpoint:
    config = _sizes(8) | {"architectures": ["LlamaForCausalLMEagle3"]}
    tensors = _third("midlayer.", feature_size, 3, 8, draft)
    if draft:
        config["draft_vocab_size"] = DRAFT_VOCAB
    if feature_size != HIDDEN:
        config["target_hidden_size"] = feature_size
        tensors["embed_tokens.weight"] = tensor("embed", VOCAB, HIDDEN)
    return Checkpoint(config, tensors)


def speculators(
    *, kind: str = "llama", layers: tuple[int, ...] = (2, 4, 5), head_dim: int = 12, **flags: bool
) -> Checkpoint:
    tensors = _third("layers.0.", HIDDEN, len(layers), head_dim, True)
    flags = _FLAGS | flags
    if flags["norm_before_fc"]:
        tensors["input_norm.weight"] = tensor("input_norm", len(layers) * HIDDEN)
    if flags["fc_norm"]:
        tensors |= {f"fc_norm.{i}.weight": tensor(f"fc_norm.{i}", HIDDEN) for i in range(len(layers))}
    if kind == "qwen3":
        tensors |= {f"layers.0.self_attn.{part}_norm.weight": tensor(f"{part}_norm", head_dim) for part in "qk"}
    layer = _sizes(head_dim) | {"model_type": kind, "attention_bias": False}
    del layer["rope_theta"]
    layer["rope_parameters"] = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    config = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.5.0",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "somewhere"}},
        "draft_vocab_size": DRAFT_VOCAB, "eagle_aux_hidden_state_layer_ids": list(layers),
        "embed_requires_grad": False, "target_hidden_size": None, "transformer_layer_config": layer, **flags,
    }  # fmt: skip
    return Checkpoint(config, tensors)


def straight_line(checkpoint: Checkpoint, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """What a head says behind each pair, in float64, every position computed anew in every step.

    Args:
        embedded: `[N, H]`; features: `[L, F]` of the first L; behind them the head feeds on itself.

    Returns:
        `[N, H]` each: input of the vocabulary matrix, what is fed back.
    """
    config = dict(checkpoint.config)
    for section in ("transformer_layer_config", "eagle_config"):
        config |= config.get(section) or {}
    w = {name.replace("midlayer.", "layers.0."): t.double() for name, t in checkpoint.tensors.items()}
    eps = config["rms_norm_eps"]

    def norm(x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w[name + ".weight"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    is_third = "norm.weight" in w
    hidden = features.double()
    if is_third:
        if config.get("norm_before_fc"):
            hidden = norm(hidden, "input_norm")
        if config.get("fc_norm"):
            hidden = torch.cat([norm(x, f"fc_norm.{i}") for i, x in enumerate(hidden.split(HIDDEN, dim=-1))], dim=-1)
        hidden = linear(hidden, "fc")
    while True:
        e = embedded[: len(hidden)].double()
        if is_third:
            n = norm(hidden, "layers.0.hidden_norm")
            residual = n if config.get("norm_before_residual") else hidden
            x = torch.cat([norm(e, "layers.0.input_layernorm"), n], dim=-1)
        else:
            x = residual = linear(torch.cat([e, hidden], dim=-1), "fc")
        x = residual + linear(_attention(x, w, linear, norm, config), "layers.0.self_attn.o_proj")
        y = norm(x, "layers.0.post_attention_layernorm")
        gate = linear(y, "layers.0.mlp.gate_proj")
        x = x + linear(gate / (1 + torch.exp(-gate)) * linear(y, "layers.0.mlp.up_proj"), "layers.0.mlp.down_proj")
        out = norm(x, "norm") if is_third else x
        fed_back = out if config.get("norm_output") else x
        if len(hidden) == len(embedded):
            return out, fed_back
        hidden = torch.cat([hidden, fed_back[-1:]])


def _attention(x: Tensor, w: dict[str, Tensor], linear: Any, norm: Any, config: dict[str, Any]) -> Tensor:
    size = config["head_dim"]
    rope = {"factor": 1.0, "rope_theta": config.get("rope_theta"), **config.get("rope_parameters", {})}
    outputs = []
    parts = {part: linear(x, f"layers.0.self_attn.{part}_proj").split(size, dim=-1) for part in "qkv"}
    if "layers.0.self_attn.q_norm.weight" in w:
        parts |= {part: [norm(head, f"layers.0.self_attn.{part}_norm") for head in parts[part]] for part in "qk"}

    def turn(vector: Tensor) -> Tensor:
        turned = vector.clone()
        for position in range(len(vector)):
            for i in range(size // 2):
                angle = position / rope["factor"] * rope["rope_theta"] ** (-2 * i / size)
                a, b = vector[position, i], vector[position, i + size // 2]
                turned[position, i] = a * math.cos(angle) - b * math.sin(angle)
                turned[position, i + size // 2] = b * math.cos(angle) + a * math.sin(angle)
        return turned

    keys = [turn(head) for head in parts["k"]]
    for h, query in enumerate(parts["q"]):
        group = h // (HEADS // KV_HEADS)
        scores = turn(query) @ keys[group].T / math.sqrt(size)
        scores = torch.where(torch.ones_like(scores).tril() > 0, scores, -math.inf)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        outputs.append(weights / weights.sum(-1, keepdim=True) @ parts["v"][group])
    return torch.cat(outputs, dim=-1)
