"""The default policy: what is free to know is known, what must be tried is tried while it could pay."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from metasd.bandits.base import Policy, Setting
from metasd.bandits.kl_ucb import divergence, upper_bound
from metasd.core import NULL_ARM, Choice, Offer, Position, RoundRecord, TokenScores, refuse

_MAX_WINDOW = 8
_RECENT = 8  # rounds that are compared with those before
_POSITIONS = 3  # as many Bernoulli outcomes is a round's block divergence worth
_AFTER_CHANGE = 0.1  # what is known counts that much once the text has changed


Window = tuple[Sequence[Position], float]
"""What one arm offered before a round, from where tokens have followed it, and how surely the block came there."""


class Auto(Policy):
    """Upper confidence bounds on tokens a second, in which four things differ from UCB.

    Arms that are asked for their laws of the emitted tokens are scored in every round, whoever drafted: a block that
    the arm could have drafted from the round's start is followed along the tokens of this round and the next ones, and
    each position that it reaches is evidence (the counterfactual reward, by position). They need no optimism. Others
    have the rewards of their own rounds, with the bound of KL-UCB. Where the last rounds of an arm are clearly worse
    than those before, the text has changed its kind, and what was learned counts little from then on; between answers
    it fades by `decay`, so that the last answers are this one's prior. And another arm than the last one must be worth
    its catching up, spread over the next `stay` rounds.

    Args:
        setting: what it plays for.
        scale: width of the bound, for arms that are not asked.
        change: how unlikely the last rounds must be under what was known, in nats, to be a change; 0: never.
        stay: rounds that an arm is expected to be played in a row.
        options: of `Policy`.
    """

    default_reward: ClassVar[str] = "bd"
    needs_scores: ClassVar[bool] = True
    needs_hazards: ClassVar[bool] = True

    def __init__(
        self, setting: Setting, scale: float = 0.1, change: float = 5.0, stay: float = 6.0, **options: Any
    ) -> None:
        if not scale >= 0:
            raise refuse("scale", "a number of at least 0", scale)
        if not change >= 0:
            raise refuse("change", "a number of at least 0", change)
        if not stay >= 1:
            raise refuse("stay", "at least 1 round", stay)
        self._scale, self._change, self._stay = float(scale), float(change), float(stay)
        super().__init__(setting, **options)

    def reset(self) -> None:
        super().reset()
        self._switch: dict[str, float] = {}  # seconds that catching up took, when an arm was switched to
        self.begin()

    def begin(self) -> None:
        self._rewards: dict[str, list[float]] = {}  # by arm: those of this kind of text
        self._windows: dict[str, Sequence[Window]] = {}
        self._asked: dict[str, int] = {}  # by arm: behind which token of the answer its scores end
        self._num_tokens, self._last = 0, NULL_ARM
        self._offers: list[Mapping[str, Offer]] = []  # of rounds whose feedback is still to come

    def select(self, available: Mapping[str, Offer]) -> Choice:
        self._offers.append(available)
        choice = super().select(available)
        if choice.num_draft_tokens:
            self._last = choice.arm
        return choice

    def update(self, round_id: int, feedback: RoundRecord) -> None:
        offers = self._offers.pop(0) if self._offers else {}
        start, self._num_tokens = self._num_tokens, self._num_tokens + feedback.num_output_tokens
        super().update(round_id, feedback)
        if feedback.switched and not self.is_reproducible:
            known = self._switch.get(feedback.arm, feedback.catch_up_seconds)
            self._switch[feedback.arm] = known + 0.25 * (feedback.catch_up_seconds - known)
        for arm, scores in feedback.token_scores.items():
            if arm in self.num_rounds and len(scores.ratio) >= feedback.num_output_tokens:
                self._follow(arm, offers.get(arm), scores, start, feedback.num_output_tokens)

    def learn(self, record: RoundRecord) -> None:
        if record.num_draft_tokens:
            self._look_for_change(record)
        scores = record.token_scores.get(record.arm)
        is_asked = scores is not None and len(scores.ratio) >= record.num_output_tokens
        if not is_asked:  # else its windows tell the same, from the same tokens
            super().learn(record)

    def _look_for_change(self, record: RoundRecord) -> None:
        """Compare an arm's last rounds in this answer with those before."""
        last = self._rewards.setdefault(record.arm, [])
        last.append(record.bd)
        if not self._change or len(last) <= 2 * _RECENT:
            return
        recent, before = last[-_RECENT:], last[:-_RECENT]
        mean, expected = sum(recent) / _RECENT, min(max(sum(before) / len(before), 1e-3), 1 - 1e-3)
        if mean < expected and _RECENT * divergence(mean, expected) * _POSITIONS > self._change:
            self.forget(_AFTER_CHANGE)
            self._rewards.clear()

    def _follow(self, arm: str, offer: Offer | None, scores: TokenScores, start: int, count: int) -> None:
        """Take an arm's scores of a round's tokens."""
        windows = self._windows.get(arm, ()) if self._asked.get(arm, 0) == start else ()
        self._asked[arm] = start + count
        self._plans.pop(arm, None)
        if offer is not None and offer.positions:
            windows = (*windows, (offer.positions[:_MAX_WINDOW], 1.0))
            self.num_rounds[arm] += self.unit
        left, follow, unit = list[Window](), self.hazards.follow, self.unit
        ratio, overlap = scores.ratio[:count], scores.overlap[:count]
        for positions, reach in windows:
            steps, reach = follow(arm, positions, reach, ratio, overlap, unit)
            if reach and steps < len(positions):
                left.append((positions[steps:], reach))
        self._windows[arm] = left

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        is_speed, fixed, unit, reward = self._is_speed, self.setting.num_draft_tokens, self.unit, self.setting.reward
        num_rounds, asked, costs = self.num_rounds, self._asked, self._costs
        level = self._scale * math.log(max(sum(num_rounds[arm] for arm in available) / unit, 1.0))
        best, best_index = None, -math.inf
        if is_speed and NULL_ARM in available:
            best, best_index = Choice(NULL_ARM, 0), 1 / costs.plain()
        for arm, offer in available.items():
            positions = offer.positions
            if not positions:
                continue
            if fixed is None:
                length, tokens, _ = self.plan(arm, offer, 1)
            else:
                length, tokens = min(fixed, len(positions)), -1.0
                if arm in asked or not num_rounds[arm]:
                    tokens = self.hazards.expected_tokens(arm, positions[:length], unit)[-1]
            if arm not in asked:
                played = num_rounds[arm] / unit
                rests_on = played + positions[0].prior_weight
                if rests_on <= 0:
                    return Choice(arm, length)
                most = reward.most(length)
                mean = self.total_reward[arm] / num_rounds[arm] if played else most * positions[0].prior
                share = min(max(mean / most, 0.0), 1.0)
                hoped = reward.tokens(most * upper_bound(share, level / rests_on), length)
                tokens = hoped if tokens < 0 else min(tokens + hoped - reward.tokens(mean, length), float(length))
            index = 1 + tokens
            if is_speed:
                per_token, _ = costs.draft_and_catch_up(arm)
                seconds = length * per_token + costs.verify(length)
                if arm != self._last:
                    seconds += self._switch.get(arm, 0.0) / self._stay
                index /= seconds
            if index > best_index:
                best, best_index = Choice(arm, length), index
        assert best is not None
        return best

    def own_state(self) -> dict[str, Any]:
        return {"switch": dict(self._switch)}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        self._switch = {arm: float(seconds) for arm, seconds in state["switch"].items()}
