"""Hedge with full information (cf. arXiv 2510.20064): arms that are asked have a gain each round, whoever drafted."""

import math
from collections.abc import Mapping
from typing import Any

from metasd.bandits.base import Setting
from metasd.bandits.seeded import SeededPolicy
from metasd.core import NULL_ARM, Choice, Offer, refuse


class Hedge(SeededPolicy):
    """Plays an arm with probability proportional to exp(rate sqrt(8 t ln K) gain_i), gain_i its mean gain so far in
    [0, 1] and t the rounds: exponential weights with a falling learning rate. Gains are counterfactual rewards, which
    later rounds complete; an arm that nobody asks is known from its own rounds.

    Args:
        setting: what it plays for.
        rate: 1 is the theory's, for gains that an adversary chooses.
        options: of `SeededPolicy`.
    """

    default_reward = "cf"
    needs_scores = True

    def __init__(self, setting: Setting, rate: float = 4.0, **options: Any) -> None:
        if not rate > 0:
            raise refuse("rate", "a number above 0", rate)
        self._rate = float(rate)
        super().__init__(setting, **options)

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        has_null = self.setting.objective == "speed"
        arms = [arm for arm, offer in available.items() if (offer.positions if arm != NULL_ARM else has_null)]
        lengths = [0 if arm == NULL_ARM else self.length(arm, available[arm], least=1) for arm in arms]
        for arm, length in zip(arms, lengths, strict=True):
            if not self.num_rounds[arm] and arm != NULL_ARM:
                return Choice(arm, length)  # neither played nor asked yet
        gains = [
            self.gain(self.mean(arm) if length else 0.0, arm, length)
            for arm, length in zip(arms, lengths, strict=True)
        ]  # fmt: skip
        rounds = max(self.num_rounds[arm] for arm in arms) / self.unit
        rate, most = self._rate * math.sqrt(8 * max(rounds, 1.0) * math.log(max(len(arms), 2))), max(gains)
        i = self._random.choices(range(len(arms)), [math.exp(rate * (gain - most)) for gain in gains])[0]
        return Choice(arms[i], lengths[i])
