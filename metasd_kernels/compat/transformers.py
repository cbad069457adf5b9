"""Transformers' `_speculative_sampling` over the fused `verify`."""

import torch
from torch import Tensor

from metasd_kernels import checks
from metasd_kernels.compat._arguments import require
from metasd_kernels.ops import verify


def _speculative_sampling(
    candidate_input_ids: Tensor,  # [1, L + K] int64
    candidate_logits: Tensor,  # [1, K, V_d]
    candidate_length: int,  # K
    new_logits: Tensor,  # [1, K+1, V_t]
    is_done_candidate: bool | Tensor = False,  # [1] bool
    assistant_ensemble_weight: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Verify the draft at the end of a sequence; one sequence, as there.

    Follows `src/transformers/generation/utils.py` of Transformers 5.17.0, whose fifth argument is `is_done_candidate`,
    and of 5.24.0, which has dropped it and names `assistant_ensemble_weight`: calls of both fit. Assisted decoding
    looks the name up in its own module, so setting `generation.utils._speculative_sampling` puts this function there.
    Like the original it reads the device once, since the length of its result depends on the coins; unlike it, a
    rejection where both laws are equal up to rounding draws from the target.

    Args:
        candidate_input_ids: the sequence, its last K ids being the draft.
        candidate_logits: processed logits from which the draft was sampled.
        candidate_length: K, 0 or more.
        new_logits: processed logits of the target. The coins come from torch's default generator of their device, so
            `torch.manual_seed` fixes them.
        is_done_candidate: the draft ends the text: if all of it is accepted, no bonus token follows.
        assistant_ensemble_weight: None, or 1: a smaller weight mixes the drafter into the output law.

    Returns:
        valid_tokens `[1, n + 1]` int64, the accepted draft tokens and one more; n_matches, n as an int64 tensor `[]`.
        Where the draft ended the text and all is accepted: the draft `[1, K]`, and K - 1.

    Raises:
        ValueError: as in `verify`; more than one sequence; a weight below 1.

    Example:
        >>> one_hot = torch.eye(3).log()
        >>> _speculative_sampling(torch.tensor([[0, 2]]), one_hot[None, [2]], 1, one_hot[None, [2, 1]])
        (tensor([[2, 1]]), tensor(1))
    """
    require("assistant_ensemble_weight", assistant_ensemble_weight, None, 1.0)
    if not isinstance(is_done_candidate, (bool, Tensor)):  # a weight here is a call that no version makes
        checks.refuse("is_done_candidate", "a bool or a bool tensor", repr(is_done_candidate))
    if isinstance(candidate_length, bool) or not isinstance(candidate_length, int) or candidate_length < 0:
        checks.refuse("candidate_length", "an int of at least 0", repr(candidate_length))
    target_logits = checks.logits("new_logits", new_logits, [1, candidate_length + 1, "V_t"])
    device = target_logits.device
    ids = checks.tensor("candidate_input_ids", candidate_input_ids, [1, "L + K"], checks.INTS, device)
    if ids.shape[1] < candidate_length:
        checks.refuse("candidate_input_ids", f"at least {candidate_length} ids", checks.describe(ids))
    draft_token_ids = ids[:, ids.shape[1] - candidate_length :]
    coins = torch.rand((1, candidate_length + 2), device=device)
    out = verify(target_logits, draft_token_ids, candidate_logits, uniform_samples=coins, compute_tv=False)

    n_matches = out.num_accepted_tokens[0].long()
    num_matches = int(n_matches)
    if num_matches == candidate_length and bool(is_done_candidate):
        return draft_token_ids, n_matches - 1
    return out.output_token_ids[:, : num_matches + 1], n_matches
