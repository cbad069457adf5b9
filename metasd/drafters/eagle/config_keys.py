"""Reads keys of a head's config.json, and decides which ones may stand there.

A head with a flag that is not honoured runs, and only its acceptance suffers. So each key is one of:

1. read: `describe` asks for it;
2. neutral: known to leave a head's mathematics alone. Flags that would need tensors of their own (experts, say) are
   neutral too, since the tensors are compared one by one with what the head has;
3. fixed: changes the mathematics, and only one value is supported;
4. unknown: passes if it is off (null, false, zero, empty), starts with an underscore, or its name holds none of
   `_SUSPECT`; else it is an error.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metasd.core import MetaSDError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READ = _words(
    "hidden_size num_attention_heads num_key_value_heads head_dim target_hidden_size vocab_size target_vocab_size "
    "hidden_act intermediate_size rms_norm_eps draft_vocab_size truncated_vocab_size rope_scaling rope_parameters "
    "rope_theta original_max_position_embeddings max_position_embeddings qkv_bias attention_bias mlp_bias bias "
    "norm_before_residual norm_before_fc fc_norm norm_output return_hidden_post_norm eagle_aux_hidden_state_layer_ids "
    "speculators_config speculators_model_type"
)
_NEUTRAL = _words(
    "architectures model_type attention_dropout hidden_dropout attn_pdrop attn_implementation max_window_layers "
    "sliding_window sliding_window_pattern pretraining_tp tie_word_embeddings norm_topk_prob mlp_only_layers "
    "decoder_sparse_step initializer_range output_hidden_states output_attentions cross_attention_hidden_size "
    "has_lm_head next_layer_regular parallel_draft_heads_num_layers fc_input_size num_aux_hidden_states "
    "num_aux_layers embed_requires_grad layer_norm_eps"
)
_FIXED: dict[str, Any] = {
    "num_hidden_layers": 1,
    "logit_scale": 1,
    "logits_scaling": 1,
    "partial_rotary_factor": 1,
    "residual_multiplier": 1,
    "embedding_multiplier": 1,
    "use_sliding_window": False,
    "is_causal": True,
    "position_embedding_type": "rope",
    "parallel_draft_step": 1,
    "use_mtp_layernorm": False,
    "eh_proj_before_attn": False,
    "quantization_config": None,
}
_FIXED_BY_VERSION: dict[int, dict[str, Any]] = {
    1: {
        "use_aux_hidden_state": False,
        "use_input_layernorm_in_first_layer": False,
        "use_last_layernorm": False,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "return_hidden_post_norm": False,
        "eagle_aux_hidden_state_layer_ids": [],
    },
    3: {"use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True},
}
_SUSPECT = re.compile(
    "norm|bias|scal|rope|rotary|attention|attn|residual|multiplier|softcap|fc|hidden|eagle|draft|window|mask|layer|"
    "feature|temperature|activation|limit|alpha|quant"
)
_REQUIRED = object()


class ConfigReader:
    """Values of the outer config and of one section within it; a key that stands in both must say the same.

    Args:
        path: of config.json, for errors.
        config: its content.
        inner_name: of the section.
        needs_inner: the section must be there.

    Attributes:
        assumptions: one sentence for each thing that had to be assumed; the reader's user appends.
    """

    def __init__(self, path: Path, config: dict[str, Any], inner_name: str, needs_inner: bool) -> None:
        inner = config.get(inner_name)
        if inner is None and not needs_inner:
            inner = {}
        if not isinstance(inner, dict):
            raise MetaSDError(f"{path}: {inner_name}: expected an object, got {inner!r}")
        self.assumptions: list[str] = []
        self._path = path
        self._inner, self._inner_name = inner, inner_name
        self._sections = (config, inner)

    def refuse(self, key: str, expected: str, actual: object) -> MetaSDError:
        """The error for a key, to be raised by the caller."""
        return MetaSDError(f"{self._path}: {key}: expected {expected}, got {actual}")

    def value(self, key: str, default: Any = None) -> Any:
        """Null counts as missing."""
        found = [section[key] for section in self._sections if section.get(key) is not None]
        if len(found) == 2 and found[0] != found[1]:
            raise self.refuse(key, "one value", f"both {found[0]} and {found[1]}")
        return found[0] if found else default

    def integer(self, key: str, default: Any = _REQUIRED) -> int:
        """A positive integer."""
        value = self.value(key, default)
        if value is _REQUIRED:
            raise self.refuse(key, "a positive integer", "none: the key is missing")
        if type(value) is not int or value < 1:
            raise self.refuse(key, "a positive integer", repr(value))
        return value

    def number(self, key: str, default: float) -> float:
        """A positive number."""
        value = self.value(key, default)
        if type(value) not in (int, float) or not value > 0:
            raise self.refuse(key, "a positive number", repr(value))
        return float(value)

    def flag(self, key: str) -> bool | None:
        """None where it is missing."""
        value = self.value(key)
        if value is not None and type(value) is not bool:
            raise self.refuse(key, "true or false", repr(value))
        return value

    def inner_choice(self, key: str, allowed: Sequence[str]) -> str:
        """One of some words, in the inner section only."""
        value = self._inner.get(key)
        if value not in allowed:
            raise self.refuse(f"{self._inner_name}.{key}", " or ".join(allowed), repr(value))
        return str(value)

    def refuse_other_mathematics(self, version: int) -> None:
        """Fail on keys of kinds 3 and 4.

        Raises:
            MetaSDError: a key asks, or may ask, for something that the head does not compute.
        """
        fixed = _FIXED | _FIXED_BY_VERSION[version]
        harmless = _READ | _NEUTRAL | {self._inner_name}
        for section in self._sections:
            for key, value in section.items():
                if key in fixed:
                    if value is not None and value != fixed[key]:
                        raise self.refuse(key, f"{fixed[key]}: nothing else is supported", value)
                elif key == "layer_types":
                    if any(kind != "full_attention" for kind in value or ()):
                        raise self.refuse(key, "full_attention: nothing else is supported", value)
                elif key not in harmless and _may_matter(key, value):
                    raise self.refuse(
                        key, "no such key: it may change the head's mathematics, and is not known here", repr(value)
                    )


def _may_matter(key: str, value: Any) -> bool:
    is_off = value is None or value is False or value == 0 or value in ("", [], {})
    return not is_off and not key.startswith("_") and _SUSPECT.search(key) is not None
