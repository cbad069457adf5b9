"""FlashInfer's `chain_speculative_sampling` over the fused `verify`."""

import torch
from torch import Tensor

from metasd_kernels import checks
from metasd_kernels.compat._arguments import logits_of, require
from metasd_kernels.ops import verify
from metasd_kernels.rng import Domain, philox, verify_coins

_ROW_KEY = len(Domain)  # a domain of its own: no coin of `verify` or `sample` is met again in a row's key
_WORD = 0xFFFFFFFF


def chain_speculative_sampling(
    draft_probs: Tensor,  # [B, K, V]
    draft_token_ids: Tensor,  # [B, K]
    target_probs: Tensor,  # [B, K+1, V]
    maybe_output_accepted_token_num: Tensor | None = None,  # [B] int32, added to in place
    maybe_output_emitted_draft_token_num: Tensor | None = None,  # [B] int32, added to in place
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    seed: int | Tensor | None = None,  # [1] | [B]
    offset: int | Tensor | None = None,  # [1] | [B]
) -> tuple[Tensor, Tensor, Tensor]:
    """Verify chains of draft tokens, from probabilities.

    Follows `flashinfer/sampling.py` and `include/flashinfer/sampling.cuh` of FlashInfer 0.7.2.post1 (beabf50). Two
    things differ. Other coins: the same seed gives other tokens, in the same law. And each draft token is tested once,
    where FlashInfer tests the first rejected one a second time for the accepted count, with a new coin. From logits,
    `verify` saves the softmaxes and the two passes that take logarithms here.

    Args:
        draft_probs: bf16 | fp16 | fp32 laws of the draft tokens, each with the sum 1.
        draft_token_ids: int32 | int64; a negative id ends a chain.
        target_probs: laws of the target, one position more.
        maybe_output_accepted_token_num: a running sum to add to; None: a new one from 0. Counts the draft tokens that
            would be accepted each on its own, also behind the first rejection.
        maybe_output_emitted_draft_token_num: likewise, the draft tokens before the first rejection. Both leave out the
            recovered or bonus token.
        deterministic: either value: the result is always a function of inputs and coins.
        generator: where coins come from without a seed; None: torch's default generator of the device.
        seed: int64 | uint64, with `offset`, instead of a generator. The key of row b is Philox(seed, b), so one seed
            serves all rows.
        offset: the round nonce. Unlike FlashInfer's, it need only be new in each call with the same seed.

    Returns:
        `[B, K+1]` int32 tokens, -1 behind the last; the accepted and the emitted counts, `[B]` int32.

    Raises:
        ValueError: as in `verify`; one of `seed` and `offset` without the other, or beside a generator.

    Example:
        >>> one_hot = torch.eye(3)
        >>> chain_speculative_sampling(one_hot[None, [2]], torch.tensor([[2]]), one_hot[None, [2, 1]])
        (tensor([[2, 1]], dtype=torch.int32), tensor([1], dtype=torch.int32), tensor([1], dtype=torch.int32))
    """
    require("deterministic", deterministic, True, False)
    draft_logits = logits_of("draft_probs", draft_probs, ["B", "K", "V"])
    (batch_size, num_positions, vocab_size), device = draft_logits.shape, draft_logits.device
    target_logits = logits_of("target_probs", target_probs, [batch_size, num_positions + 1, vocab_size], device)
    counts = [
        torch.zeros(batch_size, dtype=torch.int32, device=device)
        if total is None
        else checks.tensor(name, total, [batch_size], (torch.int32,), device)
        for name, total in (
            ("maybe_output_accepted_token_num", maybe_output_accepted_token_num),
            ("maybe_output_emitted_draft_token_num", maybe_output_emitted_draft_token_num),
        )
    ]
    coins = _coins(batch_size, num_positions, device, generator, seed, offset)
    out = verify(target_logits, draft_token_ids, draft_logits, uniform_samples=coins, compute_tv=False)

    emitted = out.num_accepted_tokens
    is_behind = torch.arange(num_positions, device=device) > emitted.unsqueeze(-1)
    counts[0] += emitted + (is_behind & (coins[:, :num_positions] < out.accept_probability)).sum(-1)
    counts[1] += emitted
    return out.output_token_ids.int(), counts[0], counts[1]


def _coins(
    batch_size: int,
    num_positions: int,
    device: torch.device,
    generator: torch.Generator | None,
    seed: int | Tensor | None,
    offset: int | Tensor | None,
) -> Tensor:
    """`[B, K + 2]`, also for the accepted count, which tests draft tokens that `verify` does not."""
    if seed is None and offset is None:
        return torch.rand((batch_size, num_positions + 2), generator=generator, device=device)
    if generator is not None:
        checks.refuse("generator", "None beside seed and offset", generator)
    key, nonce = _whole("seed", seed, batch_size, device), _whole("offset", offset, batch_size, device)
    row = torch.arange(batch_size, device=device)
    nothing = torch.zeros_like(row)
    words = philox((key & _WORD, key >> 32 & _WORD), (row, nothing, nothing, torch.full_like(row, _ROW_KEY)))
    return verify_coins(words[:, 0] | words[:, 1] << 32, nonce, num_positions)


def _whole(name: str, value: int | Tensor | None, batch_size: int, device: torch.device) -> Tensor:
    """int64 `[1]` or `[B]`: the 64 bits of a number, signed or not."""
    if isinstance(value, Tensor):
        num_rows = 1 if tuple(value.shape) == (1,) else batch_size
        return checks.tensor(name, value, [num_rows], (torch.int64, torch.uint64), device).view(torch.int64)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**64:
        checks.refuse(name, f"an int of 64 bits, or a tensor [1] or [{batch_size}], with seed and offset", repr(value))
    return torch.full((1,), (value + 2**63) % 2**64 - 2**63, dtype=torch.int64, device=device)
