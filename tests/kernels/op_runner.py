"""The ops on one backend and one device, for tests that read the same everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metasd_kernels import VerifyOutput, available_backends, logit_cutoff, sample, verify
from metasd_kernels.backends import obstacles


@dataclass(frozen=True)
class Ops:
    """The ops on one backend and device. Tensors go there and come back, so that a test reads the same everywhere."""

    backend: str
    device: str

    @property
    def is_interpreted(self) -> bool:
        """Triton without a GPU runs in its interpreter: right, but too slow for statistics."""
        return self.backend == "triton" and self.device == "cpu"

    @property
    def num_rows(self) -> int:
        """How many requests a test gives at a time."""
        return 3 if self.is_interpreted else 24

    def some(self, values: Sequence[Any]) -> Sequence[Any]:
        """All of the values; the interpreter gets the middle one."""
        return values[len(values) // 2 :][:1] if self.is_interpreted else values

    def there(self, value: Any) -> Any:
        return value.to(self.device) if isinstance(value, Tensor) else value

    def verify(self, *arguments: Any, **options: Any) -> VerifyOutput:
        moved = {name: self.there(value) for name, value in options.items()}
        out = verify(*map(self.there, arguments), backend=self.backend, **moved)
        return VerifyOutput(*(value.cpu() for value in out))

    def sample(self, logits: Tensor, **options: Any) -> Tensor:
        moved = {name: self.there(value) for name, value in options.items()}
        return sample(self.there(logits), backend=self.backend, **moved).cpu()

    def logit_cutoff(self, logits: Tensor, **options: Any) -> Tensor:
        moved = {name: self.there(value) for name, value in options.items()}
        return logit_cutoff(self.there(logits), backend=self.backend, **moved).cpu()


def usable() -> list[Ops]:
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return [Ops(name, kind) for name in available_backends() for kind in devices if obstacles(kind)[name] is None]
