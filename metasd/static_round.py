"""One round of `round.py` where draft and verification are launched on the device, and the host reads late.

What is chosen depends on rounds that have been read, so on past ones only, and the coins are the round's own: the
output has the target's law whatever the delay is.
"""

import time
from dataclasses import dataclass, field

from metasd.config import MAX_NUM_DRAFT_TOKENS
from metasd.core import NULL_ARM, Choice, Coins, Draft, Offer
from metasd.round import Round, Sequence, checked, record_of
from metasd.static_loop import StaticLoop


@dataclass
class Launched:
    """A draft that is on its way."""

    choice: Choice
    offer: Offer
    switched: bool
    num_draft_tokens: int
    draft: Draft | None = None  # one that the host made
    draft_seconds: float = 0.0
    catch_up_seconds: float = 0.0


@dataclass
class StaticPlay:
    """What a request carries from one static round to the next.

    Attributes:
        loop: where rounds are launched.
        is_late: whether the next draft is launched before a round's verdict is read.
        ahead: the draft of the next round.
        chosen: the choice for the next round, of an arm that has to wait for this one's tokens.
        drafted_last: the arm whose draft is in the tokens.
    """

    loop: StaticLoop
    is_late: bool
    ahead: Launched | None = None
    chosen: Choice | None = None
    drafted_last: str = field(default=NULL_ARM)


def is_possible(sequence: Sequence, num_prompt_tokens: int) -> bool:
    """Whether a request can be played at fixed addresses.

    Its rows go to the verify op as they are, and its law is a tensor's business; a white-box drafter has to find its
    features on the device.
    """
    drafters = sequence.pool.drafters.values()
    longest = sequence.num_draft_tokens or 0
    return (
        sequence.pipeline.is_identity
        and sequence.token_scores == "off"
        and num_prompt_tokens > 1
        and longest <= MAX_NUM_DRAFT_TOKENS
        and not any(drafter.requires_features and drafter.static is None for drafter in drafters)
    )


def play_static_round(sequence: Sequence, play: StaticPlay) -> Round:
    """Play one round; see `play_round`."""
    loop, pool = play.loop, sequence.pool
    start = time.perf_counter()
    round_id = len(sequence.rounds)
    now = play.ahead or _launch(sequence, play, 0)
    assert now is not None
    own_seconds = 0.0 if now is play.ahead else now.draft_seconds + now.catch_up_seconds

    verify_start = time.perf_counter()
    loop.verify(now.choice.arm, now.num_draft_tokens, now.draft)
    verify_seconds = time.perf_counter() - verify_start
    play.drafted_last = now.choice.arm if now.num_draft_tokens else NULL_ARM

    ahead_start = time.perf_counter()
    play.ahead = _launch(sequence, play, now.num_draft_tokens + 1) if play.is_late else None
    ahead_seconds = time.perf_counter() - ahead_start

    read_start = time.perf_counter()
    verdict = loop.read(now.num_draft_tokens)
    token_ids = sequence.stops.scan(verdict.output_token_ids)
    verify_seconds += time.perf_counter() - read_start

    num_accepted = verdict.num_accepted_tokens
    if now.draft is not None and num_accepted < now.num_draft_tokens:
        pool.drafters[now.choice.arm].rewind(now.num_draft_tokens - num_accepted)
    pool.extend(token_ids)
    loop.know(pool.num_tokens)
    sequence.pipeline.commit(token_ids)
    sequence.last_token = token_ids[-1]
    spent = own_seconds + verify_seconds + ahead_seconds
    record = record_of(
        round_id,
        now.choice.arm,
        now.num_draft_tokens,
        verdict,
        now.offer,
        num_output_tokens=len(token_ids),
        draft_seconds=now.draft_seconds,
        verify_seconds=verify_seconds,
        catch_up_seconds=now.catch_up_seconds,
        overhead_seconds=max(time.perf_counter() - start - spent, 0.0),
        switched=now.switched,
    )
    sequence.rounds.append(record)
    sequence.bandit.update(round_id, record)
    return Round(record, token_ids, loop.logits)


def _launch(sequence: Sequence, play: StaticPlay, num_unread: int) -> Launched | None:
    """Choose an arm and launch its draft, while up to `num_unread` tokens of the sequence are unknown to the host.

    Returns:
        None if the host has to know them first: the arm drafts on its word, or the answer may end with them.
    """
    loop, pool = play.loop, sequence.pool
    room = sequence.room - num_unread
    if num_unread and room < 1:
        return None
    offers = pool.offers(room, num_unread)
    choice, play.chosen = play.chosen or checked(sequence.bandit.select(offers), offers), None
    if choice.arm not in offers:  # chosen before the tokens came with which it fell asleep
        choice = Choice(NULL_ARM, 0)
    choice = Choice(choice.arm, min(choice.num_draft_tokens, offers[choice.arm].max_num_draft_tokens))
    arm, length = choice.arm, choice.num_draft_tokens
    is_static = length > 0 and loop.is_static(arm)
    if num_unread and length and not is_static:
        play.chosen = choice
        return None
    switched = pool.active is not None and pool.active != arm
    launched = Launched(choice, offers[arm], switched, length)
    begin = time.perf_counter()
    if is_static:
        gap = pool.bring(arm) + num_unread
        if arm != play.drafted_last:
            loop.catch_up(arm, gap)
        launched.catch_up_seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        loop.draft(arm, length)
        launched.draft_seconds = time.perf_counter() - begin
        return launched
    drafter, launched.catch_up_seconds, launched.switched = pool.activate(arm)
    begin = time.perf_counter()
    if length:
        sequence.target.move_to(pool.num_tokens - 1)
        coins = Coins(sequence.seed, nonce=len(sequence.rounds))
        launched.draft = drafter.draft(length, coins)
        launched.num_draft_tokens = launched.draft.num_tokens if launched.draft else 0
        if launched.draft is not None:
            loop.place(launched.draft)
    launched.draft_seconds = time.perf_counter() - begin
    return launched
