"""EAGLE heads on disk: reads every layout (see `layout`), writes the raw one of EAGLE-1.

Our extension of the latter: a reduced draft vocabulary that shares rows of the target's head, as EAGLE-3 states it:
`draft_vocab_size` in the config and an int64 tensor `d2t` of offsets, target id = i + d2t[i].
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from metasd.core import MetaSDError, refuse
from metasd.drafters.eagle.config import HeadConfig
from metasd.drafters.eagle.head import EagleHead
from metasd.drafters.eagle.layout import Described, describe
from metasd.drafters.eagle.weight_files import WeightFiles, read_json, weight_paths

_BESIDE_THE_HEAD = frozenset({"embed_tokens.weight", "lm_head.weight", "d2t", "t2d"})
# Left over from training: the target's own tensors, and frequencies that follow from the config.
_UNUSED = re.compile(r"verifier_.*|.*rotary_emb\.inv_freq")


@dataclass(frozen=True)
class LoadedHead:
    """A head with the vocabulary it speaks.

    Attributes:
        head: in eval mode, on the device and in the dtype asked for; its rotary embedding computes in float32.
        embedding: `[V, H]` of its own; None: the target's.
        vocab_matrix: `[V_d or V, H]` of its own; None: the target's rows, those of `draft_to_target` where it is given.
        draft_to_target: `[V_d]` int64, different ids of the target; None: the whole vocabulary.
        layout: "eagle-1", "eagle-3" or "speculators".
        assumptions: what the checkpoint leaves open and had to be assumed, one sentence each.
    """

    head: EagleHead
    embedding: Tensor | None
    vocab_matrix: Tensor | None
    draft_to_target: Tensor | None
    layout: str
    assumptions: tuple[str, ...]


def is_eagle_folder(folder: Path) -> bool:
    """Whether a folder holds an EAGLE head, or another head of the library speculators (which `load_head` refuses).

    Goes by config.json and the names of the tensors; reads no data. Where the weights cannot be read, the name of the
    architecture decides.
    """
    try:
        config = read_json(folder / "config.json")
    except MetaSDError:
        return False
    if "speculators_model_type" in config or "speculators_config" in config:
        return True
    try:
        return "fc.weight" in _names(WeightFiles(folder))
    except MetaSDError:
        return "eagle" in str(config.get("architectures")).lower()


def estimate_bytes(folder: Path) -> int:
    """Bytes of the weights as stored, known before any is loaded.

    Raises:
        MetaSDError: there are none.
    """
    return sum(path.stat().st_size for path in weight_paths(folder))


def load_head(folder: Path, target_config: Any, *, dtype: torch.dtype, device: torch.device | str) -> LoadedHead:
    """A head in any layout, for one target.

    Args:
        folder: with config.json and the weights.
        target_config: transformers' config of the target.

    Raises:
        MetaSDError: no such folder; no EAGLE head; a file is missing or damaged; a tensor is missing, superfluous or
            of another shape than config and target demand; a flag is unknown, contradictory or unsupported; the
            vocabulary map is not one. The message names the file and the key or tensor.
    """
    if not folder.is_dir():
        raise MetaSDError(f"no folder {str(folder)!r}; expected a folder with a checkpoint of an EAGLE head")
    path = folder / "config.json"
    config = read_json(path)
    files = WeightFiles(folder)
    names = _names(files)
    described = describe(path, config, names, target_config)
    with torch.device("meta"):
        head = EagleHead(described.config)
    shapes = {name: files.shapes[stored] for name, stored in names.items()}
    places = _places(described.config, head.state_dict(), described.layer)
    own = _check_tensors(folder, described, head, places, shapes)

    def read(name: str) -> Tensor:
        # Copied: what is read may be mapped from the file.
        return files.read(names[name]).to(device=device, dtype=dtype, copy=True)

    # The parameters alone take the dtype: in bfloat16 the rotary frequencies would be off by a per cent.
    head.load_state_dict({part: read(name) for part, name in places.items()}, assign=True)
    vocabulary: dict[str, Tensor] = {name: files.read(names[name]) for name in ("d2t", "t2d") if name in names}
    draft_to_target = _draft_to_target(folder, described, vocabulary)
    assumptions = list(described.assumptions)
    if described.config.version == 3 and "lm_head.weight" not in own:
        assumptions.append("There is no lm_head.weight; the target's head is used.")
    if described.config.version == 1 and "lm_head.weight" in own:
        assumptions.append("lm_head.weight is used in place of the target's head.")
    return LoadedHead(
        head=head.to(device).eval(),
        embedding=read("embed_tokens.weight") if "embed_tokens.weight" in own else None,
        vocab_matrix=read("lm_head.weight") if "lm_head.weight" in own else None,
        draft_to_target=None if draft_to_target is None else draft_to_target.to(device),
        layout=described.layout,
        assumptions=tuple(assumptions),
    )


def save_head(folder: Path, head: EagleHead, draft_to_target: Tensor | None, metadata: dict[str, str]) -> None:
    """Write config.json and model.safetensors in the layout of EAGLE-1, in the head's dtype.

    Args:
        folder: made where it is missing; files of these names are replaced.
        draft_to_target: `[V_d]` int64, different ids of the target that a draft can be drawn from; None: all.
        metadata: goes into the header of the weights.

    Raises:
        UsageError: not an EAGLE-1 head, or the map is not one or contradicts the head's config.
    """
    config = head.config
    if config.version != 1 or config.feature_size != config.hidden_size:
        raise refuse("head", "an EAGLE-1 head as wide as its target", f"version {config.version}")
    layer = "layers.0."
    places = _places(config, head.state_dict(), layer)
    tensors = {name: head.state_dict()[part].detach().cpu().contiguous() for part, name in places.items()}
    num_rows = None if draft_to_target is None else draft_to_target.numel()
    if config.draft_vocab_size not in (None, num_rows):
        raise refuse("draft_to_target", f"{config.draft_vocab_size} ids, as in the head's config", num_rows)
    if draft_to_target is not None:
        ids = draft_to_target.cpu()
        if ids.dtype != torch.int64 or ids.dim() != 1 or ids.unique().numel() != num_rows or int(ids.min()) < 0:
            raise refuse("draft_to_target", "[V_d] int64, different ids of the target", f"{ids.dtype} {ids}")
        tensors["d2t"] = ids - torch.arange(num_rows or 0)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {name: folder / f"{name}.partial" for name in ("model.safetensors", "config.json")}
    save_file(tensors, parts["model.safetensors"], metadata={**metadata, "format": "pt"})
    parts["model.safetensors"].chmod(0o644)  # safetensors makes files that only their owner can read
    dtype = str(next(head.parameters()).dtype).removeprefix("torch.")
    parts["config.json"].write_text(json.dumps(_llama_config(config, num_rows, dtype), indent=2) + "\n")
    for name, part in parts.items():  # a reader never meets half a file
        os.replace(part, folder / name)


def _llama_config(config: HeadConfig, num_rows: int | None, dtype: str) -> dict[str, Any]:
    """In the words of transformers 4, which every trainer and server understands."""
    rope = LlamaConfig(**config.rope)
    scaling: dict[str, Any] = dict(rope.rope_parameters or {})
    theta = scaling.pop("rope_theta")
    content = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": rope.max_position_embeddings,
        "rope_theta": theta,
        "rope_scaling": None if scaling["rope_type"] == "default" else scaling,
        "bias": config.fc_bias,
        "qkv_bias": config.attention_bias,
        "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": num_rows,
    }
    return {key: value for key, value in content.items() if value is not None or key == "rope_scaling"}


def _names(files: WeightFiles) -> dict[str, str]:
    """The names as the layouts have them, and as stored; some trainers put `model.` before all but the head's."""
    stored = files.shapes
    if "model.fc.weight" not in stored:
        return {name: name for name in stored}
    return {name.removeprefix("model."): name for name in stored}


