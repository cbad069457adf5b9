"""No draft: plain decoding as an arm."""

from collections.abc import Sequence

from torch import Tensor

from metasd.core import NULL_ARM, Coins, Draft, Offer, Request
from metasd.drafters.base import Drafter


class NullDrafter(Drafter):
    """Never proposes anything, and never sleeps: a round with it yields one token of the target."""

    name = NULL_ARM
    follows = True

    def reset(self, request: Request) -> None:
        pass

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        return Offer()

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        return None

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        pass
