"""The ops in C++ for the CPU: one pass over the logits, vectorised, threads over rows. Bound by `metasd_kernels._C`."""

import torch
from torch import Tensor

from metasd_kernels import _C
from metasd_kernels.inputs import CutoffInputs, PerRow, SampleInputs, VerifyInputs
from metasd_kernels.outputs import VerifyOutput

_DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_NO_LOGITS = (0, 2, 0, 0, 0)
_INSTRUCTION_SET = ""  # the best of this processor; tests set another


class _Addresses:
    """Addresses of tensors in the dtype that the core expects; keeps converted copies alive until the call is over."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def __call__(self, tensor: Tensor | None, dtype: torch.dtype) -> int:
        if tensor is None:
            return 0
        if tensor.dtype != dtype or not tensor.is_contiguous():
            tensor = tensor.to(dtype).contiguous()
            self._kept.append(tensor)
        return tensor.data_ptr()

    def rows(self, given: PerRow, num_rows: int, dtype: torch.dtype) -> tuple[float, int]:
        if given.rows is None:
            return given.value, 0
        return 0, self(given.rows.expand(num_rows), dtype)


def _logits(tensor: Tensor) -> tuple[int, int, int, int, int]:
    """Address, dtype, vocabulary, stride between requests and between rows."""
    strides = tensor.stride()
    return tensor.data_ptr(), _DTYPES[tensor.dtype], tensor.shape[-1], strides[0], strides[-2]


def verify(inputs: VerifyInputs, out: VerifyOutput) -> None:
    """Fill `out`; see `metasd_kernels.verify` for the contract."""
    batch_size, address = inputs.batch_size, _Addresses()
    into = VerifyOutput(
        *(field if field.is_contiguous() else torch.empty(field.shape, dtype=field.dtype) for field in out)
    )
    mapping = inputs.draft_to_target
    _C.verify(
        batch_size,
        inputs.num_draft_positions,
        _logits(inputs.target_logits),
        _NO_LOGITS if inputs.draft_logits is None else _logits(inputs.draft_logits),
        address(inputs.draft_token_ids, torch.int64),
        address.rows(inputs.temperature, batch_size, torch.float32),
        address.rows(inputs.draft_temperature, batch_size, torch.float32),
        address(inputs.target_cutoff, torch.float32),
        address(inputs.draft_cutoff, torch.float32),
        address(inputs.num_draft_tokens, torch.int64),
        address(inputs.cu_num_draft_tokens, torch.int64),
        address(mapping, torch.int64),
        mapping is not None and mapping.dim() > 1,
        address(inputs.reward_length, torch.float32),
        inputs.rule == "block",
        address.rows(inputs.seed, batch_size, torch.int64),
        address.rows(inputs.offset, batch_size, torch.int64),
        address(inputs.uniform_samples, torch.float32),
        inputs.compute_tv,
        tuple(field.data_ptr() for field in into),
        torch.get_num_threads(),
        _INSTRUCTION_SET,
    )
    for field, filled in zip(out, into, strict=True):
        if filled is not field:
            field.copy_(filled)


def sample(inputs: SampleInputs, out: Tensor) -> None:
    """Fill `out` `[B]`; see `metasd_kernels.sample`."""
    batch_size, address = inputs.logits.shape[0], _Addresses()
    into = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype)
    _C.sample(
        batch_size,
        _logits(inputs.logits),
        address.rows(inputs.temperature, batch_size, torch.float32),
        address(inputs.cutoff, torch.float32),
        address.rows(inputs.seed, batch_size, torch.int64),
        address.rows(inputs.offset, batch_size, torch.int64),
        inputs.position,
        address(inputs.uniform_samples, torch.float32),
        into.data_ptr(),
        torch.get_num_threads(),
        _INSTRUCTION_SET,
    )
    if into is not out:
        out.copy_(into)


def logit_cutoff(inputs: CutoffInputs, out: Tensor) -> None:
    """Fill `out` `[R]`; see `metasd_kernels.logit_cutoff`."""
    num_rows, address = inputs.logits.shape[0], _Addresses()
    _C.logit_cutoff(
        num_rows,
        _logits(inputs.logits),
        address.rows(inputs.temperature, num_rows, torch.float32),
        address.rows(inputs.top_k, num_rows, torch.int64),
        address.rows(inputs.top_p, num_rows, torch.float32),
        address.rows(inputs.min_p, num_rows, torch.float32),
        out.data_ptr(),
        torch.get_num_threads(),
        _INSTRUCTION_SET,
    )
