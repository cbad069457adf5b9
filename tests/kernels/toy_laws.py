"""Models that are tables, small enough to list every block that they may draft and every text that they may emit."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import oracles
import torch
from oracles import Vector
from torch import Tensor

Block = tuple[tuple[int, ...], float, list[Vector], list[Vector]]


@dataclass(frozen=True)
class ToyModel:
    """Random fp32 logits for every prefix of fewer than `depth` tokens, with a temperature and a top-k of its own."""

    vocab_size: int
    depth: int
    seed: int
    temperature: float = 1.0
    top_k: int = 0
    spread: float = 1.5

    @cached_property
    def tables(self) -> list[Tensor]:
        """For each length of the prefix: `[V ** length, V]` logits, in the order of `index`."""
        generator = torch.Generator().manual_seed(self.seed)
        sizes = [self.vocab_size**length for length in range(self.depth)]
        return [self.spread * torch.randn(size, self.vocab_size, generator=generator) for size in sizes]

    def index(self, prefix: tuple[int, ...]) -> int:
        return sum(token * self.vocab_size**i for i, token in enumerate(reversed(prefix)))

    def cutoffs(self, length: int) -> Tensor:
        """The smallest kept logit of every row of a table."""
        table = self.tables[length]
        return table.sort(-1, descending=True).values[:, self.top_k - 1] if self.top_k else table.amin(-1)

    def law(self, prefix: tuple[int, ...]) -> Vector:
        row, length = self.index(prefix), len(prefix)
        return oracles.law(
            self.tables[length][row].double().numpy(), self.temperature, float(self.cutoffs(length)[row])
        )[0]

    def joint_law(self) -> Vector:
        """P of every sequence of `depth` tokens, as an array with one axis for each."""
        joint = np.ones((1,))
        for length in range(self.depth):
            laws = [np.exp(self.law(prefix)) for prefix in product(range(self.vocab_size), repeat=length)]
            joint = (joint.reshape(-1, 1) * np.stack(laws)).reshape(-1)
        return joint.reshape((self.vocab_size,) * self.depth)


def blocks(target: ToyModel, drafter: ToyModel, num_draft_tokens: int) -> Iterator[Block]:
    """Every draft block with its probability, and the laws p_0 .. p_K, q_0 .. q_{K-1} along it, as logs."""
    for ids in product(range(target.vocab_size), repeat=num_draft_tokens):
        p = [target.law(ids[:k]) for k in range(num_draft_tokens + 1)]
        q = [drafter.law(ids[:k]) for k in range(num_draft_tokens)]
        probability = math.exp(sum(q[k][x] for k, x in enumerate(ids)))
        if probability > 0:
            yield ids, probability, p, q


def add_continued(joint: Vector, emitted: tuple[int, ...], probability: float, target: ToyModel) -> None:
    """Add to `joint` what follows when plain decoding goes on after the `emitted` tokens."""
    if len(emitted) >= target.depth:
        joint[emitted[: target.depth]] += probability
        return
    for token, share in enumerate(np.exp(target.law(emitted))):
        add_continued(joint, (*emitted, token), probability * float(share), target)
