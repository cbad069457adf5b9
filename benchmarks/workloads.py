"""The shapes that are measured, and their logits: so many copies that none is in a cache when its turn comes.

A workload's target logits, and then its draft logits, lie in one row of a buffer, so that the very same bytes can be
read for comparison.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

GIB = 1 << 30
NOISE = 0.9  # of the draft's logits: a total variation distance of about 0.3
ACCEPTANCES = ("none", "all", "tv 0.3")


@dataclass(frozen=True)
class Shape:
    """B requests, K draft tokens, V token ids in both vocabularies."""

    batch_size: int
    num_draft_tokens: int
    vocab_size: int
    dtype: torch.dtype
    is_for_gpu: bool = False  # too large for a benchmark of minutes on a CPU

    @property
    def name(self) -> str:
        dtype = {torch.float32: "fp32", torch.bfloat16: "bf16"}[self.dtype]
        return f"B{self.batch_size} K{self.num_draft_tokens} V{self.vocab_size} {dtype}"

    @property
    def num_bytes(self) -> int:
        """Bytes of all logits: what any implementation must read at least once."""
        rows = self.batch_size * (2 * self.num_draft_tokens + 1)
        return rows * self.vocab_size * self.dtype.itemsize


SHAPES = (
    Shape(1, 5, 49152, torch.float32),
    Shape(1, 5, 128256, torch.bfloat16),
    Shape(8, 5, 32000, torch.bfloat16),
    Shape(8, 5, 151936, torch.bfloat16),
    Shape(64, 5, 32000, torch.bfloat16, is_for_gpu=True),
    Shape(64, 5, 128256, torch.bfloat16, is_for_gpu=True),
    Shape(64, 8, 151936, torch.bfloat16, is_for_gpu=True),
)


@dataclass(frozen=True)
class Workload:
    """One block of draft tokens, its logits in several places.

    Attributes:
        shape: the sizes.
        acceptance: "none", "all" or "tv 0.3", which accepts as chance has it.
        target_logits: `[B, K+1, V]`, one for each copy.
        draft_logits: `[B, K, V]`, likewise.
        draft_token_ids: `[B, K]` int64.
        raw: the same bytes as fp32, a row for each copy.
    """

    shape: Shape
    acceptance: str
    target_logits: list[Tensor] = field(repr=False)
    draft_logits: list[Tensor] = field(repr=False)
    draft_token_ids: Tensor = field(repr=False)
    raw: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.target_logits)

    def at(self, turn: int) -> tuple[Tensor, Tensor, Tensor]:
        """Target logits, draft ids and draft logits of a turn; the copies take turns."""
        copy = turn % len(self)
        return self.target_logits[copy], self.draft_token_ids, self.draft_logits[copy]


def make_workload(shape: Shape, acceptance: str, memory: Tensor) -> Workload:
    """Fill `memory`, uint8 of some hundred MiB, with copies of one block. A later workload may use the same memory."""
    device = memory.device
    generator = torch.Generator(device).manual_seed(0)
    size = (shape.batch_size, shape.num_draft_tokens + 1, shape.vocab_size)
    target = 3.0 * torch.randn(size, generator=generator, device=device)
    draft = target[:, :-1].clone()
    if acceptance == "tv 0.3":
        draft += NOISE * torch.randn(draft.shape, generator=generator, device=device)
    draft = draft.to(shape.dtype)
    gumbel = -torch.empty(draft.shape, device=device).exponential_(generator=generator).log()
    ids = (draft.float() + gumbel).argmax(-1)
    if acceptance == "none":
        target[:, :-1].scatter_(-1, ids.unsqueeze(-1), -torch.inf)

    num_copies = max(memory.numel() // shape.num_bytes, 1)
    rows = memory[: num_copies * shape.num_bytes].view(shape.dtype).view(num_copies, -1)
    split = target.numel()
    targets = [row[:split].view(target.shape) for row in rows]
    drafts = [row[split:].view(draft.shape) for row in rows]
    rows[:, :split] = target.to(shape.dtype).flatten()
    rows[:, split:] = draft.flatten()
    return Workload(shape, acceptance, targets, drafts, ids, rows.view(torch.float32))
