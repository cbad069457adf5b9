"""Drawing a block from rows of logits under a request's law: what drafters with a law of their own share."""

from dataclasses import replace

import torch
from torch import Tensor

from metasd.core import Coins, Draft, SamplingLaw, refuse
from metasd_kernels import logit_cutoff, sample


def own_law(law: SamplingLaw, temperature_scale: float) -> SamplingLaw:
    """The request's law at a multiple of its temperature; a scale of 0 drafts greedily."""
    return replace(law, temperature=law.temperature * temperature_scale)


def check_scale(temperature_scale: float) -> float:
    """A usable scale.

    Raises:
        UsageError: it is negative or not finite.
    """
    if not 0 <= temperature_scale < float("inf"):
        raise refuse("temperature_scale", "a finite number of at least 0", temperature_scale)
    return temperature_scale


def scored(logits: Tensor, law: SamplingLaw, draft_to_target: Tensor | None = None) -> Draft:
    """The laws of rows of logits, as `Drafter.score` returns them.

    Args:
        logits: `[m, V]`, or `[m, S]` over listed tokens.
        law: temperature and cutoffs.
        draft_to_target: what an index means in the target's vocabulary, `[V_d]` or `[m, S]`.
    """
    best = logits.argmax(-1)
    if draft_to_target is not None:
        rows = draft_to_target.expand(logits.shape[0], -1)
        best = rows.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    if law.is_greedy:
        return Draft(best.unsqueeze(0))
    cutoff = None
    if law.has_cutoff:
        cutoff = logit_cutoff(
            logits, temperature=law.temperature, top_k=law.top_k, top_p=law.top_p, min_p=law.min_p
        ).unsqueeze(0)
    is_sparse = draft_to_target is not None and draft_to_target.dim() == 2
    lists = draft_to_target.unsqueeze(0) if is_sparse and draft_to_target is not None else draft_to_target
    return Draft(best.unsqueeze(0), logits.unsqueeze(0), law.temperature, cutoff, lists)


class BlockDrawing:
    """Draws one token after the other and remembers exactly the laws that they came from.

    Args:
        law: temperature and cutoffs.
        coins: of the round.
    """

    def __init__(self, law: SamplingLaw, coins: Coins) -> None:
        self._law, self._coins = law, coins
        self._rows: list[Tensor] = []
        self._cutoffs: list[Tensor] = []

    def draw(self, logits: Tensor) -> Tensor:
        """An index `[1]` into the row `[1, V]`."""
        law, cutoff = self._law, None
        if law.has_cutoff:
            cutoff = logit_cutoff(
                logits, temperature=law.temperature, top_k=law.top_k, top_p=law.top_p, min_p=law.min_p
            )
            self._cutoffs.append(cutoff)
        position = len(self._rows)
        self._rows.append(logits)
        seed = self._coins.seed if self._coins.seed.device == logits.device else self._coins.seed.to(logits.device)
        return sample(
            logits,
            temperature=law.temperature,
            cutoff=cutoff,
            seed=seed,
            offset=self._coins.nonce,
            position=position,
        )

    def draft(self, token_ids: Tensor, draft_to_target: Tensor | None = None) -> Draft:
        """The block, with the laws unless it was drawn greedily: then each token is a point mass.

        Args:
            token_ids: `[1, K]`, in the target's vocabulary.
            draft_to_target: what an index means there, `[V_d]` or `[1, K, S]`.
        """
        if self._law.is_greedy:
            return Draft(token_ids)
        return Draft(
            token_ids,
            torch.stack(self._rows, dim=1).to(token_ids.device),
            self._law.temperature,
            torch.stack(self._cutoffs, dim=1).to(token_ids.device) if self._cutoffs else None,
            draft_to_target,
        )
