"""The pool: which arms are awake, and the only place where a drafter becomes active and catches up."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from metasd.core import NULL_ARM, Draft, Offer, Request
from metasd.drafters import Drafter
from metasd.features import FeatureBuffer
from metasd.slots import DEFAULT_CAPACITY, Residency, fingerprint_of


class Pool:
    """The drafters of an engine, and what each has seen of the current sequence.

    Args:
        drafters: the arms by name, the null arm among them.
        capacity: the most tokens of a sequence, its draft among them.
        kv_budget: bytes for all their caches; None: as many as they take, and nothing is ever copied.
        is_eager: whether every drafter reads each round's tokens at once, and not when it is activated.

    Raises:
        UsageError: the budget is too small for one of them.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        capacity: int = DEFAULT_CAPACITY,
        kv_budget: int | None = None,
        *,
        is_eager: bool = False,
    ) -> None:
        self.drafters = dict(drafters)
        self.active: str | None = None
        caches = {name: drafter.cache for name, drafter in drafters.items() if drafter.cache is not None}
        self.residency = Residency(caches, capacity, kv_budget)
        self._is_eager = is_eager
        wanted = {layer: None for drafter in self.drafters.values() for layer in drafter.feature_layers}
        self.feature_layers = tuple(wanted)
        self._features = FeatureBuffer(self.feature_layers)

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(self.drafters)

    @property
    def forward_seconds(self) -> float:
        """What the drafters' forward passes have taken so far, on the host's clock."""
        return sum(drafter.cache.forward.seconds for drafter in self.drafters.values() if drafter.cache is not None)

    def reset(self, request: Request, features: Mapping[int, Tensor] | None = None) -> None:
        """Start a sequence.

        Args:
            request: prompt and law.
            features: the target's `[1, P-1, H]` by layer, of all prompt tokens but the last, which it has not read.
        """
        self._tokens = list(request.prompt_ids)
        self._num_seen = dict.fromkeys(self.drafters, len(self._tokens))
        self.active = None
        self.residency.reset()
        self._features = FeatureBuffer(self.feature_layers)
        if len(self._tokens) > 1:
            self._features.append(features or {}, len(self._tokens) - 1)
        for name, drafter in self.drafters.items():
            drafter.reset(replace(request, features=self._features_behind(name, 0)))

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequence that the host knows."""
        return len(self._tokens)

    def offers(self, max_num_draft_tokens: int, num_unread: int = 0) -> dict[str, Offer]:
        """What the arms that are awake could draft now, from committed tokens only; `num_unread` more may be on the
        device."""
        num_tokens = len(self._tokens) + num_unread
        offers = {
            name: drafter.offer(max(0, min(max_num_draft_tokens, drafter.context_length - num_tokens)))
            for name, drafter in self.drafters.items()
        }
        return {name: offer for name, offer in offers.items() if offer is not None}

    def activate(self, arm: str) -> tuple[Drafter, float, bool]:
        """Make an arm ready to draft: its cache comes into its slot, and it ingests exactly the tokens that it missed.

        Returns:
            the drafter, the seconds that catching up took, and whether another arm was active before.
        """
        drafter, start = self.drafters[arm], time.perf_counter()
        self._catch_up(arm)
        self._bring(arm)
        drafter.catch_up()
        switched = self.active is not None and self.active != arm
        self.active = arm
        return drafter, time.perf_counter() - start, switched

    def commit(
        self,
        arm: str,
        token_ids: Sequence[int],
        num_rejected: int,
        features: Mapping[int, Tensor] | None = None,
        asked: str = "off",
    ) -> dict[str, Draft]:
        """Take a round's tokens: the active arm forgets what was rejected, followers get the rest.

        Args:
            arm: whose draft it was.
            token_ids: what the round yielded.
            num_rejected: draft tokens that were not accepted.
            features: the target's `[1, M, H]` by layer, row i of the token before `token_ids[i]`.
            asked: who is asked for its laws of these tokens: "off": nobody; "free": followers, which take next to no
                time; "all": everybody, who then needs no catching up.

        Returns:
            the laws of those asked.
        """
        if num_rejected:
            self.drafters[arm].rewind(num_rejected)
        self._tokens.extend(token_ids)
        self._features.append(features or {}, len(token_ids))
        laws = {}
        for name, drafter in self.drafters.items():
            if asked == "all" or drafter.follows or self._is_eager:
                made = self._catch_up(
                    name, len(token_ids) if asked == "all" or (asked == "free" and drafter.follows) else 0
                )
                if made is not None:
                    laws[name] = made
                elif self._is_eager:
                    self._bring(name)
                    drafter.catch_up()
        return laws

    def bring(self, arm: str) -> int:
        """For an arm that drafts inside captured graphs: its cache comes into its slot.

        Returns:
            how many of the last tokens it has not read.
        """
        cache, num_seen, num_tokens = self.drafters[arm].cache, self._num_seen[arm], len(self._tokens)
        self._bring(arm)
        if cache is not None:
            cache.num_tokens = num_tokens - 1  # what will be right in it, whatever becomes of the draft
        self.active, self._num_seen[arm] = arm, num_tokens
        return num_tokens - num_seen

    def forget(self, arms: Iterable[str]) -> None:
        """These arms have read nothing yet, not even the prompt."""
        self._num_seen.update(dict.fromkeys(arms, 0))

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take a round's tokens where drafts and features stay on the device: followers get them at once."""
        self._tokens.extend(token_ids)
        for name, drafter in self.drafters.items():
            if drafter.follows:
                self._catch_up(name)

    def _bring(self, arm: str) -> None:
        self.residency.bring(arm, lambda num_tokens: fingerprint_of(self._tokens[:num_tokens]))

    def _catch_up(self, arm: str, num_scored: int = 0) -> Draft | None:
        """Bring a drafter to the end of the sequence; its laws of the last tokens, if it is asked for them."""
        drafter, start, end = self.drafters[arm], self._num_seen[arm], len(self._tokens)
        self._num_seen[arm] = end
        behind = end - num_scored
        features = self._features_behind(arm, max(start - 1, 0))
        if start < behind or not num_scored:
            drafter.commit(self._tokens[start:behind], None if features is None else features[: behind - start])
        if not num_scored or arm == NULL_ARM:
            return None
        self._bring(arm)
        return drafter.score(self._tokens[behind:], None if features is None else features[behind - start :])

    def _features_behind(self, arm: str, start: int) -> Tensor | None:
        """Those of tokens `start` to the last but one: what comes behind them is known."""
        layers = self.drafters[arm].feature_layers
        if not layers or len(self._tokens) < 2:
            return None
        return self._features.rows(layers, start, len(self._tokens) - 1)
