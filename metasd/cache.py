"""The key-value cache of one causal model, and the one place that knows how transformers names it.

A cache grows in place: `DynamicCache` of transformers copies every layer for every token, ours copies the new ones.
Rewinding writes no data.
"""

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from metasd.core import MetaSDError

_GROWTH = 256  # positions; a layer's buffer grows by at least this much, and doubles when that is more


class _GrowingLayer(DynamicLayer):
    """Keys and values of one layer as views of a larger buffer."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # transformers leaves it without types
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append `[1, heads, M, head_dim]` states; returns those of all positions."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = 0 if self._buffers is None else self.get_seq_length()
        end = start + key_states.shape[-2]
        keys, values = self._reserve(key_states, value_states, start, end)
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def _reserve(self, key_states: Tensor, value_states: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        if self._buffers is None or self._buffers[0].shape[-2] < end:
            capacity = max(2 * start, end) + _GROWTH
            grown = []
            for old, new in zip((self.keys, self.values), (key_states, value_states), strict=True):
                buffer = new.new_empty((*new.shape[:-2], capacity, new.shape[-1]))
                if start and old is not None:
                    buffer[:, :, :start] = old
                grown.append(buffer)
            self._buffers = (grown[0], grown[1])
        return self._buffers

    def memory_bytes(self) -> int:
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers or ())


def _cache_argument(model: Any) -> str:
    """transformers 5.24 renamed `past_key_values` to `cache`; a wrong name is swallowed, so it is looked up."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class ModelCache:
    """One causal model with the cache of one sequence: feed tokens, take logits, rewind.

    Args:
        model: a transformers causal model in eval mode.
        name: how to call it in errors.

    Raises:
        MetaSDError: the model's cache cannot be rewound (sliding window, state space, encoder-decoder).
    """

    def __init__(self, model: Any, name: str) -> None:
        self.model = model
        config = model.config.get_text_config(decoder=True)
        if getattr(model.config, "is_encoder_decoder", False):
            raise MetaSDError(f"{name}: an encoder-decoder model; expected a causal (decoder-only) model")
        probe = DynamicCache(config=model.config)
        kinds = {type(layer).__name__ for layer in probe.layers} - {"DynamicLayer"}
        if kinds or getattr(model, "_is_stateful", False):
            reason = ", ".join(sorted(kinds)) or "it is stateful"
            raise MetaSDError(
                f"{name}: its cache cannot be rewound after a rejection ({reason}); "
                "expected a model with full attention in every layer"
            )
        self._num_layers: int = config.num_hidden_layers
        self._argument = _cache_argument(model)
        self.device: torch.device = next(model.parameters()).device
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._cache = DynamicCache()
        self._layers = [_GrowingLayer() for _ in range(self._num_layers)]
        self._cache.layers = list(self._layers)
        self._cache.layer_class_to_replicate = None
        self.num_tokens = 0

    def feed(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """One forward pass over new tokens.

        Args:
            token_ids: `[1, M]` int64, the tokens behind those in the cache.
            num_logits: how many of the last positions to return logits for.

        Returns:
            `[1, num_logits, V]` logits; the cache now holds M tokens more.
        """
        output = self.model(
            input_ids=token_ids, use_cache=True, logits_to_keep=num_logits, **{self._argument: self._cache}
        )
        self.num_tokens += token_ids.shape[1]
        logits: Tensor = output.logits
        return logits

    def rewind(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens; their memory is written over by the next ones."""
        if num_tokens > 0:
            self._cache.crop(-num_tokens)
            self.num_tokens -= num_tokens

    def memory_bytes(self) -> int:
        """Bytes of the buffers."""
        return sum(layer.memory_bytes() for layer in self._layers)
