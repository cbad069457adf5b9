"""Checked arguments, as they travel from the public functions to a backend. Shapes and meaning: `ops.py`.

Named tuples: they are built on every call, and a frozen dataclass takes five times as long.
"""

from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST_TEMPERATURE = torch.finfo(torch.float32).tiny
"""What is below counts as 0: its reciprocal is no finite fp32 number, and devices may flush it to 0 anyway."""


class PerRow(NamedTuple):
    """A number that is either the same for all rows, and then known to the host, or a tensor with one value a row."""

    value: float | int
    rows: Tensor | None = None

    def tensor(self, num_rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """`[num_rows]`, whichever form it came in."""
        if self.rows is None:
            return torch.full((num_rows,), self.value, dtype=dtype, device=device)
        return self.rows.to(dtype).expand(num_rows)

    def always(self, value: float | int) -> bool:
        """Whether the host knows that every row has this value."""
        return self.rows is None and self.value == value

    def never(self, value: float | int) -> bool:
        """Whether the host knows that no row has this value."""
        return self.rows is None and self.value != value


class VerifyInputs(NamedTuple):
    """Arguments of `verify`; K is the width of the outputs, also for the packed form."""

    batch_size: int
    num_draft_positions: int
    target_logits: Tensor
    draft_token_ids: Tensor
    draft_logits: Tensor | None
    temperature: PerRow
    draft_temperature: PerRow
    target_cutoff: Tensor | None
    draft_cutoff: Tensor | None
    num_draft_tokens: Tensor | None
    cu_num_draft_tokens: Tensor | None
    draft_to_target: Tensor | None
    reward_length: Tensor | None
    rule: str
    seed: PerRow
    offset: PerRow
    uniform_samples: Tensor | None
    compute_tv: bool
    counters: Tensor | None  # scratch memory of the caller's workspace
    partials: Tensor | None


class SampleInputs(NamedTuple):
    """Arguments of `sample`."""

    logits: Tensor
    temperature: PerRow
    cutoff: Tensor | None
    seed: PerRow
    offset: PerRow
    position: PerRow
    uniform_samples: Tensor | None


class CutoffInputs(NamedTuple):
    """Arguments of `logit_cutoff`, logits as `[R, V]`."""

    logits: Tensor
    temperature: PerRow
    top_k: PerRow
    top_p: PerRow
    min_p: PerRow
