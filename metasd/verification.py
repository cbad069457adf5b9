"""From a draft and the target's logits to the tokens of a round, on the host: the one caller of the verify op."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from metasd.core import Coins, Draft, MetaSDError
from metasd.logits import LogitsPipeline, law_cutoff
from metasd.stopping import StopScanner
from metasd_kernels import Status, VerifyOutput, verify
from metasd_kernels.rng import verify_coins


@dataclass(frozen=True)
class Verdict:
    """What the host needs of a verified block."""

    output_token_ids: list[int]  # accepted drafts and one recovered or bonus token, cut where the answer ends
    num_accepted_tokens: int
    tv_distance: tuple[float, ...]  # of the scored positions
    accept_probability: tuple[float, ...]
    num_expected_accepted: float
    block_divergence: float
    status: int
    kernel_seconds: float = 0.0  # of the verify op and the one read
    rows: Tensor | None = None  # [1, M, V], the processed rows of the positions that were reached at least


def pack(output: VerifyOutput) -> Tensor:
    """All that the host reads of a round, float64 `[3K + 5]`."""
    return torch.cat([field.reshape(-1).double() for field in output])


def read_verdict(output: VerifyOutput) -> Verdict:
    """The one read from the device in a round: everything in one copy.

    Raises:
        MetaSDError: the kernel says that its output must not be used.
    """
    return unpack(pack(output).tolist(), output.tv_distance.shape[1])


def unpack(values: Sequence[float], num_positions: int) -> Verdict:
    """What `pack` packed, of K positions.

    Raises:
        MetaSDError: the kernel says that its output must not be used.
    """
    parts, start = [], 0
    for size in (num_positions + 1, 1, num_positions, num_positions, 1, 1, 1):
        parts.append(values[start : start + size])
        start += size
    ids, (accepted,), tv, probability, (expected,), (divergence,), (status,) = parts
    if int(status) & Status.TIMEOUT:
        raise MetaSDError("the verify kernel timed out while it waited for its own programs; decode the request again")
    num_accepted = int(accepted)
    return Verdict(
        [int(token) for token in ids[: num_accepted + 1]],
        num_accepted,
        tuple(tv),
        tuple(probability),
        expected,
        divergence,
        int(status),
    )


def verify_draft(
    logits: Tensor, draft: Draft | None, pipeline: LogitsPipeline, stops: StopScanner, coins: Coins, rule: str
) -> Verdict:
    """Verify a block, and cut its tokens where the answer ends.

    Args:
        logits: `[1, K+1, V]`, the target's raw rows.
        draft: K tokens and their law; None: K = 0.
        pipeline: the request's processing of logits.
        stops: takes the round's tokens; its `finish_reason` tells afterwards whether the answer has ended.
        coins: of this round.
        rule: "token" or "block".
    """
    if pipeline.is_stepwise:
        return _verify_stepwise(logits, draft, pipeline, stops, coins)
    token_ids = draft.token_ids if draft else torch.empty((1, 0), dtype=torch.int64, device=logits.device)
    rows = pipeline.rows(logits, token_ids)
    verdict = _call_verify(rows, draft, token_ids, pipeline, coins, rule=rule)
    return replace(verdict, output_token_ids=stops.scan(verdict.output_token_ids), rows=rows)


def _call_verify(
    rows: Tensor,
    draft: Draft | None,
    token_ids: Tensor,
    pipeline: LogitsPipeline,
    coins: Coins,
    *,
    rule: str,
    uniform_samples: Tensor | None = None,
) -> Verdict:
    cutoff = law_cutoff(rows, pipeline.law)
    begin = time.perf_counter()
    output = verify(
        rows,
        token_ids,
        draft.logits if draft else None,
        temperature=pipeline.law.temperature,
        draft_temperature=draft.temperature if draft else None,
        target_cutoff=cutoff,
        draft_cutoff=draft.cutoff if draft else None,
        draft_to_target=draft.draft_to_target if draft else None,
        rule=rule,
        seed=coins.seed,
        offset=coins.nonce,
        uniform_samples=uniform_samples,
    )
    verdict = read_verdict(output)
    return replace(verdict, kernel_seconds=time.perf_counter() - begin)


def _verify_stepwise(
    logits: Tensor, draft: Draft | None, pipeline: LogitsPipeline, stops: StopScanner, coins: Coins
) -> Verdict:
    """Token rule, one position after the other, for processors that must see committed tokens only.

    A row is processed when all drafts before it have been accepted, so each processor is called once for each emitted
    token, as in plain decoding, and never behind the end. The coins are those that the whole block would have used.
    Positions behind the first rejection are not scored; a reached position counts as reached with certainty, which
    keeps the estimate unbiased.
    """
    num_draft = draft.num_tokens if draft else 0
    uniform = verify_coins(coins.seed, torch.tensor([coins.nonce], device=logits.device), num_draft)
    token_ids: list[int] = []
    tv: list[float] = []
    probability: list[float] = []
    rows: list[Tensor] = []
    status, num_accepted, kernel_seconds = 0, 0, 0.0
    for k in range(num_draft + 1):
        drafted = draft.token_ids[:, :k] if draft else torch.empty((1, 0), dtype=torch.int64, device=logits.device)
        row = pipeline.rows(logits[:, k : k + 1], drafted)
        rows.append(row)
        step = _position(draft, k) if draft and k < num_draft else None
        block = row.expand(1, 2, -1) if step else row  # the bonus row of a one-token block is not used
        one = torch.cat([uniform[:, k : k + 1], uniform[:, -2:]], dim=1) if step else uniform[:, -2:]
        ids = step.token_ids if step else torch.empty((1, 0), dtype=torch.int64, device=logits.device)
        verdict = _call_verify(block, step, ids, pipeline, coins, rule="token", uniform_samples=one)
        status |= verdict.status
        kernel_seconds += verdict.kernel_seconds
        tv.extend(verdict.tv_distance)
        probability.extend(verdict.accept_probability)
        token_ids += stops.scan(verdict.output_token_ids[:1])
        num_accepted += verdict.num_accepted_tokens
        if step is None or verdict.num_accepted_tokens == 0 or stops.finish_reason is not None:
            break
    overlap = sum(1.0 - value for value in tv)
    return Verdict(
        token_ids,
        num_accepted,
        tuple(tv),
        tuple([1.0] * num_accepted + probability[num_accepted:]),
        overlap,
        overlap / max(len(tv), 1),
        status,
        kernel_seconds,
        torch.cat(rows, dim=1),
    )


def _position(draft: Draft, k: int) -> Draft:
    """The one-token draft at position k."""
    is_sparse = draft.draft_to_target is not None and draft.draft_to_target.dim() == 3
    return Draft(
        draft.token_ids[:, k : k + 1],
        None if draft.logits is None else draft.logits[:, k : k + 1],
        draft.temperature,
        None if draft.cutoff is None else draft.cutoff[:, k : k + 1],
        draft.draft_to_target[:, k : k + 1]
        if is_sparse and draft.draft_to_target is not None
        else draft.draft_to_target,
    )
