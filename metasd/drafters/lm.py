"""Any smaller causal model with the target's tokenizer: the drafter of classic speculative decoding."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metasd.cache import ModelCache, Window, sibling
from metasd.core import Coins, Draft, MetaSDError, Offer, Position, Request
from metasd.drafters.base import Drafter, StaticDrafter
from metasd.drafters.drawing import BlockDrawing, check_scale, own_law, scored
from metasd.static import StaticDrawing, StaticSequence

if TYPE_CHECKING:
    from metasd.target import Target


class LMDrafter(Drafter):
    """Drafts token by token with a causal model, drawn from its own law under the request's sampling parameters.

    Args:
        target: what it drafts for.
        path: folder or hub id of the model.
        name: of the arm; by default the last part of the path.
        temperature_scale: it draws at the request's temperature times this.
        vocab_ids: JSON file with a list of token ids: only these are drafted, and only their rows of the model's head
            are computed.
        model, tokenizer: a ready transformers model instead; then `path` is only its name.

    Raises:
        MetaSDError: the model cannot be loaded, has another tokenizer than the target, or a cache that cannot rewind.
    """

    def __init__(
        self,
        target: "Target",
        path: str,
        name: str = "",
        temperature_scale: float = 1.0,
        vocab_ids: str = "",
        model: Any = None,
        tokenizer: Any = None,
    ) -> None:
        super().__init__(target)
        self.name, self.temperature_scale = name or Path(path).name or path, check_scale(temperature_scale)
        if model is None:
            from metasd.target import load_model

            model, tokenizer = load_model(path, f"drafter {path!r}", target.device, target.model.dtype)
        if tokenizer is not None and target.tokenizer is not None:
            _check_tokenizer(self.name, tokenizer, target.tokenizer)
        self._map = read_vocab_ids(Path(vocab_ids).expanduser(), model, target) if vocab_ids else None
        if self._map is not None:
            model = with_fewer_rows(model, self._map)
        self.cache: ModelCache = ModelCache(model, f"drafter {self.name!r}")
        sizes = [sum(parameter.numel() for parameter in each.parameters()) for each in (model, target.model)]
        self.nominal_cost = sizes[0] / sizes[1]
        config = model.config.get_text_config(decoder=True)
        self.context_length = getattr(config, "max_position_embeddings", None) or 1 << 30
        self._vocab_size: int = config.vocab_size
        self._static: StaticLM | None = None

    def reset(self, request: Request) -> None:
        self._law = own_law(request.law, self.temperature_scale)
        self._tokens = list(request.prompt_ids)
        self._num_drafted = 0
        self._is_lost = self._cannot_read(request.prompt_ids)
        self.cache.clear()

    def _cannot_read(self, token_ids: Sequence[int]) -> bool:
        """Whether a token is in the padding of the target's vocabulary that this model lacks."""
        return any(token >= self._vocab_size for token in token_ids)

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        if self._is_lost or max_num_draft_tokens < 1:
            return None
        return Offer(tuple(Position(f"depth{k}", 0.5, 0.0) for k in range(max_num_draft_tokens)))

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        self._tokens.extend(token_ids)
        self._is_lost = self._is_lost or self._cannot_read(token_ids)

    def catch_up(self) -> None:
        """Ingest all but the last token; a single missing one waits for the next draft."""
        missing = self._tokens[self.cache.num_tokens : -1]
        if len(missing) > 1 and not self._is_lost:
            self.cache.feed(torch.tensor([missing], device=self.target.device), 1)

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        if self._is_lost:
            return None
        self.cache.rewind(self.cache.num_tokens - len(self._tokens) + 1)  # a second draft in the same place
        pending = torch.tensor([self._tokens[self.cache.num_tokens :]], device=self.target.device)
        drawing = BlockDrawing(self._law, coins)
        tokens: list[Tensor] = []
        for _ in range(num_draft_tokens):
            index = drawing.draw(self._readable(self.cache.feed(pending, 1)[:, -1]))
            pending = (index if self._map is None else self._map[index]).view(1, 1)
            tokens.append(pending)
        self._num_drafted = num_draft_tokens
        return drawing.draft(torch.cat(tokens, dim=1), self._map)

    def _readable(self, logits: Tensor) -> Tensor:
        """A draft token must be one that the target can read: the law is that over the vocabulary of both."""
        return logits if self._map is not None else logits[..., : self.target.vocab_size]

    def score(self, token_ids: Sequence[int], features: Tensor | None = None) -> Draft:
        """See `Drafter.score`."""
        asleep = Draft(torch.full((1, len(token_ids)), -1, device=self.target.device))
        known = len(self._tokens)
        self._tokens.extend(token_ids)
        self._is_lost = self._is_lost or self._cannot_read(token_ids)
        if self._is_lost:
            return asleep
        self.cache.rewind(self.cache.num_tokens - known + 1)
        pending = torch.tensor([self._tokens[self.cache.num_tokens : -1]], device=self.target.device)
        rows = self.cache.feed(pending, len(token_ids))[0]
        return scored(self._readable(rows), self._law, self._map)

    def rewind(self, num_tokens: int) -> None:
        """The last draft token was never fed, so one rejected token less than that is in the cache."""
        self.cache.rewind(min(num_tokens, self._num_drafted) - 1)
        self._num_drafted = 0

    @property
    def static(self) -> StaticDrafter | None:
        """None for a model that cannot read all of the target's tokens: only the host sees one coming."""
        if self._vocab_size < self.target.vocab_size:
            return None
        if self._static is None:
            size = self.target.vocab_size if self._map is None else len(self._map)
            self._static = StaticLM(self.cache, size, self._map)
        return self._static

    def memory_bytes(self) -> dict[str, int]:
        weights = sum(p.numel() * p.element_size() for p in self.cache.model.parameters())
        return {"weights": weights, "cache": self.cache.memory_bytes()}


