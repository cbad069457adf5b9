"""EXP3 (Auer et al. 2002; Bubeck and Cesa-Bianchi 2012): for rewards that may be anything."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from metasd.bandits.base import Setting
from metasd.bandits.seeded import SeededPolicy
from metasd.core import NULL_ARM, Choice, Offer, RoundRecord, refuse


class EXP3(SeededPolicy):
    """Plays an arm with probability proportional to the exponential of its importance-weighted gains.

    Gains are shares of the largest, in [0, 1]. With `gamma` 0 the learning rate falls, eta_t = sqrt(ln K / (t K)); with
    `gamma` above 0 it is gamma / K, and gamma of the probability is uniform (Auer's form).

    Args:
        setting: what it plays for.
        gamma: in [0, 1].
        options: of `SeededPolicy`.
    """

    def __init__(self, setting: Setting, gamma: float = 0.0, **options: Any) -> None:
        if not 0 <= gamma <= 1:
            raise refuse("gamma", "a number from 0 to 1", gamma)
        self._gamma = float(gamma)
        super().__init__(setting, **options)

    def reset(self) -> None:
        super().reset()
        self.gains: dict[str, float] = dict.fromkeys(self.setting.arms, 0.0)
        self.begin()

    def begin(self) -> None:
        self._odds: deque[float] = deque()  # with which the arms were chosen whose rounds are still to come

    def select(self, available: Mapping[str, Offer]) -> Choice:
        self._chance = 1.0
        choice = super().select(available)
        self._odds.append(self._chance)
        return choice

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        has_null = self.setting.objective == "speed"
        arms = [arm for arm, offer in available.items() if (offer.positions if arm != NULL_ARM else has_null)]
        odds = self.odds(arms)
        arm = self._random.choices(arms, odds)[0]
        self._chance = odds[arms.index(arm)]
        return Choice(arm, 0 if arm == NULL_ARM else self.length(arm, available[arm], least=1))

    def odds(self, arms: Sequence[str]) -> list[float]:
        """The probability of each of these arms."""
        rate = self.rate(len(arms))
        most = max(self.gains[arm] for arm in arms)
        weights = [math.exp(rate * (self.gains[arm] - most)) for arm in arms]
        share, uniform = (1 - self._gamma) / sum(weights), self._gamma / len(arms)
        return [share * weight + uniform for weight in weights]

    def rate(self, num_arms: int) -> float:
        """The learning rate among so many arms."""
        if self._gamma:
            return self._gamma / num_arms
        rounds = sum(self.num_rounds.values()) / self.unit
        return math.sqrt(math.log(max(num_arms, 2)) / (max(rounds, 1.0) * num_arms))

    def learn(self, record: RoundRecord) -> None:
        chance = self._odds.popleft() if self._odds else 1.0
        super().learn(record)
        arm, length = record.arm, record.num_draft_tokens
        value = self.setting.reward.value(record) if length else 0.0
        self.gains[arm] += self.estimate(self.gain(value, arm, length), chance)

    def estimate(self, gain: float, chance: float) -> float:
        """What is added to a played arm's gains."""
        return gain / chance

    def forget(self, factor: float) -> None:
        super().forget(factor)
        for arm in self.gains:
            self.gains[arm] *= factor

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"gains": dict(self.gains)}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        super().load_own_state(state)
        self.gains = {arm: float(state["gains"][arm]) for arm in self.setting.arms}
        self.begin()