def _places(config: HeadConfig, parts: Iterable[str], layer: str) -> dict[str, str]:
    """Where each part of an `EagleHead` stands in a checkpoint."""

    def place(part: str) -> str:
        module = part.split(".")[0]
        if module in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"):
            return f"{layer}self_attn.{part}"
        if module in ("gate_proj", "up_proj", "down_proj"):
            return f"{layer}mlp.{part}"
        if module in ("post_attention_layernorm", "input_layernorm", "hidden_norm"):
            return f"{layer}{part}"
        return part.replace("fc_norms.", "fc_norm.")

    return {part: place(part) for part in parts}


def _check_tensors(
    folder: Path, described: Described, head: EagleHead, places: dict[str, str], shapes: dict[str, tuple[int, ...]]
) -> set[str]:
    """Compare what is there with what must be; returns the names of what may be there and is."""
    config, rows = described.config, described.num_rows
    vocab_size = config.vocab_size or rows
    expected = {places[part]: tuple(tensor.shape) for part, tensor in head.state_dict().items()}
    optional = {
        "embed_tokens.weight": (vocab_size, config.hidden_size),
        "lm_head.weight": (rows, config.hidden_size),
        "d2t": (rows,),
        "t2d": (vocab_size,),
    }
    required = set(expected)
    if rows != vocab_size:
        required.add("d2t")
    if config.hidden_size != config.feature_size:  # the target's matrices do not fit
        required |= {"embed_tokens.weight", "lm_head.weight"}
    missing = sorted(required - set(shapes))
    if missing:
        raise MetaSDError(f"{folder}: the tensor {missing[0]} is missing; a head as in config.json needs it")
    for name, shape in (expected | optional).items():
        if name in shapes and shapes[name] != shape:
            raise MetaSDError(
                f"{folder}: {name}: expected shape {list(shape)} from config.json and the target, "
                f"got {list(shapes[name])}"
            )
    extra = sorted(name for name in set(shapes) - set(expected) - set(optional) if not _UNUSED.fullmatch(name))
    if extra:
        raise MetaSDError(
            f"{folder}: the tensor {extra[0]} belongs to no {described.layout} head as in config.json; "
            "without it the head would compute something else"
        )
    return set(shapes) & set(optional)


