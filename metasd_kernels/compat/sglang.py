"""SGLang's verification of chains over the fused `verify`: its two functions, which share one layout.

A chain has S = K + 1 slots: slot 0 holds the last token of the text, slot k the k-th draft token. `retrive_index` says
where a slot lies in `predicts`. For n accepted draft tokens are written: `predicts` at the first n + 1 slots, each with
the token that *follows* it; the first n + 1 entries of `accept_index`; `accept_token_num`, which leaves the final token
out. All else keeps its value.

Coins: columns 0 .. K-1 of `uniform_samples` accept. The final draw takes two, one for the tile of ids and one for the
id: `uniform_samples_for_final_sampling`, and column K of `uniform_samples`, which SGLang passes and does not read in a
chain. A caller that passes K columns gets the second from torch's default generator of the device.
"""

import torch
from torch import Tensor

from metasd_kernels import checks
from metasd_kernels.compat._arguments import logits_of, require
from metasd_kernels.ops import verify


def chain_speculative_sampling_triton(
    predicts: Tensor,  # [num_slots of the batch] int32, written
    accept_index: Tensor,  # [B, S] int32, written
    accept_token_num: Tensor,  # [B] int32, written
    candidates: Tensor,  # [B, S] int32 | int64
    retrive_index: Tensor,  # [B, S] int32 | int64
    retrive_next_token: Tensor | None,
    retrive_next_sibling: Tensor | None,
    uniform_samples: Tensor,  # [B, S] | [B, K] fp32
    uniform_samples_for_final_sampling: Tensor,  # [B] fp32
    target_probs: Tensor,  # [B, S, V]
    draft_probs: Tensor,  # [B, K, V] | [B, S, V], the last row unread
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
    *,
    block_verification: bool = False,
) -> None:
    """Verify chains against the law of the drafter, by the token rule or the block rule.

    Follows `python/sglang/kernels/ops/speculative/reject_sampling.py` of SGLang 0.5.23, where the two tree arguments,
    the thresholds and `deterministic` are not read: here the thresholds must be 1, the default. A draft token to which
    its drafter gave probability 0 is accepted if the target may emit it; SGLang rejects it.

    Raises:
        ValueError: as in `verify`; a threshold other than 1; `accept_index` of another width than the chain.
    """
    rule = "block" if block_verification else "token"
    require("block_verification", block_verification, True, False)
    draft_logits = logits_of("draft_probs", draft_probs, ["B", "K or S", "V"])
    _verify_chain(
        predicts, accept_index, accept_token_num, candidates, retrive_index, uniform_samples,
        uniform_samples_for_final_sampling, target_probs, draft_logits, threshold_single, threshold_acc, deterministic,
        rule,
    )  # fmt: skip


def tree_speculative_sampling_target_only(
    predicts: Tensor,  # as above
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,  # [B, S]: 1 .. K, then -1
    retrive_next_sibling: Tensor,  # [B, S]: -1
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,  # not touched
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Verify chains without the law of the drafter: each draft token counts as certain, as from a greedy drafter.

    Follows `python/sglang/kernels/ops/speculative/sampling.py` of SGLang 0.5.23, restricted to trees that are chains
    (topk 1): that they are is read from the device. `draft_probs`, scratch memory in SGLang, is not touched.

    Raises:
        ValueError: as in `verify`; a threshold other than 1; a tree that is no chain.
    """
    slots = checks.tensor("candidates", candidates, ["B", "S"], checks.INTS).shape
    step = torch.arange(1, slots[1] + 1, device=candidates.device)
    step = torch.where(step < slots[1], step, -1)
    for name, tree, chain in (
        ("retrive_next_token", retrive_next_token, step),
        ("retrive_next_sibling", retrive_next_sibling, torch.full_like(step, -1)),
    ):
        if not bool((checks.tensor(name, tree, slots, checks.INTS, candidates.device) == chain).all()):
            checks.refuse(name, "a chain, topk 1", "a tree that branches or ends early")
    _verify_chain(
        predicts, accept_index, accept_token_num, candidates, retrive_index, uniform_samples,
        uniform_samples_for_final_sampling, target_probs, None, threshold_single, threshold_acc, deterministic, "token",
    )  # fmt: skip


def _verify_chain(
    predicts: Tensor, accept_index: Tensor, accept_token_num: Tensor, candidates: Tensor, retrive_index: Tensor,
    uniform_samples: Tensor, uniform_samples_for_final_sampling: Tensor, target_probs: Tensor,
    draft_logits: Tensor | None, threshold_single: float, threshold_acc: float, deterministic: bool, rule: str,
) -> None:  # fmt: skip
    require("threshold_single", threshold_single, 1.0)
    require("threshold_acc", threshold_acc, 1.0)
    require("deterministic", deterministic, True, False)
    target_logits = logits_of("target_probs", target_probs, ["B", "S", "V"])
    (batch_size, num_slots, _), device = target_logits.shape, target_logits.device
    slots, last = (batch_size, num_slots), num_slots - 1
    checks.tensor("predicts", predicts, ["slots of all chains"], (torch.int32,), device)
    checks.tensor("accept_index", accept_index, slots, (torch.int32,), device)
    checks.tensor("accept_token_num", accept_token_num, [batch_size], (torch.int32,), device)
    checks.tensor("candidates", candidates, slots, checks.INTS, device)
    checks.tensor("retrive_index", retrive_index, slots, checks.INTS, device)
    final = checks.tensor(
        "uniform_samples_for_final_sampling", uniform_samples_for_final_sampling, [batch_size], (torch.float32,), device
    )
    checks.tensor("uniform_samples", uniform_samples, [batch_size, "K or S"], (torch.float32,), device)
    if uniform_samples.shape[1] not in (last, num_slots):
        checks.refuse("uniform_samples", f"{last} or {num_slots} columns", checks.describe(uniform_samples))
    accept, spare = uniform_samples[:, :last], uniform_samples[:, last:]
    if spare.shape[1] == 0:
        spare = torch.rand((batch_size, 1), device=device)
    if draft_logits is not None and draft_logits.shape[1] == num_slots:
        draft_logits = draft_logits[:, :last]
    out = verify(
        target_logits, candidates[:, 1:], draft_logits, rule=rule, compute_tv=False,
        uniform_samples=torch.cat([accept, final.unsqueeze(-1), spare], -1),
    )  # fmt: skip

    is_written = torch.arange(num_slots, device=device) <= out.num_accepted_tokens.unsqueeze(-1)
    where = retrive_index.long()
    predicts[where] = torch.where(is_written, out.output_token_ids.int(), predicts[where])
    accept_index.copy_(torch.where(is_written, retrive_index, accept_index))
    accept_token_num.copy_(out.num_accepted_tokens)
