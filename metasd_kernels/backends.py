"""Who can compute an op: the registry of backends, and the choice that `backend="auto"` makes."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
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
    """A named implementation. `obstacle` says why it cannot run on a device type here, or None if it can."""

    name: str
    module: str
    obstacle: Callable[[str], str | None]

    def load(self) -> Kernels:
        return cast(Kernels, importlib.import_module(self.module))


BACKENDS: dict[str, Backend] = {}
"""In order of preference: `auto` takes the first one that can run on the device of the logits."""


def register(backend: Backend) -> None:
    """Add a backend behind those already known; the contract tests run over it from then on."""
    if backend.name in BACKENDS or backend.name == "auto":
        raise ValueError(f"backend {backend.name!r} is registered already")
    BACKENDS[backend.name] = backend


register(Backend("reference", "metasd_kernels.reference", obstacle=lambda device_type: None))


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


def resolve(name: str, device_type: str) -> Kernels:
    """The backend's functions.

    Raises:
        ValueError: the name is unknown, or that backend cannot run on this device type; the message says why.
    """
    check_name(name)
    if name == "auto":
        name = next(key for key, reason in obstacles(device_type).items() if reason is None)
    reason = BACKENDS[name].obstacle(device_type)
    if reason is not None:
        raise ValueError(f"backend: {name!r} cannot run on device type {device_type!r} here: {reason}")
    return BACKENDS[name].load()
