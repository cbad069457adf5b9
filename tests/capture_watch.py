"""What capture of a CUDA graph forbids, seen without a GPU."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Fails on what a captured graph cannot do: to read from the device, or to need a size that values decide."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "item", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__ if isinstance(func.__name__, str) else str(func)
        assert not any(name.split(".")[0].lstrip("_") == word.lstrip("_") for word in self.FORBIDDEN), name
        if name.startswith("index.Tensor"):
            assert all(index is None or index.dtype != torch.bool for index in args[1]), "indexing by a mask"
        return func(*args, **(kwargs or {}))


class FakeMethods(TorchFunctionMode):
    """Methods of fake CUDA tensors where torch is built without CUDA: some of its own ask for a device guard first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            return _item(*args)
        if func is torch.Tensor.contiguous:
            return torch.ops.aten.clone(args[0], memory_format=torch.contiguous_format)
        if func is torch.Tensor.double:
            return torch.ops.aten._to_copy(args[0], dtype=torch.float64)
        if func is torch.Tensor.copy_:
            return torch.ops.aten.copy_(*args)
        return func(*args, **(kwargs or {}))


def _item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [part for part in parts if not isinstance(part, torch.Tensor)]:
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        named = sum(part is not None for part in parts) - 1
        parts[at : at + 1] = [slice(None)] * (tensor.dim() - named)
    dim = 0
    for part in parts:
        if part is None:
            tensor = torch.unsqueeze(tensor, dim)
        elif isinstance(part, int):
            tensor = torch.select(tensor, dim, part)
            continue
        elif isinstance(part, torch.Tensor):
            assert part.dim() == 1, "one index tensor at a time"
            tensor = torch.index_select(tensor, dim, part)
        elif part != slice(None):
            tensor = torch.ops.aten.slice(tensor, dim, part.start, part.stop, part.step or 1)
        dim += 1
    return tensor
