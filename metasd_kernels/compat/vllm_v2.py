"""vLLM's `rejection_sample` of the newer model runner, V2, over the fused `verify`."""

import torch
from torch import Tensor

from metasd_kernels import checks
from metasd_kernels.compat._arguments import require
from metasd_kernels.ops import verify


def rejection_sample(
    target_logits: Tensor,  # [num_logits, V_t], a row for each draft token and one more for each request
    draft_logits: Tensor | None,  # [max_num_reqs, num_speculative_steps, V_d]
    draft_sampled: Tensor,  # [num_logits] int32 | int64: a request's last token, then its draft tokens
    cu_num_logits: Tensor,  # [num_reqs + 1] int32 | int64, *with* a leading 0
    pos: Tensor,  # [num_logits] int64
    idx_mapping: Tensor,  # [num_reqs] int32 | int64, where a request lies in the tensors of max_num_reqs
    expanded_idx_mapping: Tensor,
    expanded_local_pos: Tensor,
    temperature: Tensor,  # [max_num_reqs]
    seed: Tensor,  # [max_num_reqs] int64
    num_speculative_steps: int,
    synthetic_conditional_rates: Tensor | None = None,
    use_fp64: bool = False,
    use_block_verification: bool = False,
    contexts: Tensor | None = None,
    watermarking: Tensor | None = None,
    watermarking_skip_mask: Tensor | None = None,
    watermark_key: int | None = None,
    fly_window_size: int = 0,
    fly_entropy_threshold: float = 0.3,
    fly_entropy_top_k: int = 3,
) -> tuple[Tensor, Tensor]:
    """Verify packed drafts and sample the token that follows.

    Follows `vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py` of vLLM 0.33.0 (4ba787ec9), with other coins:
    the same seeds give other tokens, in the same law. Where the drafter has fewer ids, the target keeps its own; vLLM
    cuts the target to them. The rows of `draft_logits` are gathered, which copies them.

    Args:
        target_logits: *after* temperature, top-k and top-p.
        draft_logits: *before* temperature, as vLLM 0.33 stores them (older versions scaled them); None: each draft
            token is a point mass.
        draft_sampled: a negative draft id ends a draft.
        pos: that of a request's first row is the round nonce of `verify`. It grows each round, and no coin is met
            again, since coins are addressed by nonce *and* place in the block, never by position alone.
        expanded_idx_mapping, expanded_local_pos: not read; they follow from `idx_mapping` and `cu_num_logits`.
        temperature: 0 is greedy; scales `draft_logits` alone.
        seed: the key of a request's coins.
        num_speculative_steps: the width of the result, less one.
        use_block_verification: the block rule instead of the token rule.
        synthetic_conditional_rates, use_fp64, contexts .. watermark_key, fly_window_size: only their defaults, without
            which the other two mean nothing.

    Returns:
        `[num_reqs, num_speculative_steps + 1]` int64 tokens, -1 behind the last; `[num_reqs]` int32, how many they are,
        *the recovered or bonus token included*.

    Raises:
        ValueError: as in `verify`; an option other than its default.
    """
    nothing = (synthetic_conditional_rates, contexts, watermarking, watermarking_skip_mask, watermark_key)
    names = ("synthetic_conditional_rates", "contexts", "watermarking", "watermarking_skip_mask", "watermark_key")
    for name, value in zip(names, nothing, strict=True):
        require(name, value, None)
    require("use_fp64", use_fp64, False)
    require("use_block_verification", use_block_verification, True, False)
    require("fly_window_size", fly_window_size, 0)
    target = checks.logits("target_logits", target_logits, ["num_logits", "V_t"])
    num_logits, device = target.shape[0], target.device
    first = checks.tensor("cu_num_logits", cu_num_logits, ["num_reqs + 1"], checks.INTS, device).long()
    num_reqs = first.shape[0] - 1
    if not 0 <= num_reqs <= num_logits:
        checks.refuse("cu_num_logits", f"at most {num_logits} requests, one row each at least", checks.describe(first))
    checks.tensor("draft_sampled", draft_sampled, [num_logits], checks.INTS, device)
    checks.tensor("pos", pos, [num_logits], checks.INTS, device)
    state = checks.tensor("idx_mapping", idx_mapping, [num_reqs], checks.INTS, device).long()
    warmth = checks.tensor("temperature", temperature, ["max_num_reqs"], checks.FLOATS, device)[state]
    key = checks.tensor("seed", seed, [temperature.shape[0]], (torch.int64,), device)[state]

    first_draft = first - torch.arange(num_reqs + 1, device=device)
    draft = torch.arange(num_logits - num_reqs, device=device)
    request = torch.searchsorted(first_draft[1:], draft, right=True).clamp(max=num_reqs - 1)
    if draft_logits is not None:
        shape: list[int | str] = [temperature.shape[0], num_speculative_steps, "V_d"]
        step = (draft - first_draft[request]).clamp(max=num_speculative_steps - 1)
        draft_logits = checks.logits("draft_logits", draft_logits, shape, device)[state[request], step]
    out = verify(
        target, draft_sampled[(draft + request + 1).clamp(max=num_logits - 1)], draft_logits,
        temperature=(warmth != 0).float(), draft_temperature=warmth, cu_num_draft_tokens=first_draft,
        max_num_draft_tokens=num_speculative_steps, rule="block" if use_block_verification else "token",
        seed=key, offset=pos[first[:-1]].long(), compute_tv=False,
    )  # fmt: skip
    return out.output_token_ids, out.num_accepted_tokens + 1
