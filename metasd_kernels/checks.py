"""Argument checks of the public functions: a ValueError names the argument, what was expected, and what came."""

from collections.abc import Sequence
from typing import NoReturn, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from metasd_kernels.inputs import SMALLEST_TEMPERATURE, PerRow

RULES = ("token", "block")
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
INTS = (torch.int32, torch.int64)
_FLOAT_RANGE, _INT_RANGE = torch.finfo(torch.float32), torch.iinfo(torch.int64)


def refuse(argument: str, expected: str, actual: object) -> NoReturn:
    """Raise the one kind of error that a wrong argument gets."""
    raise ValueError(f"{argument}: expected {expected}, got {actual}")


def describe(value: object) -> str:
    """A tensor as dtype, shape and device; anything else as it prints."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device}"
    return repr(value)


def tensor(
    name: str,
    value: object,
    shape: Sequence[int | str],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
) -> Tensor:
    """Check rank, sizes (a string stands for a free size), dtype and device of one tensor."""
    if (
        isinstance(value, Tensor)
        and value.dtype in dtypes
        and (device is None or value.device == device)
        and _fits(value.shape, shape)
    ):
        return value
    kinds = " | ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    layout = "[" + ", ".join(str(size) for size in shape) + "]"
    expected = f"a {kinds} tensor of shape {layout}" + (f" on {device}" if device else "")
    refuse(name, expected, describe(value))


def _fits(sizes: Sequence[int], shape: Sequence[int | str]) -> bool:
    if len(sizes) != len(shape):
        return False
    for have, want in zip(sizes, shape, strict=True):  # noqa: SIM110 - a third of the time of all(...)
        if have != want and not isinstance(want, str):
            return False
    return True


def output(name: str, value: object, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
    """Check a tensor to write into. A kernel writes it as one piece of memory, so it must be one."""
    if not tensor(name, value, shape, (dtype,), device).is_contiguous():
        refuse(name, "a contiguous tensor", f"strides {list(cast(Tensor, value).stride())}")


def logits(name: str, value: object, shape: Sequence[int | str], device: torch.device | None = None) -> Tensor:
    """Check a logit tensor: as `tensor`, and a vocabulary of at least 1 whose ids lie next to each other in memory."""
    checked = tensor(name, value, shape, FLOATS, device)
    if checked.shape[-1] == 0:
        refuse(name, "a vocabulary (last dimension) of at least 1", describe(checked))
    if checked.shape[-1] > 1 and checked.numel() and checked.stride(-1) != 1:
        refuse(name, "a last stride of 1; call .contiguous() on it", f"strides {list(checked.stride())}")
    return checked


def per_row(
    name: str,
    value: object,
    num_rows: int,
    device: torch.device,
    *,
    least: float | None = None,
    most: float | None = None,
    integer: bool = False,
) -> PerRow:
    """Check a number or a tensor `[num_rows]`. Values inside a tensor are not read."""
    kind = "an int64" if integer else "a finite fp32 number"
    limits = _INT_RANGE if integer else _FLOAT_RANGE
    low, high = limits.min if least is None else least, limits.max if most is None else most
    bounds = "" if least is None else f" of at least {least}" + ("" if most is None else f" and at most {most}")
    if isinstance(value, Tensor):
        dtypes = INTS if integer else FLOATS
        return PerRow(0, tensor(name, value, [num_rows], dtypes, device))
    if isinstance(value, bool) or not isinstance(value, int if integer else (int, float)):
        refuse(name, f"{kind}{bounds} or a tensor [{num_rows}]", describe(value))
    if not low <= value <= high:  # so that NaN is refused, too
        refuse(name, f"{kind}{bounds}", describe(value))
    return PerRow(value)


def temperature(name: str, value: object, num_rows: int, device: torch.device) -> PerRow:
    """Check a temperature, 0 or more."""
    checked = per_row(name, value, num_rows, device, least=0)
    return as_temperature(checked.value) if checked.rows is None else checked


def as_per_row(value: float | Tensor) -> PerRow:
    """A checked number or tensor `[B]`."""
    return PerRow(0, value) if isinstance(value, Tensor) else PerRow(value)


def as_temperature(value: float | Tensor) -> PerRow:
    """A checked temperature; what is too small for 1 / temperature to be finite becomes 0."""
    checked = as_per_row(value)
    return PerRow(0.0) if checked.rows is None and checked.value < SMALLEST_TEMPERATURE else checked


def detached(logits: Tensor | None) -> Tensor | None:
    """No op here has a derivative."""
    return logits.detach() if logits is not None and logits.requires_grad else logits


def coins(name: str, value: object, num_rows: int, num_coins: int | str, device: torch.device) -> Tensor | None:
    """Check injected coins `[num_rows, num_coins]`; None means Philox. fp32 only: a wider coin could round up to 1."""
    if value is None:
        return None
    return tensor(name, value, [num_rows, num_coins], (torch.float32,), device)


def seed(value: object, num_rows: int, device: torch.device, is_used: bool) -> PerRow:
    """Check the key of the coins: one for each request, since two rows with one seed would share their coins."""
    if isinstance(value, int) and num_rows > 1 and is_used:
        refuse("seed", f"an int64 tensor [{num_rows}], one seed a row (an int serves one row only)", describe(value))
    if isinstance(value, Tensor):
        return PerRow(0, tensor("seed", value, [num_rows], (torch.int64,), device))
    return per_row("seed", value, num_rows, device, integer=True)


def offset(value: object, num_rows: int, device: torch.device) -> PerRow:
    """Check the round nonce: an int, or int64 `[1]` or `[num_rows]`."""
    if isinstance(value, Tensor) and tuple(value.shape) == (1,):
        return PerRow(0, tensor("offset", value, [1], (torch.int64,), device))
    if isinstance(value, Tensor):
        return PerRow(0, tensor("offset", value, [num_rows], (torch.int64,), device))
    return per_row("offset", value, num_rows, device, integer=True)


def position(value: object, num_rows: int, device: torch.device) -> None:
    """Check a position in the draft block: an int in [0, 2**32), or int64 `[1]` or `[num_rows]`."""
    if isinstance(value, Tensor):
        size = 1 if tuple(value.shape) == (1,) else num_rows
        tensor("position", value, [size], (torch.int64,), device)
    elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        refuse("position", "an int in [0, 2**32)", repr(value))


_checked_maps = WeakTensorKeyDictionary()  # map -> (its version when checked, its largest id)


def vocabulary_map(value: Tensor, target_vocab_size: int) -> None:
    """Check a `[V_d]` map once for each version of the tensor: this reads the device, a captured loop must not."""
    if torch.compiler.is_compiling() or type(value) is not Tensor or value.is_meta:
        return
    version = -1 if value.is_inference() else value._version  # an inference tensor counts no versions
    known_version, highest = _checked_maps.get(value, (None, 0))
    if known_version != version:
        ids, counts = value.unique(return_counts=True)
        if ids.numel() != value.numel():
            refuse("draft_to_target", "distinct target ids", f"id {int(ids[counts > 1][0])} more than once")
        lowest, highest = int(ids[0]), int(ids[-1])
        if lowest < 0:
            refuse("draft_to_target", f"ids in [0, {target_vocab_size})", lowest)
        _checked_maps[value] = version, highest
    if highest >= target_vocab_size:
        refuse("draft_to_target", f"ids in [0, {target_vocab_size})", highest)
