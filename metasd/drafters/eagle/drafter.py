"""An EAGLE head as a drafter: it reads the target's features of committed tokens and drafts a chain."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from metasd.config import MAX_NUM_DRAFT_TOKENS
from metasd.core import Coins, Draft, Offer, Position, Request
from metasd.drafters.base import Drafter, StaticDrafter
from metasd.drafters.drawing import BlockDrawing, check_scale, own_law, scored
from metasd.drafters.eagle.checkpoint import load_head
from metasd.drafters.eagle.head import HeadCache
from metasd.drafters.eagle.selfcheck import THRESHOLD, probes
from metasd.drafters.places import local_folder
from metasd.static import StaticDrawing, StaticSequence

if TYPE_CHECKING:
    from metasd.target import Target

_MAX_PENDING = MAX_NUM_DRAFT_TOKENS + 1
"""Pairs that wait for the next draft, as many as a round yields; more are a gap, and catching up reads it."""


class EagleDrafter(Drafter):
    """Drafts with an EAGLE head: token x_{t+1} and the target's feature h_t give x_{t+2}; then it feeds on itself.

    Args:
        target: what it drafts for.
        path: folder or hub id of the head: EAGLE-1, -2 or -3, or speculators.
        name: of the arm; by default the folder's name.
        temperature_scale: it draws at the request's temperature times this.

    Raises:
        MetaSDError: the folder cannot be used as a head of this target; the message names file and key.
    """

    def __init__(self, target: "Target", path: str, name: str = "", temperature_scale: float = 1.0) -> None:
        super().__init__(target)
        self.name = name or Path(path).name or path
        loaded = load_head(local_folder(path), target.model.config, dtype=target.model.dtype, device=target.device)
        self.temperature_scale = check_scale(temperature_scale)
        self.assumptions = loaded.assumptions
        self._head, self._map = loaded.head, loaded.draft_to_target
        self.feature_layers = loaded.head.config.feature_layers
        output = target.model.get_output_embeddings()
        self._matrix: Tensor
        self._bias: Tensor | None = None
        if loaded.vocab_matrix is not None:
            self._matrix = loaded.vocab_matrix
        elif self._map is not None:
            self._matrix, self._bias = target.head_rows(self._map)
        else:
            self._matrix, self._bias = output.weight, getattr(output, "bias", None)
        self._is_matrix_own = loaded.vocab_matrix is not None
        self._own_embedding = loaded.embedding
        self._embedding: Tensor = target.model.get_input_embeddings().weight
        if loaded.embedding is not None:
            self._embedding = loaded.embedding
        weights = [*self._head.parameters(), self._matrix]
        whole = sum(parameter.numel() for parameter in target.model.parameters())
        self.nominal_cost = sum(weight.numel() for weight in weights) / whole
        self.context_length = target.context_length
        self._static: StaticEagle | None = None
        self.cache: HeadCache = HeadCache(self._head, f"drafter {self.name!r}")

    def reset(self, request: Request) -> None:
        self._law = own_law(request.law, self.temperature_scale)
        self.cache.clear()
        self._ids: list[int] = []
        self._features: list[Tensor] = []
        self._last: tuple[Tensor, Tensor] | None = None
        if len(request.prompt_ids) > 1:
            self.commit(request.prompt_ids[1:], request.features)

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        """Sleeps until there is a token whose predecessor the target has read."""
        if max_num_draft_tokens < 1 or (self._last is None and not self._ids):
            return None
        return Offer(tuple(Position(f"depth{k}", 0.5, 0.0) for k in range(max_num_draft_tokens)))

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        if not token_ids:
            return
        if features is None or features.shape[0] != len(token_ids):
            raise ValueError(f"features: expected one row for each of {len(token_ids)} tokens")
        self._ids.extend(token_ids)
        self._features.append(features)

    def catch_up(self) -> None:
        if len(self._ids) > _MAX_PENDING:
            self._ingest()

    def _ingest(self) -> None:
        ids = torch.tensor([self._ids], device=self.target.device)
        features = torch.cat(self._features) if len(self._features) > 1 else self._features[0]
        self._ids, self._features = [], []
        out, feedback = self._step(ids, self._fused(features))
        self._last = out[:, -1], feedback[:, -1:]

    def _fused(self, features: Tensor) -> Tensor:
        with self.cache.forward:
            return self._head.fuse(features.unsqueeze(0))

    def _step(self, token_ids: Tensor, fused: Tensor) -> tuple[Tensor, Tensor]:
        """Ingest pairs `[1, M]` and `[1, M, H]`: inputs of the vocabulary matrix, and what is fed back."""
        with self.cache.forward:
            out, feedback = self._head(functional.embedding(token_ids, self._embedding), fused, self.cache)
        return out, feedback

    def _logits(self, rows: Tensor) -> Tensor:
        with self.cache.forward:
            return functional.linear(rows, self._matrix, self._bias)

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        if self._ids:
            self._ingest()
        if self._last is None:
            return None
        num_committed, (out, feedback) = self.cache.num_tokens, self._last
        drawing = BlockDrawing(self._law, coins)
        tokens: list[Tensor] = []
        for k in range(num_draft_tokens):
            if k > 0:
                rows, feedback = self._step(tokens[-1], feedback)
                out = rows[:, -1]
            token = drawing.draw(self._logits(out))
            tokens.append((token if self._map is None else self._map[token]).view(1, 1))
        # What was drafted comes again, with the target's features.
        self.cache.rewind(self.cache.num_tokens - num_committed)
        return drawing.draft(torch.cat(tokens, dim=1), self._map)

    def score(self, token_ids: Sequence[int], features: Tensor | None = None) -> Draft:
        """See `Drafter.score`."""
        if self._ids:
            self._ingest()
        before = self._last
        if features is None or features.shape[0] != len(token_ids):
            raise ValueError(f"features: expected one row for each of {len(token_ids)} tokens")
        ids = torch.tensor([token_ids], device=self.target.device)
        out, feedback = self._step(ids, self._fused(features))
        self._last = out[:, -1], feedback[:, -1:]
        first = torch.zeros_like(out[:, 0]) if before is None else before[0]
        rows = torch.cat([first, out[0, :-1]])
        laws = scored(self._logits(rows), self._law, self._map)
        if before is None:  # no token before the first that the target has read: asleep there
            laws.token_ids[0, 0] = -1
        return laws

    @property
    def static(self) -> StaticDrafter:
        if self._static is None:
            self._static = StaticEagle(self)
        return self._static

    @torch.inference_mode()
    def self_check(self) -> str | None:
        """Compares the head's choices with the target's on short texts."""
        shares = []
        for ids, features, choice in probes(self.target, self.feature_layers):
            embedded = functional.embedding(ids[:, 1:], self._embedding)
            out, _ = self._head(embedded, self._head.fuse(features[:, :-1]), HeadCache(self._head))
            guess = functional.linear(out, self._matrix, self._bias).argmax(-1)
            guess = guess if self._map is None else self._map[guess]
            shares.append(float((guess == choice[:, 1:]).float().mean()))
        if max(shares) >= THRESHOLD:
            return None
        return (
            f"drafter {self.name!r} guesses {max(shares):.0%} of the target's tokens on the best of {len(shares)} test "
            f"texts, where a head for this target guesses {THRESHOLD:.0%} and more: is it a head for another target?"
        )

    def memory_bytes(self) -> dict[str, int]:
        weights: list[Tensor] = list(self._head.parameters())
        weights += [each for each in (self._own_embedding,) if each is not None]
        weights += [self._matrix] if self._is_matrix_own else []
        held = {"weights": sum(map(_num_bytes, weights)), "cache": self.cache.memory_bytes()}
        if self._map is not None and not self._is_matrix_own:
            held["rows of the target's head, shared"] = _num_bytes(self._matrix)
        return held


class StaticEagle:
    """The head inside captured graphs. Pair j, token j + 1 with the target's feature of token j, lies at place j; the
    first step reads as many pairs again as a round can add."""

    def __init__(self, drafter: EagleDrafter) -> None:
        self._drafter, self._head = drafter, drafter._head
        matrix = drafter._matrix
        self.drawing = StaticDrawing(matrix.shape[0], matrix.dtype, matrix.device, drafter._map)
        size = self._head.config.hidden_size
        with torch.inference_mode(False):
            self._feedback = torch.zeros((1, 1, size), dtype=matrix.dtype, device=matrix.device)

    def step(self, sequence: StaticSequence, bucket: int, is_first: bool) -> None:
        if is_first:
            out, feedback = self._read(sequence, _MAX_PENDING, bucket)
        else:
            place = sequence.last(1)
            out, feedback = self._pairs(sequence.tokens[place], self._feedback, place - 1, bucket)
        self._feedback.copy_(feedback[:, -1:])
        self.drawing.draw(functional.linear(out[:, -1], self._drafter._matrix, self._drafter._bias), sequence)

    def ingest(self, sequence: StaticSequence, width: int, bucket: int) -> None:
        self._read(sequence, width, bucket)

    def _read(self, sequence: StaticSequence, width: int, bucket: int) -> tuple[Tensor, Tensor]:
        places = sequence.last(width + 1)[:-1]
        features = [sequence.features[layer][places] for layer in self._drafter.feature_layers]
        fused = self._head.fuse(torch.cat(features, dim=-1).unsqueeze(0))
        return self._pairs(sequence.tokens[places + 1], fused, places, bucket)

    def _pairs(self, token_ids: Tensor, fused: Tensor, places: Tensor, bucket: int) -> tuple[Tensor, Tensor]:
        embedded = functional.embedding(token_ids.unsqueeze(0), self._drafter._embedding)
        out, feedback = self._head.forward_window(embedded, fused, self._drafter.cache, places, bucket)
        return out, feedback


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
