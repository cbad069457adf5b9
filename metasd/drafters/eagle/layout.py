"""What a checkpoint's config.json says, told apart by layout and translated into a `HeadConfig`.

Layouts, learned from their trainers and servers (SafeAILab/EAGLE, vllm-project/speculators, sgl-project/SpecForge,
NVIDIA ModelOpt; vLLM, SGLang):

- eagle-1 (also EAGLE-2, HASS): a Llama config; `bias` (of `fc`) is true where missing.
- eagle-3: a Llama config, flags beside it or in `eagle_config`; tensors `midlayer.*`.
- speculators: flags on top, the layer in `transformer_layer_config`; tensors `layers.0.*`.

Depths. `eagle_aux_hidden_state_layer_ids` counts what enters a layer (transformers' `hidden_states`, `FeatureTap`) in
speculators and vLLM, and what leaves it in SpecForge, ModelOpt and older SGLang. Written as outputs, the usual list
begins with 1, and SGLang tells the two apart by that (its pull request 25454); so does this file in raw checkpoints.
Where the list is missing all agree on inputs 2, n // 2 and n - 3.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from metasd.core import MetaSDError
from metasd.drafters.eagle.config import HeadConfig
from metasd.drafters.eagle.config_keys import ConfigReader

_IDS = "eagle_aux_hidden_state_layer_ids"
_ROPE_KEYS = ("rope_theta", "original_max_position_embeddings")
_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_QWEN3_HEAD_DIM = 128  # Qwen3's default; Llama's is hidden_size / heads


@dataclass(frozen=True)
class Described:
    """A checkpoint before its tensors are read.

    Attributes:
        layer: prefix of the names of the decoder layer's tensors.
        num_rows: of the vocabulary matrix.
    """

    layout: str
    layer: str
    config: HeadConfig
    num_rows: int
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class _Target:
    hidden_size: int
    vocab_size: int
    num_layers: int

    @classmethod
    def of(cls, config: Any) -> "_Target":
        if hasattr(config, "get_text_config"):
            config = config.get_text_config(decoder=True)
        return cls(config.hidden_size, config.vocab_size, config.num_hidden_layers)


def find_layout(path: Path, config: dict[str, Any], names: Collection[str]) -> tuple[str, str]:
    """The layout, and the prefix of the layer's tensors.

    Raises:
        MetaSDError: no layout of an EAGLE head; the message says what was found.
    """
    kind = config.get("speculators_model_type")
    if kind is not None or "speculators_config" in config:
        if kind == "eagle3":
            return "speculators", "layers.0."
        raise MetaSDError(
            f"{path}: expected speculators_model_type 'eagle3', got {kind!r}; of the library speculators only EAGLE-3 "
            "heads can be read, EAGLE-1 heads in the layout of SafeAILab/EAGLE"
        )
    if "fc.weight" in names:
        for layer in ("midlayer.", "layers.0."):
            if f"{layer}hidden_norm.weight" in names:
                return "eagle-3", layer
        if any(name.startswith("midlayer.") for name in names):
            return "eagle-3", "midlayer."
        if any(name.startswith("layers.0.") for name in names):
            return "eagle-1", "layers.0."
    found = ", ".join(sorted(names)[:3]) or "none"
    raise MetaSDError(
        f"{path.parent}: expected an EAGLE head, that is tensors fc.weight and midlayer.* or layers.0.*; "
        f"got {len(names)} others: {found}"
    )


def describe(path: Path, config: dict[str, Any], names: Collection[str], target_config: Any) -> Described:
    """Sizes and flags of a head, checked against its target.

    Args:
        path: of config.json, for errors.
        config: its content.
        names: of the tensors.
        target_config: transformers' config of the target.

    Raises:
        MetaSDError: the layout is none of an EAGLE head, or a key is missing, unusable, unknown, contradicts another or
            the target; the message names file and key.
    """
    layout, layer = find_layout(path, config, names)
    version = 1 if layout == "eagle-1" else 3
    inner_name = "transformer_layer_config" if layout == "speculators" else "eagle_config"
    reader = ConfigReader(path, config, inner_name, needs_inner=layout == "speculators")
    reader.refuse_other_mathematics(version)
    target = _Target.of(target_config)

    is_qwen3 = layout == "speculators" and reader.inner_choice("model_type", ("llama", "qwen3")) == "qwen3"
    hidden = reader.integer("hidden_size")
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", heads)
    head_dim = reader.integer("head_dim", _QWEN3_HEAD_DIM if is_qwen3 else hidden // heads)
    if hidden % heads and not is_qwen3 and reader.value("head_dim") is None:
        raise reader.refuse("head_dim", f"a size: hidden_size {hidden} is no multiple of {heads} heads", "none")
    if heads % kv_heads:
        raise reader.refuse("num_key_value_heads", f"a divisor of num_attention_heads {heads}", kv_heads)
    feature_size = reader.integer("target_hidden_size", hidden) if version == 3 else hidden
    if feature_size != target.hidden_size:
        key = "target_hidden_size" if reader.value("target_hidden_size") is not None else "hidden_size"
        raise reader.refuse(key, f"the target's hidden size {target.hidden_size}", feature_size)
    vocab_key = "vocab_size" if reader.value("target_vocab_size") is None else "target_vocab_size"
    if reader.integer(vocab_key, target.vocab_size) != target.vocab_size:
        raise reader.refuse(vocab_key, f"the target's {target.vocab_size}", reader.value(vocab_key))

    activation = reader.value("hidden_act", "silu")
    if not isinstance(activation, str) or activation not in ACT2FN:
        raise reader.refuse("hidden_act", "an activation of transformers", repr(activation))
    num_rows = _num_rows(reader, target)
    head_config = HeadConfig(
        version=version,
        hidden_size=hidden,
        feature_size=feature_size,
        intermediate_size=reader.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        hidden_act=activation,
        qk_norm=is_qwen3,
        rope=_rope(reader, head_dim),
        draft_vocab_size=num_rows if num_rows < target.vocab_size else None,
        vocab_size=target.vocab_size,
        **_biases(reader, names, layer, version),
        **(_third(reader, names, target, layout) if version == 3 else {}),
    )
    return Described(layout, layer, head_config, num_rows, tuple(reader.assumptions))


def _num_rows(reader: ConfigReader, target: _Target) -> int:
    key = "draft_vocab_size" if reader.value("draft_vocab_size") is not None else "truncated_vocab_size"
    num_rows = reader.integer(key, target.vocab_size)
    if num_rows > target.vocab_size:
        raise reader.refuse(key, f"at most the target's {target.vocab_size}", num_rows)
    return num_rows


def _rope(reader: ConfigReader, head_dim: int) -> dict[str, Any]:
    expected = f"one rotary embedding over the whole head_dim, of a type among {', '.join(_ROPE_TYPES)}"
    parameters: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):  # some trainers write both; the newer one knows more
        given = reader.value(key, {})
        if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
            raise reader.refuse(key, expected, given)
        parameters |= given
    parameters |= {
        key: value for key in _ROPE_KEYS if key not in parameters and (value := reader.value(key)) is not None
    }
    rope: dict[str, Any] = {
        "head_dim": head_dim,
        "max_position_embeddings": reader.integer("max_position_embeddings", 2048),
    }
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in _ROPE_TYPES or parameters.get("partial_rotary_factor", 1) != 1:
        raise reader.refuse("rope_parameters", expected, parameters)
    try:
        rope["rope_parameters"] = dict(LlamaConfig(**rope, rope_parameters=parameters or None).rope_parameters or {})
        LlamaRotaryEmbedding(LlamaConfig(**rope))
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise reader.refuse("rope_parameters", "settings that transformers understands", reason) from error
    return rope


def _biases(reader: ConfigReader, names: Collection[str], layer: str, version: int) -> dict[str, Any]:
    """What the config leaves open is read off the tensors; what it declares is checked against them by the caller."""

    def declared_or_found(declared: bool | None, name: str, keys: str) -> bool:
        found = name in names
        if declared is None and found:
            reader.assumptions.append(f"{keys} is not set; {name} is used, since it is there.")
        return found if declared is None else declared

    qkv = reader.flag("qkv_bias")
    attention, mlp = reader.flag("attention_bias"), reader.flag("mlp_bias")
    output = attention
    if attention and f"{layer}self_attn.o_proj.bias" not in names:
        output = False  # Qwen2: a bias for queries, keys and values only
        reader.assumptions.append("attention_bias is true, yet o_proj has no bias; taken as meant for q, k and v only.")
    fc, declared = "fc.bias" in names, reader.flag("bias")
    if version == 1 and declared is None and not fc:
        reader.assumptions.append("bias is not set, which means true, yet there is no fc.bias; taken as false.")
    if declared is False or (version == 1 and declared):  # EAGLE-3's trainer takes no notice of a true one
        fc = declared
    return {
        "fc_bias": fc,
        "attention_bias": declared_or_found(
            attention if qkv is None else qkv, f"{layer}self_attn.q_proj.bias", "qkv_bias or attention_bias"
        ),
        "output_bias": declared_or_found(output, f"{layer}self_attn.o_proj.bias", "attention_bias"),
        "mlp_bias": declared_or_found(mlp, f"{layer}mlp.gate_proj.bias", "mlp_bias"),
    }


def _third(reader: ConfigReader, names: Collection[str], target: _Target, layout: str) -> dict[str, Any]:
    before_residual = reader.flag("norm_before_residual")
    if before_residual is None and layout == "speculators":
        reader.assumptions.append(
            "norm_before_residual is not set; taken as false, the library's default (vLLM would take it as true)."
        )
    flags = {}
    for key, name in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
        flag = reader.flag(key)
        if flag is None and name in names:
            reader.assumptions.append(f"{key} is not set; taken as true, since {name} is there.")
        flags[key] = name in names if flag is None else flag
    if all(flags.values()):
        raise reader.refuse("fc_norm", "false where norm_before_fc is true: they exclude each other", True)
    output = reader.flag("norm_output")
    if output is not None and layout == "eagle-3":
        reader.assumptions.append(
            f"norm_output is {str(output).lower()} and read as vLLM and SGLang do, whether the last norm's output is "
            "fed back; SpecForge meant something else until September 2026."
        )
    # TensorRT-LLM's name for the same.
    output = reader.flag("return_hidden_post_norm") if output is None else output
    layers = _feature_layers(reader, target, layout)
    return {
        "norm_before_residual": bool(before_residual), **flags, "norm_output": bool(output),
        "num_features": len(layers), "feature_layers": layers,
    }  # fmt: skip


def _feature_layers(reader: ConfigReader, target: _Target, layout: str) -> tuple[int, ...]:
    count = target.num_layers
    ids = reader.value(_IDS)
    if ids is None or ids == []:
        layers = [2, count // 2, count - 3]
    elif not isinstance(ids, list) or not all(type(layer) is int and layer >= 0 for layer in ids):
        raise reader.refuse(_IDS, f"a list of integers in [0, {count})", ids)
    elif layout == "eagle-3" and ids[0] == 1:
        layers = [layer + 1 for layer in ids]
        reader.assumptions.append(
            f"{_IDS} {ids} begins with 1 and is taken as outputs of layers, hidden_states {layers}."
        )
    else:
        layers = ids
        if layout == "eagle-3" or ids[0] == 1:
            reader.assumptions.append(f"{_IDS} {ids} is taken as inputs of layers, hidden_states {layers}, as in vLLM.")
    if any(not 0 <= layer < count for layer in layers) or len(set(layers)) < len(layers):
        raise reader.refuse(
            _IDS, f"different inputs of the target's layers, in [0, {count}) (not what leaves the last one)",
            f"hidden_states {layers}",
        )  # fmt: skip
    return tuple(layers)
