"""The pool: which arms are awake, and the only place where a drafter becomes active and catches up."""

import time
from collections.abc import Mapping, Sequence

from metasd.core import Offer, Request
from metasd.drafters import Drafter


class Pool:
    """The drafters of an engine, and what each has seen of the current sequence.

    Args:
        drafters: the arms by name, the null arm among them.
    """

    def __init__(self, drafters: Mapping[str, Drafter]) -> None:
        self.drafters = dict(drafters)
        self.active: str | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(self.drafters)

    def reset(self, request: Request) -> None:
        """Start a sequence."""
        self._tokens = list(request.prompt_ids)
        self._num_seen = dict.fromkeys(self.drafters, len(self._tokens))
        self.active = None
        for drafter in self.drafters.values():
            drafter.reset(request)

    def offers(self, max_num_draft_tokens: int) -> dict[str, Offer]:
        """What the arms that are awake could draft now, from committed tokens only."""
        num_tokens = len(self._tokens)
        offers = {
            name: drafter.offer(max(0, min(max_num_draft_tokens, drafter.context_length - num_tokens)))
            for name, drafter in self.drafters.items()
        }
        return {name: offer for name, offer in offers.items() if offer is not None}

    def activate(self, arm: str) -> tuple[Drafter, float, bool]:
        """Make an arm ready to draft: it ingests exactly the tokens that it missed.

        Returns:
            the drafter, the seconds that catching up took, and whether another arm was active before.
        """
        drafter, start = self.drafters[arm], time.perf_counter()
        self._catch_up(arm)
        switched = self.active is not None and self.active != arm
        self.active = arm
        return drafter, time.perf_counter() - start, switched

    def commit(self, arm: str, token_ids: Sequence[int], num_rejected: int) -> None:
        """Take a round's tokens: the active arm forgets what was rejected, followers get the rest."""
        if num_rejected:
            self.drafters[arm].rewind(num_rejected)
        self._tokens.extend(token_ids)
        for name, drafter in self.drafters.items():
            if drafter.follows:
                self._catch_up(name)

    def _catch_up(self, arm: str) -> None:
        self.drafters[arm].commit(self._tokens[self._num_seen[arm] :])
        self._num_seen[arm] = len(self._tokens)