def _draft_to_target(folder: Path, described: Described, vocabulary: dict[str, Tensor]) -> Tensor | None:
    """Absolute ids from the offsets, checked; None where they are the whole vocabulary in order."""
    rows, vocab_size = described.num_rows, described.config.vocab_size or described.num_rows
    ids = torch.arange(rows)
    if "d2t" in vocabulary:
        offsets = vocabulary["d2t"]
        if offsets.is_floating_point() or offsets.dtype == torch.bool:
            raise MetaSDError(f"{folder}: d2t: expected int64 offsets, got {offsets.dtype}")
        ids = ids + offsets.to(torch.int64)
        outside = ids[(ids < 0) | (ids >= vocab_size)]
        if outside.numel():
            raise MetaSDError(
                f"{folder}: d2t: expected offsets to ids in [0, {vocab_size}), got the id {int(outside[0])}"
            )
        if ids.unique().numel() != rows:
            raise MetaSDError(f"{folder}: d2t: expected offsets to different ids, got one twice")
        if rows == vocab_size and offsets.any():
            raise MetaSDError(f"{folder}: d2t: expected zeros, as the draft vocabulary is the whole one, got others")
    if "t2d" in vocabulary:
        is_drafted = torch.zeros(vocab_size, dtype=torch.bool)
        is_drafted[ids] = True
        wrong = (vocabulary["t2d"].bool() != is_drafted).nonzero()
        if wrong.numel():
            raise MetaSDError(
                f"{folder}: t2d: expected true exactly at d2t's ids, got another value at {int(wrong[0])}"
            )
    return None if rows == vocab_size else ids
