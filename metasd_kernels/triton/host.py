"""What the launchers share: scratch memory, maps, integers as a kernel takes them."""

from dataclasses import dataclass
from functools import cache
from typing import overload

import torch
import triton
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from metasd_kernels.checks import refuse
from metasd_kernels.inputs import PerRow

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter: where TRITON_INTERPRET was set before they were imported."""


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device; 1 where kernels are interpreted."""
    return 1 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


@overload
def dense(tensor: Tensor) -> Tensor: ...
@overload
def dense(tensor: None) -> None: ...
def dense(tensor: Tensor | None) -> Tensor | None:
    """Contiguous, copied if need be."""
    return None if tensor is None else tensor.contiguous()


def halves(value: float) -> tuple[int, int]:
    """The low and high 32 bits of an int64, each as an int32."""
    whole = int(value) & 0xFFFFFFFFFFFFFFFF
    low, high = whole & 0xFFFFFFFF, whole >> 32
    return low - ((low >> 31) << 32), high - ((high >> 31) << 32)


def stride_of(numbers: PerRow) -> int:
    """From one request's number to the next one's: 0 where one tensor value serves all."""
    return 0 if numbers.rows is None or numbers.rows.shape[0] == 1 else 1


_inverses = WeakTensorKeyDictionary()  # map -> (its version, vocabulary size, inverse)


def inverse_map(draft_to_target: Tensor, vocab_size: int) -> Tensor:
    """int32 `[V_t]`: the draft id of each target id, -1 where there is none; kept until the map changes."""
    version = None if draft_to_target.is_inference() else draft_to_target._version  # those count no versions
    known = _inverses.get(draft_to_target)
    if version is not None and known is not None and known[:2] == (version, vocab_size):
        inverse: Tensor = known[2]
        return inverse
    ids = torch.arange(draft_to_target.shape[0], dtype=torch.int32, device=draft_to_target.device)
    inverse = torch.full((vocab_size,), -1, dtype=torch.int32, device=draft_to_target.device)
    inverse[draft_to_target] = ids
    if version is not None:
        _inverses[draft_to_target] = version, vocab_size, inverse
    return inverse


@dataclass
class Scratch:
    """Counters, zero between calls, and room for partial results; grows with use."""

    counters: Tensor
    partials: Tensor
    is_own: bool  # ours, so that it may grow

    @staticmethod
    def of(counters: Tensor | None, partials: Tensor | None, device: torch.device) -> "Scratch":
        """The caller's workspace, or that of the current stream; a graph gets its own, cleared by each replay."""
        if counters is not None and partials is not None:
            return Scratch(counters, partials, is_own=False)
        is_capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        known = None if is_capturing else _scratches.get((device, stream))
        if known is None:
            nothing = torch.zeros(0, dtype=torch.int32, device=device)
            known = Scratch(nothing, nothing.float(), is_own=True)
            if not is_capturing:
                _scratches[device, stream] = known
        return known

    def take(self, num_counters: int, num_floats: int) -> tuple[Tensor, Tensor]:
        """Memory of at least these sizes."""
        if self.is_own:
            if self.counters.numel() < num_counters:
                self.counters = torch.zeros(2 * num_counters, dtype=torch.int32, device=self.counters.device)
            if self.partials.numel() < num_floats:
                self.partials = torch.empty(2 * num_floats, dtype=torch.float32, device=self.partials.device)
        elif self.counters.numel() < num_counters or self.partials.numel() < num_floats:
            refuse(
                "workspace", "one made for the larger of both vocabularies", f"room for {self.partials.numel()} floats"
            )
        return self.counters, self.partials


_scratches: dict[tuple[torch.device, int], Scratch] = {}
