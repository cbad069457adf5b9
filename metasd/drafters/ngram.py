"""Prompt lookup (Saxena, 2023): copy what followed the last occurrence of the current n-gram."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metasd.core import Coins, Draft, Offer, Request, refuse
from metasd.drafters.base import Drafter
from metasd.drafters.copying import copied_position

if TYPE_CHECKING:
    from metasd.target import Target

_MAX_EXTENSION = 64


class NgramDrafter(Drafter):
    """Looks the last `max_match` to `min_match` tokens up in prompt and answer; the longest, then latest match wins.

    Args:
        target: what it drafts for.
        max_match: the longest n-gram that is looked up.
        min_match: the shortest; below it the arm sleeps.
    """

    name = "ngram"
    follows = True

    def __init__(self, target: "Target", max_match: int = 4, min_match: int = 1) -> None:
        super().__init__(target)
        if not 1 <= min_match <= max_match:
            raise refuse("ngram", "1 <= min_match <= max_match", f"{min_match}, {max_match}")
        self._lengths = range(max_match, min_match - 1, -1)

    def reset(self, request: Request) -> None:
        self._tokens: list[int] = []
        self._followers: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token behind its last occurrence
        self._source: int | None = None
        self.commit(request.prompt_ids)

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        for token in token_ids:
            end = len(self._tokens)
            for length in self._lengths:  # the n-gram that ends before this token now has a follower
                if length <= end:
                    self._followers[tuple(self._tokens[end - length : end])] = end
            self._tokens.append(token)

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        end = len(self._tokens)
        for length in self._lengths:
            self._source = self._followers.get(tuple(self._tokens[end - length :])) if length <= end else None
            if self._source is not None:
                match_length = self._extended(self._source, length)
                return Offer(tuple(copied_position(match_length + k) for k in range(max_num_draft_tokens)))
        return None

    def _extended(self, source: int, length: int) -> int:
        """How far the match reaches back beyond the n-gram, at most `_MAX_EXTENSION` tokens."""
        end = len(self._tokens)
        while (
            length < min(source, _MAX_EXTENSION) and self._tokens[source - length - 1] == self._tokens[end - length - 1]
        ):
            length += 1
        return length

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        if self._source is None:
            return None
        copied = self._tokens[self._source : self._source + num_draft_tokens]
        period = len(copied)  # a match that overlaps its own continuation goes on periodically
        block = [copied[k % period] for k in range(num_draft_tokens)]
        return Draft(torch.tensor([block], device=self.target.device))
