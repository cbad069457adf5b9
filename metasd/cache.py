"""The key-value cache of one causal model, and the one place that knows how transformers names it.

A cache grows in place: `DynamicCache` of transformers copies every layer for every token, ours copies the new ones.
Rewinding writes no data.
"""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn
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

    def shallow(self, num_layers: int) -> "ShallowCache":
        """The model's first layers, norm and head, over the same cache."""
        return ShallowCache(self, num_layers)


class ShallowCache:
    """A model's first layers, its final norm and its head, on the cache of the whole model.

    Tokens fed here are in the first layers only: they have to be taken away before the whole model goes on.

    Args:
        whole: the cache of the whole model.
        num_layers: how many layers.

    Raises:
        MetaSDError: the model's layers are not found.
    """

    def __init__(self, whole: ModelCache, num_layers: int) -> None:
        self._whole, self._num_layers = whole, num_layers
        decoder = whole.model.get_decoder()
        name = next((name for name, child in decoder.named_children() if isinstance(child, nn.ModuleList)), None)
        if name is None:
            raise MetaSDError(f"early exit: no list of layers in {type(decoder).__name__}")
        short = sibling(decoder)
        short._modules[name] = nn.ModuleList(list(getattr(decoder, name))[:num_layers])
        short.config = copy.copy(decoder.config)
        short.config.num_hidden_layers = num_layers
        self._model = sibling(whole.model)
        for key, child in whole.model.named_children():
            if child is decoder:
                self._model._modules[key] = short

    def feed(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """As `ModelCache.feed`, through the first layers."""
        cache = {self._whole._argument: self._whole._cache}
        logits: Tensor = self._model(input_ids=token_ids, use_cache=True, logits_to_keep=num_logits, **cache).logits
        return logits

    def rewind(self, num_tokens: int) -> None:
        """Take the last `num_tokens` tokens out of the first layers."""
        for layer in self._whole._layers[: self._num_layers]:
            layer.crop(-num_tokens)

    def read_anew(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """Logits of the last positions of a whole text `[1, M]`, without a cache."""
        logits: Tensor = self._model(input_ids=token_ids, use_cache=False, logits_to_keep=num_logits).logits
        return logits


def sibling(module: Any) -> Any:
    """A module with the same parameters and children, whose children can be replaced."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other
