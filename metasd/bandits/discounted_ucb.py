"""UCB that forgets gradually (Garivier and Moulines, arXiv 0805.3415): for answers whose text changes its kind."""

from typing import Any

from metasd.bandits.base import Setting
from metasd.bandits.ucb import UCB
from metasd.core import RoundRecord, refuse


class DiscountedUCB(UCB):
    """UCB whose counts and means are discounted: a round counts `discount` times as much with each later one.

    Args:
        setting: what it plays for.
        discount: in (0, 1).
        options: of `UCB`.
    """

    def __init__(self, setting: Setting, discount: float = 0.97, **options: Any) -> None:
        if not 0 < discount < 1:
            raise refuse("discount", "a number between 0 and 1", discount)
        self._discount = float(discount)
        super().__init__(setting, **options)

    def learn(self, record: RoundRecord) -> None:
        self.forget(self._discount)
        super().learn(record)
