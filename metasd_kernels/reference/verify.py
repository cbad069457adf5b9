"""The verification of a draft block: softmax, total variation, accept or reject, residual draw. The definition.

Token rule: Leviathan et al. (2023), Chen et al. (2023). Block rule: Sun et al. (ICLR 2025). In formulas p is the target
law and q the draft law, s_i the running acceptance weight of the block rule. Everything is vectorised over requests.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from metasd_kernels.inputs import PerRow, VerifyInputs
from metasd_kernels.outputs import Status, VerifyOutput
from metasd_kernels.reference.laws import draw, in_target_vocabulary, is_greedy, is_no_temperature, law
from metasd_kernels.rng import verify_coins


class _Block(NamedTuple):
    """The padded form of the inputs: K draft positions and K + 1 target rows for each request."""

    target_logits: Tensor  # [B, K+1, V_t]
    draft_token_ids: Tensor  # [B, K] int64
    draft_logits: Tensor | None  # [B, K, V_d]
    draft_to_target: Tensor | None  # [V_d] or [B, K, S]
    target_cutoff: Tensor | None  # [B, K+1]
    draft_cutoff: Tensor | None  # [B, K]
    length: Tensor  # [B] int64, negative for an inert row


class _Draft(NamedTuple):
    """The laws from which the block was drawn."""

    is_valid: Tensor  # [B, K] bool: the positions before the block's end
    end: Tensor  # [B] int64: where the block ends
    log_prob: Tensor | None  # [B, K, V_t]; None: every position is a point mass at its draft id
    token_log_prob: Tensor  # [B, K]: log q(x_k)
    status: Tensor  # [B] int32


def verify(inputs: VerifyInputs, out: VerifyOutput) -> None:
    """Fill `out`. Inputs are read only; see `metasd_kernels.verify` for the contract."""
    block = _padded(inputs)
    batch_size, num_positions = block.draft_token_ids.shape
    target = law(block.target_logits, inputs.temperature, block.target_cutoff)
    log_p, vocab_size = target.log_prob, target.log_prob.shape[-1]
    draft = _draft(inputs, block, vocab_size)

    position = torch.arange(num_positions + 1, device=log_p.device)
    is_read = position <= draft.end.unsqueeze(-1)
    status = draft.status | (target.is_bad & is_read).any(-1).int() * Status.BAD_LOGITS

    token = block.draft_token_ids.clamp(0, vocab_size - 1).unsqueeze(-1)
    token_log_p = log_p[:, :num_positions].gather(-1, token).squeeze(-1)
    log_ratio = (token_log_p - draft.token_log_prob).masked_fill(draft.token_log_prob == -torch.inf, torch.inf)
    log_ratio = log_ratio.masked_fill((token_log_p == -torch.inf) | ~draft.is_valid, -torch.inf)
    accept_probability = log_ratio.clamp(max=0.0).exp()

    coins = _coins(inputs, batch_size, num_positions, log_p)
    if inputs.rule == "token":
        is_accepted = log_ratio > coins[:, :num_positions].log()
        num_accepted = is_accepted.long().cumprod(-1).sum(-1)
        weight = torch.ones_like(num_accepted, dtype=log_p.dtype)
    else:
        weights = _running_weight(log_ratio)
        num_accepted = _block_rule(log_p, draft, token, weights, coins)
        weight = torch.nn.functional.pad(weights, (1, 0), value=1.0).gather(-1, num_accepted.unsqueeze(-1)).squeeze(-1)

    final_token, is_zero = _final_token(log_p, draft, token, num_accepted, weight, coins[:, num_positions:])
    status = status | is_zero.int() * Status.ZERO_RESIDUAL

    is_inert = block.length < 0
    ids = torch.nn.functional.pad(block.draft_token_ids, (0, 1), value=-1)
    ids = ids.masked_fill(position >= num_accepted.unsqueeze(-1), -1).scatter(
        -1, num_accepted.unsqueeze(-1), final_token.unsqueeze(-1)
    )
    out.output_token_ids.copy_(ids.masked_fill(is_inert.unsqueeze(-1), -1))
    out.num_accepted_tokens.copy_(num_accepted)
    out.accept_probability.copy_(accept_probability)
    out.status.copy_(status.masked_fill(is_inert, 0))
    if inputs.compute_tv:
        tv = _excess(log_p[:, :num_positions], draft, token, torch.ones_like(log_ratio))
        tv = tv.clamp(0.0, 1.0).masked_fill(~draft.is_valid, 1.0)
        out.tv_distance.copy_(tv)
        if inputs.rule == "token":
            reach = torch.nn.functional.pad(accept_probability, (1, 0), value=1.0).cumprod(-1)[:, :num_positions]
            out.expected_num_accepted.copy_((reach * (1 - tv)).sum(-1))
        else:
            out.expected_num_accepted.copy_(weights.sum(-1))
        out.block_divergence.copy_(_block_divergence(tv, inputs.reward_length, num_positions))


def _padded(inputs: VerifyInputs) -> _Block:
    """Bring the packed form to the padded one, so that there is one algorithm below."""
    batch_size, num_positions = inputs.batch_size, inputs.num_draft_positions
    device, ids, mapping = inputs.target_logits.device, inputs.draft_token_ids.long(), inputs.draft_to_target
    if inputs.cu_num_draft_tokens is None:
        length = torch.full((batch_size,), num_positions, dtype=torch.int64, device=device)
        if inputs.num_draft_tokens is not None:
            length = inputs.num_draft_tokens.long().clamp(max=num_positions)
        cutoffs = inputs.target_cutoff, inputs.draft_cutoff
        return _Block(inputs.target_logits, ids, inputs.draft_logits, mapping, *cutoffs, length)

    start = inputs.cu_num_draft_tokens.long()
    length = (start[1:] - start[:-1]).clamp(max=num_positions)
    position = torch.arange(num_positions + 1, device=device)
    index = start[:-1, None] + position[:num_positions]
    row = start[:-1, None] + torch.arange(batch_size, device=device)[:, None] + position

    def unpack(packed: Tensor, where: Tensor) -> Tensor:
        if packed.shape[0] == 0:  # nothing to gather from: every block is empty
            return packed.new_zeros((*where.shape, *packed.shape[1:]))
        return packed[where.clamp(0, packed.shape[0] - 1)]

    def unpack_given(packed: Tensor | None, where: Tensor) -> Tensor | None:
        return None if packed is None else unpack(packed, where)

    return _Block(
        unpack(inputs.target_logits, row),
        unpack(ids, index),
        unpack_given(inputs.draft_logits, index),
        mapping if mapping is not None and mapping.dim() == 1 else unpack_given(mapping, index),
        unpack_given(inputs.target_cutoff, row),
        unpack_given(inputs.draft_cutoff, index),
        length,
    )


def _draft(inputs: VerifyInputs, block: _Block, vocab_size: int) -> _Draft:
    """The draft laws, and where each block ends: at its length, the first token that is none, the first broken law."""
    ids, device = block.draft_token_ids, block.draft_token_ids.device
    batch_size, num_positions = ids.shape
    position = torch.arange(num_positions, device=device)
    dtype = torch.promote_types(block.target_logits.dtype, torch.float32)
    is_point_mass = torch.ones((batch_size, 1), dtype=torch.bool, device=device)
    log_q, is_bad = None, torch.zeros_like(ids, dtype=torch.bool)
    is_odd = torch.zeros(batch_size, dtype=torch.bool, device=device)
    if block.draft_logits is not None and not inputs.draft_temperature.always(0):
        temperature = inputs.draft_temperature.tensor(batch_size, dtype, device)
        is_odd, is_point_mass = is_no_temperature(temperature), is_greedy(temperature).unsqueeze(-1)
        logits = block.draft_logits
        if block.draft_to_target is not None and block.draft_to_target.dim() == 3:  # a slot with a negative id is empty
            logits = logits.masked_fill(block.draft_to_target < 0, -torch.inf)
        log_q, is_bad = law(
            logits, PerRow(1.0, temperature.masked_fill(is_point_mass.squeeze(-1), 1.0)), block.draft_cutoff
        )
        log_q = in_target_vocabulary(log_q.to(dtype), block.draft_to_target, vocab_size)
        is_bad = is_bad & ~is_point_mass

    is_stop = (ids < 0) | (ids >= vocab_size) | is_bad | (position >= block.length.unsqueeze(-1))
    end = torch.nn.functional.pad(is_stop, (0, 1), value=True).int().argmax(-1)
    at_end = end.clamp(max=max(num_positions - 1, 0)).unsqueeze(-1)
    status = (is_odd & (end > 0)).int() * Status.BAD_LOGITS
    if num_positions:
        id_there, bad_there = ids.gather(-1, at_end).squeeze(-1), is_bad.gather(-1, at_end).squeeze(-1)
        is_inside = end < block.length
        status |= (is_inside & (id_there >= vocab_size)).int() * Status.BAD_TOKEN
        status |= (is_inside & bad_there & (id_there >= 0) & (id_there < vocab_size)).int() * Status.BAD_LOGITS

    token = ids.clamp(0, vocab_size - 1).unsqueeze(-1)
    token_log_q = torch.zeros(ids.shape, dtype=dtype, device=device)
    if log_q is not None:
        one_hot = torch.full_like(log_q, -torch.inf).scatter_(-1, token, 0.0)
        log_q = torch.where(is_point_mass.unsqueeze(-1), one_hot, log_q)
        token_log_q = log_q.gather(-1, token).squeeze(-1)
    return _Draft(position < end.unsqueeze(-1), end, log_q, token_log_q, status)


def _excess(log_p: Tensor, draft: _Draft, token: Tensor, weight: Tensor) -> Tensor:
    """sum_x max(s p(x) - q(x), 0) at each position; with s = 1 the total variation distance, the mass of the residual.

    Args:
        log_p: `[B, K, V]`; `token`: `[B, K, 1]`; `weight`: `[B, K]`, s at each position, at most 1.
    """
    if draft.log_prob is None:  # q is 1 at the draft token and s p is at most 1 there
        return weight * (1 - log_p.gather(-1, token).squeeze(-1).exp())
    return (weight.unsqueeze(-1) * log_p.exp() - draft.log_prob.exp()).clamp(min=0.0).sum(-1)


def _running_weight(log_ratio: Tensor) -> Tensor:
    """s_1 .. s_K of the block rule: s_i = min(s_{i-1} p(x_i) / q(x_i), 1), in logs, so that p == q keeps s exactly."""
    log_s, steps = torch.zeros_like(log_ratio[:, :1]), []
    for k in range(log_ratio.shape[1]):
        step = log_ratio[:, k : k + 1]
        log_s = torch.where(log_s == -torch.inf, log_s, (log_s + step).clamp(max=0.0))
        steps.append(log_s)
    return torch.cat(steps, -1).exp() if steps else torch.zeros_like(log_ratio)


def _block_rule(log_p: Tensor, draft: _Draft, token: Tensor, weights: Tensor, coins: Tensor) -> Tensor:
    """The last i with u_i < h_i, else 0; h_i = m_i / (m_i + 1 - s_i), and h = s where the block ends."""
    num_positions = weights.shape[1]
    if num_positions == 0:
        return draft.end
    shifted = draft._replace(log_prob=None if draft.log_prob is None else draft.log_prob[:, 1:])
    mass = _excess(log_p[:, 1:num_positions], shifted, token[:, 1:], weights[:, :-1])
    h = mass / (mass + (1 - weights[:, :-1]))
    h = torch.cat([h.nan_to_num(nan=0.0), weights[:, -1:]], -1)
    index = torch.arange(1, num_positions + 1, device=h.device)
    h = torch.where(index == draft.end.unsqueeze(-1), weights, h)
    is_possible = (coins[:, :num_positions] < h) & draft.is_valid
    return (index * is_possible).amax(-1)


def _final_token(
    log_p: Tensor, draft: _Draft, token: Tensor, num_accepted: Tensor, weight: Tensor, coins: Tensor
) -> tuple[Tensor, Tensor]:
    """The recovered token ~ max(s p - q, 0) after a rejection, else the bonus ~ p; and where the residual was 0."""
    row = torch.arange(log_p.shape[0], device=log_p.device)
    p = log_p[row, num_accepted].exp()
    is_bonus = num_accepted >= draft.end
    if draft.is_valid.shape[1] == 0:
        return draw(p, coins), torch.zeros_like(is_bonus)
    at = num_accepted.clamp(max=draft.is_valid.shape[1] - 1)
    if draft.log_prob is None:
        residual = (weight.unsqueeze(-1) * p).scatter(-1, token[row, at], 0.0)
    else:
        residual = (weight.unsqueeze(-1) * p - draft.log_prob[row, at].exp()).clamp(min=0.0)
    is_zero = ~is_bonus & (residual.sum(-1) <= 0)
    return draw(torch.where((is_bonus | is_zero).unsqueeze(-1), p, residual), coins), is_zero


def _coins(inputs: VerifyInputs, batch_size: int, num_positions: int, like: Tensor) -> Tensor:
    """`[B, K + 2]`, injected or from Philox; a greedy target decides without them."""
    if inputs.uniform_samples is not None:
        return inputs.uniform_samples.to(like.dtype)
    if inputs.temperature.always(0):
        return torch.full((batch_size, num_positions + 2), 0.5, dtype=like.dtype, device=like.device)
    seed, offset = (value.tensor(batch_size, torch.int64, like.device) for value in (inputs.seed, inputs.offset))
    return verify_coins(seed, offset, num_positions).to(like.dtype)


def _block_divergence(tv: Tensor, reward_length: Tensor | None, num_positions: int) -> Tensor:
    """sum_k (1 - TV_k) / N; 0 where N is 0."""
    total = (1 - tv).sum(-1)
    if reward_length is None:
        return total / max(num_positions, 1)
    return torch.where(reward_length > 0, total / reward_length.clamp(min=1), 0.0)
