"""The target's hidden states, as white-box drafters need them: read off during its forward pass by hooks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metasd.core import MetaSDError

LAST = -1
"""The feature behind the final norm, which goes to the head; n >= 0 is what enters layer n."""


class FeatureTap:
    """Keeps what a model's layers say in its forward passes, while it is on; only the layers that were asked for.

    Args:
        model: a transformers causal model.
        layers: which features: `LAST`, or n for `hidden_states[n]`, what enters layer n.

    Raises:
        MetaSDError: the model has no such layer, or its layers are not found.
    """

    def __init__(self, model: Any, layers: Iterable[int]) -> None:
        self.layers = tuple(layers)
        self.is_on = False
        self._seen: dict[int, list[Tensor]] = {layer: [] for layer in self.layers}
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
        blocks = _blocks(decoder, model.config.get_text_config(decoder=True).num_hidden_layers)
        for layer in self.layers:
            if layer == LAST:
                decoder.register_forward_hook(lambda module, given, output: self._keep(LAST, output[0]))
            elif 0 <= layer < len(blocks):
                blocks[layer].register_forward_pre_hook(self._entering(layer), with_kwargs=True)
            else:
                raise MetaSDError(f"features: expected layers in [0, {len(blocks)}) or {LAST}, got {layer}")

    def _entering(self, layer: int) -> Any:
        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._keep(layer, given[0] if given else named["hidden_states"])

        return hook

    def _keep(self, layer: int, hidden: Tensor) -> None:
        if self.is_on:
            self._seen[layer].append(hidden)

    def take(self) -> dict[int, Tensor]:
        """`[B, M, H]` for each layer, of all tokens fed since the last call; nothing if there were none."""
        taken = {
            layer: torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
            for layer, parts in self._seen.items()
            if parts
        }
        for parts in self._seen.values():
            parts.clear()
        return taken


class FeatureBuffer:
    """Features of a sequence's tokens from the first on, in memory that grows by doubling."""

    def __init__(self, layers: Iterable[int]) -> None:
        self._rows: dict[int, Tensor] = {}
        self._layers = tuple(layers)
        self.num_tokens = 0

    def append(self, features: Mapping[int, Tensor], num_tokens: int) -> None:
        """Take the first `num_tokens` rows of `[1, M, H]` of each layer.

        Raises:
            MetaSDError: a layer is missing: the target was not asked for it.
        """
        end = self.num_tokens + num_tokens
        for layer in self._layers:
            if layer not in features:
                raise MetaSDError(f"features: the target gave none for layer {layer}, which a drafter requires")
            new, rows = features[layer][0, :num_tokens], self._rows.get(layer)
            if rows is None or rows.shape[0] < end:
                grown = new.new_empty((2 * end + 64, new.shape[-1]))
                if rows is not None:
                    grown[: self.num_tokens] = rows[: self.num_tokens]
                self._rows[layer] = rows = grown
            rows[self.num_tokens : end] = new
        self.num_tokens = end

    def rows(self, layers: Sequence[int], start: int, end: int) -> Tensor:
        """`[end - start, len(layers) * H]`, side by side in the order given."""
        parts = [self._rows[layer][start:end] for layer in layers]
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

    def memory_bytes(self) -> int:
        return sum(rows.numel() * rows.element_size() for rows in self._rows.values())


def _blocks(decoder: nn.Module, num_layers: int) -> nn.ModuleList:
    for child in decoder.children():
        if isinstance(child, nn.ModuleList) and len(child) == num_layers:
            return child
    raise MetaSDError(f"features: no list of {num_layers} layers in {type(decoder).__name__}; cannot read its features")
