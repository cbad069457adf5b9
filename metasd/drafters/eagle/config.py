"""Sizes and flags of a head."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class HeadConfig:
    """What a checkpoint's config says, the same for every layout.

    Attributes:
        version: 1 (EAGLE-1 and -2) or 3.
        hidden_size: H of the head; feature_size: H of the target.
        num_features: features of so many depths of the target are concatenated (EAGLE-3).
        draft_vocab_size: rows of the vocabulary matrix; None: the target's.
        norm_before_residual: EAGLE-3: the residual starts behind `hidden_norm`.
        norm_before_fc: EAGLE-3: one norm over the concatenated features.
        fc_norm: EAGLE-3: a norm for each depth's features.
        norm_output: EAGLE-3: what is fed back has gone through the last norm.
        qk_norm: queries and keys go through a norm over head_dim, as in Qwen3.
        feature_layers: which features, as `FeatureTap` counts them, in the order in which they are concatenated.
        rope: arguments of transformers' LlamaConfig that decide the rotary embedding.
        vocab_size: of the target; None: not known.
    """

    version: int
    hidden_size: int
    feature_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_features: int = 1
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    fc_bias: bool = True
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    draft_vocab_size: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    feature_layers: tuple[int, ...] = (-1,)
    rope: dict[str, Any] = field(default_factory=dict)
    vocab_size: int | None = None
