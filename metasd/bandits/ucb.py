"""MetaSD-UCB (Kim, Jung, Yun; arXiv 2604.05417), and its form for tokens per second."""

import math
from collections.abc import Mapping
from typing import Any

from metasd.bandits.base import Policy, Setting
from metasd.core import NULL_ARM, Choice, Offer, refuse


class UCB(Policy):
    """Plays the arm with the best upper confidence bound.

    Objective "tokens", the paper's: each arm once, then argmax mean_i + beta sqrt(2 ln t / n_i).
    Objective "speed": argmax (1 + accepted tokens, optimistically) / seconds over (arm, length); the null arm takes
    part with 0 accepted tokens and no bonus, since its cost is known. An arm with priors need not be played first.

    Args:
        setting: what it plays for.
        beta: width of the bound. 0.22 is 1 / (2 sqrt(5)), the scale of BD over five positions; 1 is near uniform play
            within a 200-token answer.
        options: of `Policy`.
    """

    def __init__(self, setting: Setting, beta: float = 0.22, **options: Any) -> None:
        if not beta >= 0:
            raise refuse("beta", "a number of at least 0", beta)
        self._beta = float(beta)
        super().__init__(setting, **options)

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        rounds = sum(self.num_rounds[arm] for arm in available)
        best, best_index = Choice(NULL_ARM, 0), -math.inf
        for arm, offer in available.items():
            length = self.length(arm, offer, least=1)
            if length == 0 and (arm != NULL_ARM or self.setting.objective == "tokens"):
                continue
            index = self._index(arm, offer, length, rounds)
            if index > best_index:
                best, best_index = Choice(arm, length), index
        return best

    def _index(self, arm: str, offer: Offer, length: int, rounds: float) -> float:
        if length == 0:
            return 1 / self._costs.plain()
        prior_weight = offer.positions[0].prior_weight
        is_speed = self.setting.objective == "speed"
        played = self.num_rounds[arm] + (prior_weight if is_speed else 0.0)
        if played <= 0:
            return math.inf
        reward = self.setting.reward
        radius = self._beta * reward.spread(length) * math.sqrt(2 * math.log(max(rounds, 1.0)) / played)
        if not is_speed:
            return self.mean(arm) + radius
        if self.setting.num_draft_tokens is None or self.num_rounds[arm] == 0:
            mean = self.hazards.expected_tokens(arm, offer.positions[:length])[-1]
            bonus = reward.tokens(min(1.0, radius / reward.spread(length)), length) if reward.name != "rb" else radius
            accepted = min(mean + bonus, float(length))
        else:
            accepted = reward.tokens(self.mean(arm) + radius, length)
        return (1 + accepted) / self._costs.round(arm, length)
