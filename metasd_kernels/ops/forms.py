"""A call of a form that was checked before is not checked again: a decode loop makes the same call each round.

The form of a call is all that the checks look at: of a tensor its shape, strides, dtype and device, of a Python value
its type and itself. Values inside tensors are no part of it.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from metasd_kernels.outputs import VerifyOutput, Workspace

_INT64 = range(-(2**63), 2**63)
_PLAIN = frozenset((type(None), float, int, str, bool, type))
_is_compiling = torch.compiler.is_compiling
_num_modes = torch._C._len_torch_dispatch_stack

Known = TypeVar("Known")


class Forms(dict[Any, Known]):
    """What is known of the forms that were checked. Forgets all when it is full, which a decode loop never makes it."""

    LIMIT = 1024

    def __setitem__(self, form: Any, known: Known) -> None:
        if len(self) >= self.LIMIT:
            self.clear()
        super().__setitem__(form, known)


def form_of(arguments: Iterable[Any]) -> tuple[Any, ...] | None:
    """The form of a call, hashable; None where torch traces, or where an argument is of no plain type."""
    if _is_compiling() or _num_modes():
        return None
    parts: list[Any] = []
    for value in arguments:
        kind = type(value)
        if kind is Tensor:
            if value.requires_grad:
                return None
            parts.append((value.shape, value.stride(), value.dtype, value.device))
        elif kind in _PLAIN:
            parts.append((kind, value))
        elif kind is VerifyOutput:
            parts.append(form_of(value))
        elif kind is Workspace:
            parts.append((value.batch_size, value.num_draft_tokens, value.vocab_size, value.counters.device))
        else:
            return None
    return tuple(parts)


def any_int64(value: object) -> object:
    """`int` for a seed or nonce that is an int64: they differ in every call, and their range is all that is checked."""
    return int if type(value) is int and value in _INT64 else value
