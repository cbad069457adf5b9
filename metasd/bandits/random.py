"""A drafter at random each round: the baseline that shows what choosing is worth."""

from collections.abc import Mapping

from metasd.bandits.seeded import SeededPolicy
from metasd.core import NULL_ARM, Choice, Offer


class Random(SeededPolicy):
    """Plays an arm drawn uniformly among those that are awake; the null arm only where nothing else is.

    Args:
        setting: what it plays for.
        options: of `SeededPolicy`.
    """

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        arm = self._random.choice([arm for arm in available if arm != NULL_ARM])
        return Choice(arm, self.length(arm, available[arm], least=1))
