"""The default policy: what is free to know is known, what must be tried is tried while it could pay."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from metasd.bandits.base import Policy, Setting
from metasd.core import NULL_ARM, Choice, Offer, Position, RoundRecord, TokenScores, refuse

_MAX_WINDOW = 8


Window = tuple[Sequence[Position], float]
"""What one arm offered before a round, from where tokens have followed it, and how surely the block came there."""


class Auto(Policy):
    """Upper confidence bounds on tokens a second, in which three things differ from UCB.

    Arms that are asked for their laws of the emitted tokens are scored in every round, whoever drafted: a block that
    the arm could have drafted from the round's start is followed along the tokens of this round and the next ones, and
    each position that it reaches is evidence (the counterfactual reward, by position). They need no optimism. Others
    have evidence of their own rounds, and a bound that shrinks with it. Evidence fades within the answer, by `discount`
    a round, and between answers by `decay`, so that the last answers are this one's prior.

    Args:
        setting: what it plays for.
        beta: width of the bound, for arms that are not asked.
        discount: what a round's evidence is worth in the next one, in (0, 1].
        options: of `Policy`.
    """

    needs_scores: ClassVar[bool] = True

    def __init__(self, setting: Setting, beta: float = 0.15, discount: float = 0.98, **options: Any) -> None:
        if not beta >= 0:
            raise refuse("beta", "a number of at least 0", beta)
        if not 0 < discount <= 1:
            raise refuse("discount", "a number above 0 and at most 1", discount)
        self._beta, self._discount = float(beta), float(discount)
        super().__init__(setting, **options)

    def reset(self) -> None:
        super().reset()
        self.begin()

    def begin(self) -> None:
        self._windows: dict[str, Sequence[Window]] = {}
        self._asked: dict[str, int] = {}  # by arm: behind which token of the answer its scores end
        self._num_tokens = 0
        self._offers: list[Mapping[str, Offer]] = []  # of rounds whose feedback is still to come

    def select(self, available: Mapping[str, Offer]) -> Choice:
        self._offers.append(available)
        return super().select(available)

    def update(self, round_id: int, feedback: RoundRecord) -> None:
        offers = self._offers.pop(0) if self._offers else {}
        start, self._num_tokens = self._num_tokens, self._num_tokens + feedback.num_output_tokens
        self.forget(self._discount)
        super().update(round_id, feedback)
        for arm, scores in feedback.token_scores.items():
            if arm in self.num_rounds and len(scores.ratio) >= feedback.num_output_tokens:
                self._follow(arm, offers.get(arm), scores, start, feedback.num_output_tokens)

    def learn(self, record: RoundRecord) -> None:
        scores = record.token_scores.get(record.arm)
        is_asked = scores is not None and len(scores.ratio) >= record.num_output_tokens
        if not is_asked:  # else its windows tell the same, from the same tokens
            super().learn(record)

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
        is_speed, fixed, unit = self.setting.objective == "speed", self.setting.num_draft_tokens, self.unit
        rounds = sum(self.num_rounds[arm] for arm in available) / unit
        width, spread = self._beta * math.sqrt(2 * math.log(max(rounds, 1.0))), self.setting.reward.spread
        best, best_index = None, -math.inf
        if is_speed and NULL_ARM in available:
            best, best_index = Choice(NULL_ARM, 0), 1 / self._costs.plain()
        for arm, offer in available.items():
            positions = offer.positions
            if not positions:
                continue
            if fixed is None:
                length, tokens, seconds = self.plan(arm, offer, least=1)
            else:
                length = min(fixed, len(positions))
                tokens = self.hazards.expected_tokens(arm, positions[:length], unit)[-1]
                seconds = self._costs.round(arm, length) if is_speed else 1.0
            if arm not in self._asked:
                played = self.num_rounds[arm] / unit + positions[0].prior_weight
                if played <= 0:
                    return Choice(arm, length)
                tokens = min(tokens + width * spread(length) / math.sqrt(played), float(length))
            index = (1 + tokens) / seconds
            if index > best_index:
                best, best_index = Choice(arm, length), index
        assert best is not None
        return best
