"""What the ops return, and the scratch memory that they use."""

from dataclasses import dataclass
from enum import IntFlag
from typing import NamedTuple

import torch
from torch import Tensor

from metasd_kernels.launch import verify_floats_per_row

TILE = 1024
"""Ids in one tile of the final draw. Part of the coin contract: every backend draws a tile first, then an id in it."""


class Status(IntFlag):
    """Bits of `VerifyOutput.status`: what a value inside a tensor did that a Python check could not refuse."""

    BAD_LOGITS = 1  # a row in the block has a NaN, a +inf or no support; a temperature is negative, NaN or inf
    ZERO_RESIDUAL = 2  # rejected although p and q are equal up to rounding: drawn from p
    BAD_TOKEN = 4  # a draft id is outside the target vocabulary: the block ends before it
    TIMEOUT = 8  # a wait inside the kernel ran out: the row's output must not be used


class VerifyOutput(NamedTuple):
    """One verified block for each of B requests; K draft positions. Floats are fp32 (float64 for float64 logits)."""

    output_token_ids: Tensor  # [B, K+1] int64: accepted drafts, one recovered or bonus token, then -1
    num_accepted_tokens: Tensor  # [B] int32, drafts only
    tv_distance: Tensor  # [B, K], every position of the block; 1 where there is no draft; [0] without TV
    accept_probability: Tensor  # [B, K], min(1, p(x)/q(x)); 0 where there is no draft
    expected_num_accepted: Tensor  # [B], the Rao-Blackwell estimate of E[num_accepted_tokens]; [0] without TV
    block_divergence: Tensor  # [B], sum_k (1 - TV_k) / reward_length; [0] without TV
    status: Tensor  # [B] int32, bits of Status


def empty_output(
    batch_size: int, num_draft_tokens: int, dtype: torch.dtype, device: torch.device, compute_tv: bool
) -> VerifyOutput:
    """Uninitialised outputs of the right shapes; `dtype` is that of the float fields."""
    rows, block = (batch_size,), (batch_size, num_draft_tokens)
    nothing = (0,)
    return VerifyOutput(
        output_token_ids=torch.empty((batch_size, num_draft_tokens + 1), dtype=torch.int64, device=device),
        num_accepted_tokens=torch.empty(rows, dtype=torch.int32, device=device),
        tv_distance=torch.empty(block if compute_tv else nothing, dtype=dtype, device=device),
        accept_probability=torch.empty(block, dtype=dtype, device=device),
        expected_num_accepted=torch.empty(rows if compute_tv else nothing, dtype=dtype, device=device),
        block_divergence=torch.empty(rows if compute_tv else nothing, dtype=dtype, device=device),
        status=torch.empty(rows, dtype=torch.int32, device=device),
    )


@dataclass(frozen=True)
class Workspace:
    """Scratch memory for one stream or one captured graph; two calls in flight must not share one.

    The counters are zero before each call, and the call leaves them zero. A backend without scratch ignores it.
    """

    batch_size: int
    num_draft_tokens: int
    vocab_size: int
    counters: Tensor  # int32: one for each row and request, and two for the launch
    partials: Tensor  # fp32: what the tiles of each row tell each other


def make_workspace(
    batch_size: int, num_draft_tokens: int, vocab_size: int, *, device: torch.device | str = "cpu"
) -> Workspace:
    """Scratch memory for calls of at most these sizes.

    Args:
        batch_size: the largest B, at least 0.
        num_draft_tokens: the largest K, at least 0.
        vocab_size: the largest vocabulary, of target and drafters, at least 1.
        device: where the logits lie.

    Raises:
        ValueError: a size is out of its range.
    """
    for name, value, least in (
        ("batch_size", batch_size, 0),
        ("num_draft_tokens", num_draft_tokens, 0),
        ("vocab_size", vocab_size, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}: expected an int of at least {least}, got {value!r}")
    num_floats = batch_size * (num_draft_tokens + 1) * verify_floats_per_row(vocab_size)
    return Workspace(
        batch_size,
        num_draft_tokens,
        vocab_size,
        counters=torch.zeros(2 + batch_size * (num_draft_tokens + 2), dtype=torch.int32, device=device),
        partials=torch.zeros(num_floats, dtype=torch.float32, device=device),
    )
