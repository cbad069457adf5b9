"""`logit_cutoff`: top-k, top-p and min-p as one number a row."""

from typing import Any

import torch
from torch import Tensor

from metasd_kernels import backends, checks
from metasd_kernels.inputs import CutoffInputs, PerRow
from metasd_kernels.ops.library import register


def logit_cutoff(
    logits: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor = 0,
    top_p: float | Tensor = 1.0,
    min_p: float | Tensor = 0.0,
    backend: str = "auto",
) -> Tensor:
    """The smallest raw logit that top-k, then top-p, then min-p keep; what ties with it is kept as well.

    Args:
        logits: `[..., V]` bf16 | fp16 | fp32 (fp64: reference only), last stride 1.
        temperature: 0 or more, or one value a row `[...]`; 0 keeps the largest logits only.
        top_k: the number of tokens to keep, or one a row; below 1 or above V: all.
        top_p: in [0, 1], or one a row: the smallest set of most probable tokens with at least this mass.
        min_p: in [0, 1], or one a row: the smallest kept probability as a share of the largest.
        backend: "auto" or a name of `available_backends()`.

    Returns:
        `[...]` fp32 (fp64 for fp64 logits). At least the largest logit of a row is kept.

    Raises:
        ValueError: as in `verify`.

    Example:
        >>> logit_cutoff(torch.tensor([3.0, 1.0, 2.0]), top_k=2)
        tensor(2.)
    """
    if not isinstance(logits, Tensor) or logits.dim() < 1:
        checks.refuse("logits", "a tensor [..., V]", checks.describe(logits))
    logits = checks.logits("logits", logits, list(logits.shape))
    rows = logits.reshape(-1, logits.shape[-1])
    num_rows, device = rows.shape[0], rows.device

    def flat(value: object) -> object:
        return value.reshape(-1) if isinstance(value, Tensor) and value.shape == logits.shape[:-1] else value

    backends.check_name(backend)
    limits = (
        checks.temperature("temperature", flat(temperature), num_rows, device),
        checks.per_row("top_k", flat(top_k), num_rows, device, integer=True),
        checks.per_row("top_p", flat(top_p), num_rows, device, least=0, most=1),
        checks.per_row("min_p", flat(min_p), num_rows, device, least=0, most=1),
    )
    arguments = [part for limit in limits for part in (limit.value, limit.rows)]
    cutoff: Tensor = torch.ops.metasd.logit_cutoff(checks.detached(rows), *arguments, backend)
    return cutoff.reshape(logits.shape[:-1])


def _logit_cutoff(
    logits: Tensor, temperature: float, temperature_rows: Tensor | None, top_k: int, top_k_rows: Tensor | None,
    top_p: float, top_p_rows: Tensor | None, min_p: float, min_p_rows: Tensor | None, backend: str,
) -> Tensor:  # fmt: skip
    inputs = CutoffInputs(
        logits, PerRow(temperature, temperature_rows), PerRow(top_k, top_k_rows), PerRow(top_p, top_p_rows),
        PerRow(min_p, min_p_rows),
    )  # fmt: skip
    out = _logit_cutoff_fake(logits)
    backends.resolve(backend, logits).logit_cutoff(inputs, out)
    return out


def _logit_cutoff_fake(logits: Tensor, *rest: Any) -> Tensor:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.empty(logits.shape[:-1], dtype=dtype, device=logits.device)


register(
    "logit_cutoff",
    "(Tensor logits, float temperature, Tensor? temperature_rows, int top_k, Tensor? top_k_rows, float top_p, "
    "Tensor? top_p_rows, float min_p, Tensor? min_p_rows, str backend) -> Tensor",
    _logit_cutoff,
    _logit_cutoff_fake,
)