class StaticLM:
    """The model inside captured graphs: each step reads the last two tokens: full acceptance is no special case.

    Args:
        cache: of the model.
        vocab_size: the rows that are drawn from.
        draft_to_target: what they mean.
    """

    def __init__(self, cache: ModelCache, vocab_size: int, draft_to_target: Tensor | None) -> None:
        self._cache, self._vocab_size = cache, vocab_size
        self.drawing = StaticDrawing(vocab_size, cache.shape.dtype, cache.shape.device, draft_to_target)

    def step(self, sequence: StaticSequence, bucket: int, is_first: bool) -> None:
        row = self._read(sequence, 2, bucket)[:, -1, : self._vocab_size]
        self.drawing.draw(row, sequence)

    def ingest(self, sequence: StaticSequence, width: int, bucket: int) -> None:
        self._read(sequence, width, bucket)

    def _read(self, sequence: StaticSequence, width: int, bucket: int) -> Tensor:
        positions = sequence.last(width)
        return self._cache.feed_window(sequence.tokens[positions].unsqueeze(0), Window(positions, bucket), 1)


def read_vocab_ids(path: Path, model: Any, target: "Target") -> Tensor:
    """A reduced vocabulary, ascending `[V_d]` int64.

    Raises:
        MetaSDError: the file is no JSON list of different ids that both models have.
    """
    most = min(model.get_output_embeddings().weight.shape[0], target.vocab_size)
    try:
        ids = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise MetaSDError(f"vocab_ids: cannot read {str(path)!r}: {error}") from None
    is_list = isinstance(ids, list) and ids and all(type(item) is int and 0 <= item < most for item in ids)
    if not is_list or len(set(ids)) != len(ids):
        raise MetaSDError(f"vocab_ids: {path}: expected a list of different token ids in [0, {most})")
    return torch.tensor(sorted(ids), device=target.device)


def with_fewer_rows(model: Any, ids: Tensor) -> Any:
    """The model with a head of these rows only; the model itself stays as it is."""
    whole = model.get_output_embeddings()
    head = torch.nn.Linear(whole.in_features, len(ids), bias=whole.bias is not None, device="meta")
    head.weight = torch.nn.Parameter(whole.weight.detach()[ids], requires_grad=False)
    if whole.bias is not None:
        head.bias = torch.nn.Parameter(whole.bias.detach()[ids], requires_grad=False)
    other = sibling(model)
    for name, child in model.named_children():
        if child is whole:
            other._modules[name] = head
    return other


def _check_tokenizer(name: str, tokenizer: Any, reference: Any) -> None:
    """Vocabularies are compared, not sizes: padding behind the last token is no difference."""
    own, wanted = tokenizer.get_vocab(), reference.get_vocab()
    if own == wanted:
        return
    token = next(iter(sorted(set(own.items()) ^ set(wanted.items()))))[0]
    raise MetaSDError(
        f"drafter {name!r}: its tokenizer is not the target's: token {token!r} has id {own.get(token)} in the drafter "
        f"and {wanted.get(token)} in the target; expected a model with the same tokenizer"
    )
