"""Early exit: the target's own first layers, its final norm and its head as a drafter. Nothing to train or load."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metasd.core import Coins, Draft, Offer, Position, Request, refuse
from metasd.drafters.base import Drafter
from metasd.drafters.drawing import BlockDrawing, check_scale, own_law, scored

if TYPE_CHECKING:
    from metasd.target import Target


class EarlyExitDrafter(Drafter):
    """Drafts with the first layers of the target, on the target's own cache; what it adds there it takes away again.

    Most targets were not trained for it and say little before their last layers: measure before you rely on it.

    Args:
        target: a model whose decoder is a list of layers.
        num_layers: so many of them, at least 1 and fewer than all.
        name: of the arm.
        temperature_scale: it draws at the request's temperature times this.

    Raises:
        UsageError: the number does not fit.
    """

    follows = True

    def __init__(
        self, target: "Target", num_layers: int, name: str = "early-exit", temperature_scale: float = 1.0
    ) -> None:
        super().__init__(target)
        total = target.num_layers
        if not 1 <= num_layers < total:
            raise refuse("num_layers", f"a number from 1 to {total - 1}, the target has {total}", num_layers)
        self.name, self._scale = name, check_scale(temperature_scale)
        self._shallow = target.shallow(num_layers)
        self.nominal_cost = num_layers / total
        self.context_length = target.context_length

    def reset(self, request: Request) -> None:
        self._law = own_law(request.law, self._scale)
        self._tokens = list(request.prompt_ids)

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        self._tokens.extend(token_ids)

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        if max_num_draft_tokens < 1:
            return None
        return Offer(tuple(Position(f"depth{k}", 0.3, 0.0) for k in range(max_num_draft_tokens)))

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        drawing, tokens = BlockDrawing(self._law, coins), list[Tensor]()
        pending = torch.tensor([self._tokens[-1:]], device=self.target.device)
        for _ in range(num_draft_tokens):
            pending = drawing.draw(self._shallow.feed(pending, 1)[:, -1]).view(1, 1)
            tokens.append(pending)
        self._shallow.rewind(num_draft_tokens)
        return drawing.draft(torch.cat(tokens, dim=1))

    def score(self, token_ids: Sequence[int], features: Tensor | None = None) -> Draft:
        """See `Drafter.score`. Reads the whole text anew: the target's cache may hold more of it."""
        self._tokens.extend(token_ids)
        text = torch.tensor([self._tokens[:-1]], device=self.target.device)
        return scored(self._shallow.read_anew(text, len(token_ids))[0], self._law)
