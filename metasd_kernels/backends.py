"""Who can compute an op: the registry of backends, and the choice that `backend="auto"` makes."""

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol, cast

import torch
from torch import Tensor

from metasd_kernels.inputs import CutoffInputs, SampleInputs, VerifyInputs
from metasd_kernels.outputs import VerifyOutput


class Kernels(Protocol):
    """What a backend's module provides. Inputs are checked before; outputs are allocated, to be filled."""

    def verify(self, inputs: VerifyInputs, out: VerifyOutput) -> None: ...
    def sample(self, inputs: SampleInputs, out: Tensor) -> None: ...
    def logit_cutoff(self, inputs: CutoffInputs, out: Tensor) -> None: ...


@dataclass(frozen=True)
class Backend:
    """A named implementation.

    Attributes:
        name: what `backend=` is given.
        module: where its functions are; imported when they are needed.
        obstacle: says why it cannot run on a device type here, or None if it can.
        dtypes: the logits that it takes.
    """

    name: str
    module: str
    obstacle: Callable[[str], str | None]
    dtypes: frozenset[torch.dtype]

    def refusal(self, device_type: str, dtypes: Iterable[torch.dtype]) -> str | None:
        """Why it cannot take logits of these dtypes on this device type, or None if it can."""
        reason = self.obstacle(device_type)
        if reason is None:
            other = [str(dtype).removeprefix("torch.") for dtype in dtypes if dtype not in self.dtypes]
            reason = f"it takes no {other[0]} logits" if other else None
        return reason

    def load(self) -> Kernels:
        return cast(Kernels, importlib.import_module(self.module))


BACKENDS: dict[str, Backend] = {}
"""In order of preference: `auto` takes the first one that can run on the device of the logits."""


def register(backend: Backend) -> None:
    """Add a backend behind those already known; the contract tests run over it from then on."""
    if backend.name in BACKENDS or backend.name == "auto":
        raise ValueError(f"backend {backend.name!r} is registered already")
    BACKENDS[backend.name] = backend


_HALF_TO_SINGLE = frozenset({torch.bfloat16, torch.float16, torch.float32})


def _native_obstacle(device_type: str) -> str | None:
    return None if device_type == "cpu" else "it runs on the CPU"


def _triton_obstacle(device_type: str) -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed"
    if device_type == "cuda":
        return "TRITON_INTERPRET is set" if os.environ.get("TRITON_INTERPRET") == "1" else None
    if device_type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "it runs on a GPU; TRITON_INTERPRET=1 runs it in Triton's interpreter, for tests"
    language = sys.modules.get("triton.language.standard")
    if language is not None and type(language.cdiv).__name__ != "InterpretedFunction":
        return "triton was imported before TRITON_INTERPRET was set"
    return None if device_type == "cpu" else f"it has no kernels for {device_type}"


register(Backend("native", "metasd_kernels.native", _native_obstacle, _HALF_TO_SINGLE))
register(Backend("triton", "metasd_kernels.triton", _triton_obstacle, _HALF_TO_SINGLE))
register(Backend("reference", "metasd_kernels.reference", lambda device_type: None, _HALF_TO_SINGLE | {torch.float64}))


def obstacles(device_type: str | None = None) -> dict[str, str | None]:
    """Every known backend with the reason why it cannot run on `device_type` (default: any device here), or None."""
    types = [device_type] if device_type else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    found: dict[str, str | None] = {}
    for name, backend in BACKENDS.items():
        reasons = [backend.obstacle(kind) for kind in types]
        found[name] = None if None in reasons else "; ".join(filter(None, reasons))
    return found


def available_backends() -> list[str]:
    """Names of the backends that can run on this machine, the preferred one first."""
    return [name for name, reason in obstacles().items() if reason is None]


def check_name(name: object) -> None:
    """Refuse what is neither "auto" nor registered."""
    if not isinstance(name, str) or name not in ("auto", *BACKENDS):
        raise ValueError(f"backend: expected one of {['auto', *BACKENDS]}, got {name!r}")


def resolve(name: str, *logits: Tensor | None) -> Kernels:
    """The functions of a backend that takes these logits.

    Raises:
        ValueError: the name is unknown, or that backend cannot take them; the message says why.
    """
    given = [tensor for tensor in logits if tensor is not None]
    device_type, dtypes = given[0].device.type, [tensor.dtype for tensor in given]
    if name == "auto":
        name = next(key for key, backend in BACKENDS.items() if backend.refusal(device_type, dtypes) is None)
    check_name(name)
    reason = BACKENDS[name].refusal(device_type, dtypes)
    if reason is not None:
        raise ValueError(f"backend: {name!r} cannot run on device type {device_type!r} here: {reason}")
    return BACKENDS[name].load()
