"""Thompson sampling with Beta posteriors: plays an arm as often as it is likely to be the best."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metasd.bandits.base import Setting
from metasd.bandits.index import Candidate, IndexPolicy
from metasd.core import refuse


class Thompson(IndexPolicy):
    """Index: a draw from Beta(1 + s, 1 + f), s the rounds' shares of the largest reward, f what they lack of it.

    Args:
        setting: what it plays for.
        rounds_per_reward: how many Bernoulli outcomes a block reward is worth: it varies less than one of them.
        seed: of its own generator.
        options: of `Policy`.
    """

    def __init__(self, setting: Setting, rounds_per_reward: float = 5.0, seed: int = 0, **options: Any) -> None:
        if not rounds_per_reward > 0:
            raise refuse("rounds_per_reward", "a number above 0", rounds_per_reward)
        self._worth = float(rounds_per_reward)
        self._generator = np.random.Generator(np.random.PCG64(seed))
        super().__init__(setting, **options)

    def optimism(self, candidates: Sequence[Candidate], rounds: float) -> Sequence[float]:
        most, worth = self.setting.reward.most, self._worth
        largest, shares, successes, failures = list[float](), list[float](), list[float](), list[float]()
        for _, length, mean, num_rounds in candidates:
            largest.append(most(length))
            shares.append(min(1.0, max(0.0, mean / largest[-1])))
            successes.append(1 + worth * num_rounds * shares[-1])
            failures.append(1 + worth * num_rounds * (1 - shares[-1]))
        drawn = self.draw(successes, failures)
        return [scale * (value - share) for scale, value, share in zip(largest, drawn, shares, strict=True)]

    def draw(self, successes: Sequence[float], failures: Sequence[float]) -> list[float]:
        """One draw from each Beta posterior."""
        return list(self._generator.beta(successes, failures).tolist())

    def own_state(self) -> dict[str, Any]:
        return {"generator": self._generator.bit_generator.state}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        self._generator.bit_generator.state = state["generator"]
