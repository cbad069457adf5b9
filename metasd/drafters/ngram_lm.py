"""A count-based specialist: an interpolated n-gram language model over tokens, made by `metasd train ngram-lm`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from metasd.core import Coins, Draft, MetaSDError, Offer, Position, Request, refuse
from metasd.drafters.base import Drafter
from metasd.drafters.drawing import BlockDrawing, check_scale, own_law, scored
from metasd_kernels._C import NgramTable

if TYPE_CHECKING:
    from metasd.target import Target

FORMAT = "metasd n-gram lm 1"
MAX_LISTED = 48
"""Tokens that a law lists; behind a context that is known at all they hold nearly all of the mass."""
_PARTS = ("keys", "starts", "ids", "counts")
_DTYPES = (torch.uint32, torch.uint32, torch.int32, torch.uint16)
_CONFIDENCES = 5

Level = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.int32], NDArray[np.uint16]]


class NgramLMDrafter(Drafter):
    """Draws from counts of what followed the last tokens in its training text; the law is sparse, over listed tokens.

    Args:
        target: what it drafts for.
        path: file from `metasd train ngram-lm`; it is mapped, not read.
        name: of the arm; by default the file's name.
        min_match: the arm sleeps where fewer of the last tokens form a known context.
        temperature_scale: it draws at the request's temperature times this.

    Raises:
        MetaSDError: the file is missing, damaged, of another format, or made for another vocabulary.
    """

    follows = True

    def __init__(
        self, target: "Target", path: str, name: str = "", min_match: int = 1, temperature_scale: float = 1.0
    ) -> None:
        super().__init__(target)
        if min_match < 1:
            raise refuse("min_match", "at least 1", min_match)
        self.name = name or Path(path).stem
        levels, self._bytes = read_ngram_lm(Path(path), target.vocab_size)
        self._table = NgramTable(levels)
        self._min_match, self._scale = min_match, check_scale(temperature_scale)

    def reset(self, request: Request) -> None:
        self._law = own_law(request.law, self._scale)
        self._context: list[int] = []
        self.commit(request.prompt_ids)

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        self._context = [*self._context, *token_ids][-self._table.max_context() :]

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        ids, logits = np.empty(MAX_LISTED, np.int64), np.empty(MAX_LISTED, np.float32)
        _, match_length = self._table.law(self._context, ids, logits)
        if match_length < self._min_match:
            return None
        confidence = float(np.exp(logits[0]))
        level = min(int(confidence * _CONFIDENCES), _CONFIDENCES - 1)
        return Offer(
            tuple(
                Position(f"confidence{level}depth{k}", 0.8 * confidence if k == 0 else 0.4)
                for k in range(max_num_draft_tokens)
            )
        )

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        ids = torch.empty(1, num_draft_tokens, MAX_LISTED, dtype=torch.int64)
        logits = torch.empty(1, num_draft_tokens, MAX_LISTED)
        drawing, context = BlockDrawing(self._law, coins), list(self._context)
        slots: list[Tensor] = []
        for k in range(num_draft_tokens):
            self._table.law(context, ids[0, k].numpy(), logits[0, k].numpy())
            slot = drawing.draw(logits[:, k])
            slots.append(slot)
            context = [*context[1 - self._table.max_context() :], int(ids[0, k, int(slot)])]
        tokens = ids.gather(-1, torch.stack(slots, dim=-1).unsqueeze(-1)).squeeze(-1)
        return drawing.draft(tokens.to(self.target.device), ids.to(self.target.device))

    def score(self, token_ids: Sequence[int], features: Tensor | None = None) -> Draft:
        """See `Drafter.score`."""
        ids = torch.empty(len(token_ids), MAX_LISTED, dtype=torch.int64)
        logits = torch.empty(len(token_ids), MAX_LISTED)
        match_lengths = self._table.laws(self._context, token_ids, ids.numpy(), logits.numpy())
        self.commit(token_ids)
        device = self.target.device
        laws = (
            Draft(ids[None, :, 0].to(device))  # the most probable comes first
            if self._law.is_greedy
            else scored(logits.to(device), self._law, ids.to(device))
        )
        if min(match_lengths) >= self._min_match:
            return laws
        is_asleep = torch.tensor([length < self._min_match for length in match_lengths], device=device)
        return replace(laws, token_ids=laws.token_ids.masked_fill(is_asleep, -1))

    def memory_bytes(self) -> dict[str, int]:
        return {"table": self._bytes}


def read_ngram_lm(path: Path, vocab_size: int) -> tuple[list[Level], int]:
    """The mapped arrays of a file, by length of context, and their bytes.

    Raises:
        MetaSDError: the file cannot be used; the message names it and the key.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, set(file.keys())
            if metadata.get("format") != FORMAT:
                raise MetaSDError(f"{path}: expected a file of `metasd train ngram-lm` ({FORMAT!r} in its metadata)")
            if metadata.get("vocab_size") != str(vocab_size):
                raise MetaSDError(
                    f"{path}: made for a vocabulary of {metadata.get('vocab_size')}, the target has {vocab_size}"
                )
            levels = []
            for n in range(-(-len(names) // len(_PARTS))):
                parts = []
                for part, dtype in zip(_PARTS, _DTYPES, strict=True):
                    if f"{part}.{n}" not in names:
                        raise MetaSDError(f"{path}: lacks the tensor {part}.{n}")
                    tensor = file.get_tensor(f"{part}.{n}")
                    if tensor.dtype != dtype or tensor.dim() != 1:
                        raise MetaSDError(f"{path}: {part}.{n}: expected one dimension of {dtype}")
                    parts.append(tensor.numpy())
                if parts[2].size and parts[2].max() >= vocab_size:
                    raise MetaSDError(f"{path}: ids.{n}: expected token ids below {vocab_size}, got {parts[2].max()}")
                levels.append((parts[0], parts[1], parts[2], parts[3]))
            NgramTable(levels)
    except FileNotFoundError:
        raise MetaSDError(f"no file {str(path)!r}; make one with `metasd train ngram-lm`") from None
    except (SafetensorError, OSError) as error:
        raise MetaSDError(f"{path} is damaged or incomplete: {error}") from error
    except ValueError as error:
        raise MetaSDError(f"{path}: {error}") from error
    return levels, sum(part.nbytes for level in levels for part in level)


def write_ngram_lm(path: Path, levels: Sequence[Level], vocab_size: int, metadata: dict[str, str]) -> None:
    """Write the arrays of `metasd.training.ngram_lm.count_ngrams`, with what they were made from."""
    tensors = {
        f"{part}.{n}": torch.from_numpy(np.ascontiguousarray(array))
        for n, level in enumerate(levels)
        for part, array in zip(_PARTS, level, strict=True)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, {**metadata, "format": FORMAT, "vocab_size": str(vocab_size)})
    path.chmod(0o644)  # safetensors makes files that only their owner can read
