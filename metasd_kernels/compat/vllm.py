"""vLLM's `rejection_sample` of the older model runner, V1, over the fused `verify`."""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from metasd_kernels import checks
from metasd_kernels.compat._arguments import logits_of, require
from metasd_kernels.ops import verify

PLACEHOLDER_TOKEN_ID = -1


class SamplingMetadata(Protocol):
    """What is read of `vllm.v1.sample.metadata.SamplingMetadata`; a temperature of 0 is greedy."""

    @property
    def temperature(self) -> Tensor | None: ...  # [B]; unread where one of the next two is True
    @property
    def all_greedy(self) -> bool: ...
    @property
    def all_random(self) -> bool: ...
    @property
    def generators(self) -> dict[int, torch.Generator]: ...


def rejection_sample(
    draft_token_ids: Tensor,  # [N] int32 | int64, the draft tokens of all requests
    num_draft_tokens: list[int],  # B
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,  # [B] int32 | int64, *without* a leading 0
    draft_probs: Tensor | None,  # [N, V_d]
    target_logits: Tensor,  # [N, V_t], no row for the bonus token
    bonus_token_ids: Tensor,  # [B, 1] int32 | int64
    sampling_metadata: SamplingMetadata,
    synthetic_mode: bool = False,
    synthetic_conditional_rates: Tensor | None = None,
    use_fp64_gumbel: bool = False,
    fly_window_size: int | None = None,
    fly_entropy_threshold: float | None = None,
    fly_entropy_top_k: int = 3,
) -> Tensor:
    """Verify packed drafts; whoever calls has sampled the bonus tokens.

    Follows `vllm/v1/sample/rejection_sampler.py` of vLLM 0.33.0 (4ba787ec9), with other coins: the same seeds give
    other tokens, in the same law. The rows of the bonus tokens are not here, so each draft token is verified as a block
    of one, all in one launch, and the result is the accepted prefix and what follows it: the token rule, and no copy.

    Args:
        draft_token_ids: a negative id is rejected, and its position draws from the target.
        max_spec_len: the width of the result, less one.
        draft_probs: laws of the draft tokens; None: each is a point mass, as an n-gram drafter's.
        target_logits: *after* temperature, top-k and top-p, as vLLM passes them. Older versions pass probabilities in
            this place: give their logarithm.
        bonus_token_ids: used as they are where a whole draft is accepted.
        sampling_metadata: three coins a draft token come from torch's default generator of the device, those of a
            request in `generators` from its own. A request without a draft draws none, nor does a greedy batch.
        synthetic_mode, synthetic_conditional_rates, use_fp64_gumbel, fly_window_size: only their defaults, without
            which the other two mean nothing.

    Returns:
        `[B, max_spec_len + 1]` int32: accepted tokens, one recovered or bonus token, then PLACEHOLDER_TOKEN_ID.

    Raises:
        ValueError: as in `verify`; an option other than its default; counts that do not fit. Not checked: that
            `num_draft_tokens` and `cu_num_draft_tokens` agree.
    """
    require("synthetic_mode", synthetic_mode, False)
    require("synthetic_conditional_rates", synthetic_conditional_rates, None)
    require("use_fp64_gumbel", use_fp64_gumbel, False)
    require("fly_window_size", fly_window_size, None)
    target = checks.logits("target_logits", target_logits, ["N", "V_t"])
    num_tokens, batch_size, device = target.shape[0], len(num_draft_tokens), target.device
    if sum(num_draft_tokens) != num_tokens or not all(0 <= n <= max_spec_len for n in num_draft_tokens):
        checks.refuse("num_draft_tokens", f"{num_tokens} in all, each in [0, {max_spec_len}]", num_draft_tokens)
    end = checks.tensor("cu_num_draft_tokens", cu_num_draft_tokens, [batch_size], checks.INTS, device)
    bonus = checks.tensor("bonus_token_ids", bonus_token_ids, [batch_size, 1], checks.INTS, device)
    checks.tensor("draft_token_ids", draft_token_ids, [num_tokens], checks.INTS, device)
    draft_logits = None
    if draft_probs is not None:
        draft_logits = logits_of("draft_probs", draft_probs, [num_tokens, "V_d"], device).unsqueeze(1)

    out = verify(
        target.unsqueeze(1).expand(-1, 2, -1), draft_token_ids.unsqueeze(1), draft_logits,
        temperature=_sharpness(sampling_metadata, end, num_tokens), compute_tv=False,
        uniform_samples=None if sampling_metadata.all_greedy else _coins(num_draft_tokens, sampling_metadata, device),
    )  # fmt: skip

    position = torch.arange(max_spec_len + 1, device=device)
    num_drafts = end.diff(prepend=end.new_zeros(1)).unsqueeze(-1)
    index = torch.where(position < num_drafts, end.unsqueeze(-1) - num_drafts + position, num_tokens)
    num_accepted = pad(out.num_accepted_tokens, (0, 1))[index].cumprod(-1).sum(-1, keepdim=True)
    ids = pad(out.output_token_ids[:, 0], (0, 1), value=PLACEHOLDER_TOKEN_ID)[index]
    ids = torch.where(position == num_drafts, bonus, ids)
    return ids.masked_fill(position > num_accepted, PLACEHOLDER_TOKEN_ID).int()


def _sharpness(metadata: SamplingMetadata, end: Tensor, num_tokens: int) -> float | Tensor:
    """0 for draft tokens of greedy requests, else 1: the logits have been scaled already."""
    if metadata.all_greedy or metadata.all_random:
        return 0.0 if metadata.all_greedy else 1.0
    name = "sampling_metadata.temperature"
    temperature = checks.tensor(name, metadata.temperature, end.shape, checks.FLOATS, end.device)
    request = torch.searchsorted(end, torch.arange(num_tokens, device=end.device, dtype=end.dtype), right=True)
    return (temperature != 0).float()[request]


def _coins(num_draft_tokens: list[int], metadata: SamplingMetadata, device: torch.device) -> Tensor:
    """`[N, 3]`: one to accept, two for the recovered token."""
    coins = torch.rand((sum(num_draft_tokens), 3), device=device)
    start = 0
    for request, num_tokens in enumerate(num_draft_tokens):
        if request in metadata.generators:
            coins[start : start + num_tokens].uniform_(generator=metadata.generators[request])
        start += num_tokens
    return coins
