"""Suffix decoding (Oliaro et al., 2024, in its spirit): follow the longest suffix that occurred before, by counts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metasd.core import Coins, Draft, Offer, Request, refuse
from metasd.drafters.base import Drafter
from metasd.drafters.copying import copied_position
from metasd_kernels._C import SuffixAutomaton

if TYPE_CHECKING:
    from metasd.target import Target


class SuffixDrafter(Drafter):
    """Finds the longest suffix of prompt and answer that occurred before and follows its most frequent continuation.

    The automaton also says how often each continuation followed; from that share and the length of the match comes a
    prior for acceptance, which the bandit corrects by what it sees.

    Args:
        target: what it drafts for.
        min_match: the shortest match; below it the arm sleeps.
    """

    name = "suffix"
    follows = True

    def __init__(self, target: "Target", min_match: int = 1) -> None:
        super().__init__(target)
        if min_match < 1:
            raise refuse("suffix", "min_match of at least 1", min_match)
        self._min_match = min_match

    def reset(self, request: Request) -> None:
        self._automaton = SuffixAutomaton()
        self._path: list[int] = []
        self.commit(request.prompt_ids)

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        self._automaton.extend(list(token_ids))

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        self._path, shares, match_length = self._automaton.draft(max_num_draft_tokens, self._min_match)
        if not self._path:
            return None
        return Offer(tuple(copied_position(match_length + k, share) for k, share in enumerate(shares)))

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        if not self._path:
            return None
        return Draft(torch.tensor([self._path[:num_draft_tokens]], device=self.target.device))

    def memory_bytes(self) -> dict[str, int]:
        return {"index": self._automaton.memory_bytes()} if hasattr(self, "_automaton") else {}
