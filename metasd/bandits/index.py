"""What UCB, KL-UCB, Thompson sampling and their like share: play the arm that could be best."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from metasd.bandits.base import Policy
from metasd.core import NULL_ARM, Choice, Offer


class Candidate(NamedTuple):
    """An arm that could draft now."""

    arm: str
    length: int  # of its block
    mean: float  # reward so far
    num_rounds: float  # on which the mean rests; with the weight of a prior, for tokens a second


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
        is_speed = self.setting.objective == "speed"
        candidates, plans = list[Candidate](), list[tuple[int, float, float]]()
        fixed, unit, rounds = self.setting.num_draft_tokens, self.unit, 0.0
        for arm, offer in available.items():
            played = self.num_rounds[arm]
            rounds += played
            positions = offer.positions
            if not positions:
                continue
            num_rounds = played + (positions[0].prior_weight * unit if is_speed else 0.0)
            if fixed is None:
                plan = self.plan(arm, offer, least=1)
                plans.append(plan)
                length = plan[0]
            else:
                length = min(fixed, len(positions))
            if num_rounds <= 0:
                return Choice(arm, length)
            mean = self.total_reward[arm] / played if played else 0.0
            candidates.append(Candidate(arm, length, mean, num_rounds / unit))
        bonuses = self.optimism(candidates, rounds / unit)
        if not is_speed:
            best, best_index = candidates[0], -math.inf
            for candidate, bonus in zip(candidates, bonuses, strict=True):
                if candidate.mean + bonus > best_index:
                    best, best_index = candidate, candidate.mean + bonus
            return Choice(best.arm, best.length)
        return self._fastest(available, candidates, plans, bonuses)

    def _fastest(
        self,
        available: Mapping[str, Offer],
        candidates: Sequence[Candidate],
        plans: Sequence[tuple[int, float, float]],
        bonuses: Sequence[float],
    ) -> Choice:
        """Most tokens a second, the null arm among those that could be it."""
        reward, costs = self.setting.reward, self._costs
        choice, best = (Choice(NULL_ARM, 0), 1 / costs.plain()) if NULL_ARM in available else (None, -math.inf)
        for i, (arm, length, mean, _) in enumerate(candidates):
            if plans:
                _, tokens, seconds = plans[i]
            elif self.num_rounds[arm]:
                tokens, seconds = None, costs.round(arm, length)
            else:
                expected = self.hazards.expected_tokens(arm, available[arm].positions[:length], self.unit)
                tokens, seconds = expected[-1], costs.round(arm, length)
            if tokens is None:
                accepted = reward.tokens(mean + bonuses[i], length)
            else:
                accepted = min(tokens + reward.tokens(min(reward.most(length), bonuses[i]), length), float(length))
            rate = (1 + accepted) / seconds
            if choice is None or rate > best:
                choice, best = Choice(arm, length), rate
        assert choice is not None
        return choice
