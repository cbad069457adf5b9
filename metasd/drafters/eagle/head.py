"""The network of an EAGLE head: one decoder layer that predicts the target's next feature from token and feature.

EAGLE-1 and -2 (Li et al., 2024): `x = fc(cat(embedding, feature))`, a layer without a norm before its attention, logits
from the target's own head. EAGLE-3 (Li et al., 2025): features of three depths go through `fc` once; the layer's
attention reads `cat(norm(embedding), norm(feature))`; a norm and a head of its own.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from metasd.drafters.eagle.config import HeadConfig
from metasd.slots import CacheShape, SlotCache


class HeadCache(SlotCache):
    """Keys and values of the layer for one sequence."""

    def __init__(self, head: "EagleHead", name: str = "an EAGLE head") -> None:
        config, weight = head.config, head.k_proj.weight
        super().__init__(CacheShape(1, config.num_kv_heads, config.head_dim, weight.dtype, weight.device), name)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Take `[1, kv_heads, M, head_dim]` states; returns those of all positions."""
        start, end = self.num_tokens, self.num_tokens + keys.shape[2]
        own_keys, own_values = self.ready(keys.shape[2]).layers[0]
        own_keys[:, :, start:end] = keys
        own_values[:, :, start:end] = values
        self.num_tokens = end
        return own_keys[:, :, :end], own_values[:, :, :end]


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self._eps)


class EagleHead(nn.Module):
    """One head, any layout. Its parts are public, since training computes its attention in its own way.

    Args:
        config: sizes and flags.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        size, heads, kv_heads, head_dim = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
        is_third = config.version == 3
        wide = 2 * size if is_third else size
        fc_in = config.num_features * config.feature_size if is_third else size + config.feature_size
        self.fc = nn.Linear(fc_in, size, bias=config.fc_bias)
        self.q_proj = nn.Linear(wide, heads * head_dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(wide, kv_heads * head_dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(wide, kv_heads * head_dim, bias=config.attention_bias)
        self.o_proj = nn.Linear(heads * head_dim, size, bias=config.output_bias)
        self.gate_proj = nn.Linear(size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, size, bias=config.mlp_bias)
        self.post_attention_layernorm = RMSNorm(size, config.rms_norm_eps)
        if is_third:
            self.input_layernorm = RMSNorm(size, config.rms_norm_eps)
            self.hidden_norm = RMSNorm(size, config.rms_norm_eps)
            self.norm = RMSNorm(size, config.rms_norm_eps)
            if config.norm_before_fc:
                self.input_norm = RMSNorm(fc_in, config.rms_norm_eps)
            if config.fc_norm:
                self.fc_norms = nn.ModuleList(
                    RMSNorm(config.feature_size, config.rms_norm_eps) for _ in range(config.num_features)
                )
        if config.qk_norm:
            self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self._activation: Any = ACT2FN[config.hidden_act]
        with torch.device("cpu"):  # its frequencies are no weights: they hold values in a head built on "meta" too
            self._rotary = LlamaRotaryEmbedding(LlamaConfig(**config.rope))

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features `[B, M, F]` as the layer takes them; what the head feeds back is taken as it is."""
        if self.config.version == 1:
            return features
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            parts = features.split(self.config.feature_size, dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norms, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def enter(self, embedded: Tensor, fused: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and fused features `[B, M, H]`: the residual, and what the attention reads."""
        if self.config.version == 1:
            x = self.fc(torch.cat([embedded, fused], dim=-1))
            return x, x
        normed = self.hidden_norm(fused)
        residual = normed if self.config.norm_before_residual else fused
        return residual, torch.cat([self.input_layernorm(embedded), normed], dim=-1)

    def attention_states(self, x: Tensor, first_position: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries `[B, heads, M, head_dim]`, rotated keys and values `[B, kv_heads, M, head_dim]`, at
        positions from the first on, or `[M]`."""
        batch_size, length, _ = x.shape
        states = [proj(x).view(batch_size, length, -1, self.config.head_dim).transpose(1, 2)
                  for proj in (self.q_proj, self.k_proj, self.v_proj)]  # fmt: skip
        if self.config.qk_norm:
            states[0], states[1] = self.q_norm(states[0]), self.k_norm(states[1])
        positions = first_position
        if not isinstance(positions, Tensor):
            positions = torch.arange(positions, positions + length, device=x.device)
        cos, sin = self._rotary(x, positions.unsqueeze(0))
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return _rotate(states[0], cos, sin), _rotate(states[1], cos, sin), states[2]

    def leave(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The layer's output `[B, M, H]` from attention outputs `[B, heads, M, head_dim]`."""
        x = residual + self.o_proj(attended.transpose(1, 2).flatten(2))
        y = self.post_attention_layernorm(x)
        out: Tensor = x + self.down_proj(self._activation(self.gate_proj(y)) * self.up_proj(y))
        return out

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What goes to the head's vocabulary matrix, and what is fed back in place of the target's next feature."""
        if self.config.version == 1:
            return x, x
        normed = self.norm(x)
        return normed, normed if self.config.norm_output else x

    def forward(self, embedded: Tensor, fused: Tensor, cache: HeadCache) -> tuple[Tensor, Tensor]:
        """Ingest pairs behind those in the cache.

        Args:
            embedded: `[1, M, H]`, embeddings of the tokens x_{t+1}.
            fused: `[1, M, H]`, from `fuse` for the target's features h_t, or fed back.
            cache: of this sequence.

        Returns:
            `[1, M, H]` each: input of the vocabulary matrix (for x_{t+2}), and the feature to feed back.
        """
        residual, x = self.enter(embedded, fused)
        past = cache.num_tokens
        queries, keys, values = self.attention_states(x, past)
        keys, values = cache.append(keys, values)
        length = queries.shape[2]
        mask = None
        if length > 1 and past > 0:
            mask = torch.ones(length, past + length, dtype=torch.bool, device=x.device).tril(past)
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=length > 1 and past == 0, enable_gqa=True
        )
        return self.outputs(self.leave(residual, attended))

    def forward_window(
        self, embedded: Tensor, fused: Tensor, cache: HeadCache, positions: Tensor, bucket: int
    ) -> tuple[Tensor, Tensor]:
        """`forward` for captured graphs: the pairs go to `positions` `[M]`, the first `bucket` places are read."""
        residual, x = self.enter(embedded, fused)
        queries, keys, values = self.attention_states(x, positions)
        slot = cache.ready(1)
        for buffer, new in zip(slot.layers[0], (keys, values), strict=True):
            buffer.index_copy_(2, positions, new)
        keys, values = (buffer[:, :, :bucket] for buffer in slot.layers[0])
        mask = torch.arange(bucket, device=x.device) <= positions[:, None]
        attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        return self.outputs(self.leave(residual, attended))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
