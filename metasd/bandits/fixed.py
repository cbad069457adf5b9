"""Always the same drafter: the baseline that every policy must beat."""

from collections.abc import Mapping
from typing import Any

from metasd.bandits.base import Policy, Setting
from metasd.core import NULL_ARM, Choice, Offer, refuse


class Fixed(Policy):
    """Plays one arm; while it sleeps, no draft.

    Args:
        setting: what it plays for.
        arm: the arm's name; by default the first one of the pool.
        options: of `Policy`.
    """

    def __init__(self, setting: Setting, arm: str | None = None, **options: Any) -> None:
        self._arm = setting.arms[0] if arm is None else arm
        if self._arm not in setting.arms:
            raise refuse("arm", f"one of {', '.join(setting.arms)}", repr(arm))
        super().__init__(setting, **options)

    def choose(self, available: Mapping[str, Offer]) -> Choice:
        if self._arm not in available:
            return Choice(NULL_ARM, 0)
        return Choice(self._arm, self.length(self._arm, available[self._arm], least=1))
