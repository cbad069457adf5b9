"""One round: choose, activate, draft, score, verify, stop, commit, learn. The whole method is here."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from metasd.bandits import Bandit
from metasd.config import MAX_NUM_DRAFT_TOKENS
from metasd.core import Choice, Coins, Draft, Offer, RoundRecord, TokenScores, refuse
from metasd.logits import LogitsPipeline
from metasd.pool import Pool
from metasd.scores import score_round
from metasd.stopping import StopScanner
from metasd.target import Target
from metasd.verification import Verdict, verify_draft


@dataclass
class Sequence:
    """One request while it is being decoded."""

    target: Target
    pool: Pool
    bandit: Bandit
    pipeline: LogitsPipeline
    stops: StopScanner
    seed: Tensor  # [1] int64
    rule: str
    num_draft_tokens: int | None  # None: the bandit chooses, up to MAX_NUM_DRAFT_TOKENS
    max_new_tokens: int
    token_scores: str  # of which arms they are kept: "off", "free", "all"
    last_token: int  # the last committed token: the target has not read it yet
    rounds: list[RoundRecord] = field(default_factory=list)

    @property
    def room(self) -> int:
        """The most draft tokens of the next round; its last token comes from the target."""
        room = self.max_new_tokens - len(self.stops.token_ids) - 1
        return min(room, MAX_NUM_DRAFT_TOKENS if self.num_draft_tokens is None else self.num_draft_tokens)


@dataclass(frozen=True)
class Round:
    """What a round yields: its record, its tokens, and the target's raw rows behind which they came."""

    record: RoundRecord
    token_ids: list[int]
    logits: Tensor  # [1, K+1, V]


def play_round(sequence: Sequence) -> Round:
    """Play one round of speculative decoding with the arm that the bandit picks; `sequence` moves on by its tokens.

    The arm and the block length depend on past rounds and committed tokens only, and the round's coins are used in no
    other round: under these two conditions the output has the target's law whatever the bandit does (Prop. 3.1 of
    BanditSpec, arXiv 2505.15141).
    """
    target, pool, bandit = sequence.target, sequence.pool, sequence.bandit
    start, models_before = time.perf_counter(), _model_seconds(sequence)
    round_id = len(sequence.rounds)
    coins = Coins(sequence.seed, nonce=round_id)

    offers = pool.offers(sequence.room)
    choice = checked(bandit.select(offers), offers)

    drafter, catch_up_seconds, switched = pool.activate(choice.arm)
    draft_start = time.perf_counter()
    draft = drafter.draft(choice.num_draft_tokens, coins) if choice.num_draft_tokens else None

    verify_start = time.perf_counter()
    block = torch.tensor([[sequence.last_token]], device=target.device)
    logits = target.score(block if draft is None else torch.cat([block, draft.token_ids], dim=1))
    verdict = verify_draft(logits, draft, sequence.pipeline, sequence.stops, coins, sequence.rule)
    verify_end = time.perf_counter()

    num_draft, num_accepted = draft.num_tokens if draft else 0, verdict.num_accepted_tokens
    token_ids = verdict.output_token_ids
    target.rewind(num_draft - num_accepted)
    features = target.take_features()
    laws = pool.commit(choice.arm, token_ids, num_draft - num_accepted, features, sequence.token_scores)
    scores = _scores(sequence, choice.arm, draft, laws, verdict)
    sequence.pipeline.commit(token_ids)
    sequence.last_token = token_ids[-1]

    draft_seconds, verify_seconds = verify_start - draft_start, verify_end - verify_start
    record = record_of(
        round_id,
        choice.arm,
        num_draft,
        verdict,
        offers[choice.arm],
        num_output_tokens=len(token_ids),
        draft_seconds=draft_seconds,
        verify_seconds=verify_seconds,
        model_seconds=_model_seconds(sequence) - models_before + verdict.kernel_seconds,
        catch_up_seconds=catch_up_seconds,
        overhead_seconds=time.perf_counter() - start - draft_seconds - verify_seconds - catch_up_seconds,
        switched=switched,
        token_scores=scores,
    )
    sequence.rounds.append(record)
    bandit.update(round_id, record)
    return Round(record, token_ids, logits)


def record_of(
    round_id: int, arm: str, num_draft_tokens: int, verdict: Verdict, offer: Offer, **measured: Any
) -> RoundRecord:
    """What happened in a round: the verdict, and what was measured beside it."""
    return RoundRecord(
        round_id=round_id,
        arm=arm,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=verdict.num_accepted_tokens,
        accept_probability=verdict.accept_probability,
        tv_distance=verdict.tv_distance,
        num_expected_accepted=verdict.num_expected_accepted,
        bd=verdict.block_divergence,
        be=verdict.num_accepted_tokens / num_draft_tokens if num_draft_tokens else 0.0,
        status=verdict.status,
        positions=offer.positions[:num_draft_tokens],
        **measured,
    )


def _model_seconds(sequence: Sequence) -> float:
    return sequence.target.forward_seconds + sequence.pool.forward_seconds


def _scores(
    sequence: Sequence, arm: str, draft: Draft | None, laws: dict[str, Draft], verdict: Verdict
) -> dict[str, TokenScores]:
    """The scores of the drafting arm and of those that were asked, if they are kept."""
    if sequence.token_scores == "off" or verdict.rows is None:
        return {}
    asked = {**({arm: draft} if draft else {}), **laws}
    return score_round(verdict.rows, asked, verdict.output_token_ids, sequence.pipeline.law)


def checked(choice: Choice, offers: dict[str, Offer]) -> Choice:
    """A bandit of the user's own may choose what nobody offered."""
    if choice.arm not in offers or not 0 <= choice.num_draft_tokens <= offers[choice.arm].max_num_draft_tokens:
        known = {arm: offer.max_num_draft_tokens for arm, offer in offers.items()}
        raise refuse("bandit", f"a choice among {known} (arm: most draft tokens)", choice)
    return choice
