"""What UCB, KL-UCB, Thompson sampling and their like share: play the arm that could be best."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from metasd.bandits.base import Policy
from metasd.core import NULL_ARM, Choice, Offer

Candidate = tuple[str, int, float, float]
"""An arm that could draft now: its name, the length of its block, its mean reward, and the rounds on which the mean
rests; with the weight of a prior, for tokens a second."""


class IndexPolicy(Policy):
    """Plays the arm with the best index, mean reward plus optimism.

    Objective "tokens", the paper's: each arm once, then argmax of the index. Objective "speed": argmax (1 + accepted
    tokens, optimistically) / seconds over (arm, length); the null arm takes part with 0 accepted tokens and no
    optimism, since its cost is known, and an arm with priors need not be played first.
    """

    @abstractmethod
    def optimism(self, candidates: Sequence[Candidate], rounds: float) -> Sequence[float]:
        """By how much each arm's reward could be better than its mean; `rounds`: of all of them together."""

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        if self.setting.objective == "speed":
            return self._choose_fastest(available)
        candidates, fixed, unit, rounds = list[Candidate](), self.setting.num_draft_tokens, self.unit, 0.0
        num_rounds, total_reward = self.num_rounds, self.total_reward
        for arm, offer in available.items():
            played, positions = num_rounds[arm], offer.positions
            rounds += played
            if positions:
                length = self.plan(arm, offer, 1)[0] if fixed is None else min(fixed, len(positions))
                if played <= 0:
                    return Choice(arm, length)
                candidates.append((arm, length, total_reward[arm] / played, played / unit))
        best, best_index = candidates[0], -math.inf
        for candidate, bonus in zip(candidates, self.optimism(candidates, rounds / unit), strict=True):
            index = candidate[2] + bonus
            if index > best_index:
                best, best_index = candidate, index
        return Choice(best[0], best[1])

    def _choose_fastest(self, available: Mapping[str, Offer]) -> Choice:
        """Most tokens a second, the null arm among those that could be it."""
        candidates, fixed, unit, rounds = list[Candidate](), self.setting.num_draft_tokens, self.unit, 0.0
        reward, costs, num_rounds = self.setting.reward, self._costs, self.num_rounds
        expected = list[tuple[float, float]]()  # accepted tokens of the block, and its seconds
        for arm, offer in available.items():
            played, positions = num_rounds[arm], offer.positions
            rounds += played
            if not positions:
                continue
            mean = self.total_reward[arm] / played if played else 0.0
            rests_on = played / unit + positions[0].prior_weight
            if fixed is None:
                length, tokens, seconds = self.plan(arm, offer, 1)
            else:
                length = min(fixed, len(positions))
                seconds, tokens = costs.round(arm, length), -1.0  # told by the mean reward
                if not played:
                    tokens = self.hazards.expected_tokens(arm, positions[:length], unit)[-1]
            if rests_on <= 0:
                return Choice(arm, length)
            candidates.append((arm, length, mean, rests_on))
            expected.append((tokens, seconds))
        best, best_rate = (NULL_ARM, 0), 1 / costs.plain() if NULL_ARM in available else -math.inf
        bonuses = self.optimism(candidates, rounds / unit)
        for (arm, length, mean, _), (tokens, seconds), bonus in zip(candidates, expected, bonuses, strict=True):
            if tokens < 0:
                accepted = reward.tokens(mean + bonus, length)
            else:
                accepted = tokens + (reward.tokens(min(reward.most(length), bonus), length) if bonus else 0.0)
                accepted = length if accepted > length else accepted
            rate = (1 + accepted) / seconds
            if rate > best_rate:
                best, best_rate = (arm, length), rate
        return Choice(*best)
