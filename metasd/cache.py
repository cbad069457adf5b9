"""The key-value cache of one causal model, and the one place that knows how transformers names it.

A cache lies in a slot: `DynamicCache` of transformers copies every layer for every token, ours copies the new ones, and
its addresses never change. Rewinding writes no data.
"""

import copy
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from metasd.core import MetaSDError
from metasd.slots import CacheShape, SlotCache


class Window(NamedTuple):
    """Where a forward pass writes and reads when nothing on the host may decide it, as inside a captured graph.

    Attributes:
        positions: `[M]` int64 on the device, of the new tokens.
        bucket: so many of the slot's first positions are read, those behind a token's own masked.
    """

    positions: Tensor
    bucket: int


class _SlotLayer(DynamicLayer):
    """Keys and values of one layer as views of its owner's slot. It counts nothing itself: its owner does."""

    def __init__(self, owner: "ModelCache", index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # transformers leaves it without types
        self._owner, self._index = owner, index

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Take `[1, heads, M, head_dim]` states; returns those of all positions."""
        owner, shape = self._owner, self._owner.shape
        if key_states.shape[1::2] != (shape.num_heads, shape.head_dim) or key_states.dtype != shape.dtype:
            raise MetaSDError(
                f"{owner.name}: expected {shape.dtype} keys of {shape.num_heads} heads of {shape.head_dim}, as its "
                f"config says, got {key_states.dtype} {list(key_states.shape)}"
            )
        assert owner.slot is not None
        keys, values = owner.slot.layers[self._index]
        if owner.window is not None:
            positions, end = owner.window
            keys.index_copy_(2, positions, key_states)
            values.index_copy_(2, positions, value_states)
        else:
            start, end = owner.num_tokens, owner.num_tokens + key_states.shape[2]
            keys[:, :, start:end] = key_states
            values[:, :, start:end] = value_states
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self) -> int:
        """Tokens that are there."""
        return self._owner.num_tokens


def _shape_of(model: Any) -> CacheShape:
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    parameter = next(model.parameters())
    return CacheShape(
        config.num_hidden_layers,
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
        parameter.dtype,
        parameter.device,
    )


def _cache_argument(model: Any) -> str:
    """transformers 5.24 renamed `past_key_values` to `cache`; a wrong name is swallowed, so it is looked up."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class ModelCache(SlotCache):
    """One causal model with the cache of one sequence: feed tokens, take logits, rewind.

    Args:
        model: a transformers causal model in eval mode.
        name: how to call it in errors.

    Raises:
        MetaSDError: the model's cache cannot be rewound (sliding window, state space, encoder-decoder).
    """

    def __init__(self, model: Any, name: str) -> None:
        self.model = model
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
        super().__init__(_shape_of(model), name)
        self.device = self.shape.device
        self.window: Window | None = None
        self._argument = _cache_argument(model)
        self._cache = DynamicCache()
        self._cache.layers = [_SlotLayer(self, index) for index in range(self.shape.num_layers)]
        self._cache.layer_class_to_replicate = None

    def feed(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """One forward pass over new tokens.

        Args:
            token_ids: `[1, M]` int64, the tokens behind those in the cache.
            num_logits: how many of the last positions to return logits for.

        Returns:
            `[1, num_logits, V]` logits; the cache now holds M tokens more.

        Raises:
            MetaSDError: they do not fit into the cache.
        """
        logits = self.run(self.model, token_ids, num_logits)
        self.num_tokens += token_ids.shape[1]
        return logits

    def feed_window(self, token_ids: Tensor, window: Window, rows: int | Tensor) -> Tensor:
        """A forward pass that asks the host for nothing: for captured graphs. `num_tokens` is the caller's to move.

        Args:
            token_ids: `[1, M]` int64.
            window: their positions, and how much of the slot is read.
            rows: the number of last positions to return logits for, or their indices `[R]` int64.

        Returns:
            `[1, rows, V]` logits.
        """
        assert self.slot is not None, "reserve memory before capture: slot.ready"
        positions, bucket = window
        is_hidden = torch.arange(bucket, device=positions.device) > positions[:, None]
        mask = torch.zeros(is_hidden.shape, dtype=self.shape.dtype, device=positions.device)
        mask = mask.masked_fill(is_hidden, torch.finfo(self.shape.dtype).min)
        self.window = window
        try:
            logits: Tensor = self.model(
                input_ids=token_ids, position_ids=positions[None], attention_mask=mask[None, None], use_cache=True,
                logits_to_keep=rows, **{self._argument: self._cache},
            ).logits  # fmt: skip
        finally:
            self.window = None
        return logits

    def run(self, model: Any, token_ids: Tensor, num_logits: int) -> Tensor:
        """A forward pass of this model, or of a part of it, that writes behind the tokens in the cache."""
        self.ready(token_ids.shape[1])
        with self.forward:
            logits: Tensor = model(
                input_ids=token_ids, use_cache=True, logits_to_keep=num_logits, **{self._argument: self._cache}
            ).logits
        return logits

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
        logits = self._whole.run(self._model, token_ids, num_logits)
        self._whole.num_tokens += token_ids.shape[1]
        return logits

    def rewind(self, num_tokens: int) -> None:
        """Take the last `num_tokens` tokens out of the first layers."""
        self._whole.rewind(num_tokens)

    def read_anew(self, token_ids: Tensor, num_logits: int) -> Tensor:
        """Logits of the last positions of a whole text `[1, M]`, without a cache."""
        logits: Tensor = self._model(input_ids=token_ids, use_cache=False, logits_to_keep=num_logits).logits
        return logits


def sibling(module: Any) -> Any:
    """A module with the same parameters and children, whose children can be replaced."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other
