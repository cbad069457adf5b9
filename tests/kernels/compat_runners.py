"""The adapters, called as their engines call them, with every buffer laid out as awkwardly as an engine may."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from metasd_kernels import VerifyOutput, verify
from metasd_kernels.compat import vllm, vllm_v2

B, K, V = 24, 3, 7


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass
class Block:
    """A batch of drafts with their processed logits."""

    target: Tensor  # [B, K+1, V]
    draft: Tensor  # [B, K, V]
    ids: Tensor  # [B, K]

    @property
    def p(self) -> Tensor:
        return self.target.softmax(-1)

    @property
    def q(self) -> Tensor:
        return self.draft.softmax(-1)

    def verify(self, **options: Any) -> VerifyOutput:
        draft = options.pop("draft_logits", self.draft)
        return verify(self.target, self.ids, draft, **options)


def random_block(batch_size: int = B) -> Block:
    target = torch.randn(batch_size, K + 1, V, generator=generator(1))
    draft = target[:, :K] + 0.8 * torch.randn(batch_size, K, V, generator=generator(2))
    ids = torch.multinomial(draft.softmax(-1).flatten(0, 1), 1, generator=generator(3)).view(batch_size, K)
    return Block(target, draft, ids)


def one_hot(ids: list[list[int]]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(ids), V).float()


@dataclass
class Metadata:
    """vLLM's sampling metadata, as far as it is read."""

    temperature: Tensor | None = None
    all_greedy: bool = False
    all_random: bool = True
    generators: dict[int, torch.Generator] = field(default_factory=dict)


def v1(block: Block, lengths: list[int], metadata: Metadata, **options: Any) -> Tensor:
    """Drafts cut to `lengths` and packed; bonus ids are 1000 and up, outside of any vocabulary."""
    inside = torch.arange(block.ids.shape[1]) < torch.tensor(lengths).unsqueeze(-1)
    draft_probs = options.pop("draft_probs", block.q[inside])
    bonus = options.pop("bonus", 1000 + torch.arange(len(lengths)).unsqueeze(-1))
    end = torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return vllm.rejection_sample(
        block.ids[inside].int(), lengths, block.ids.shape[1], end, draft_probs, block.target[:, :-1][inside], bonus,
        metadata, **options,
    )  # fmt: skip


def v2(block: Block, lengths: list[int], temperature: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Requests lie in reverse in the tensors of max_num_reqs = B + 2, the last logits rows belong to nobody."""
    is_row = torch.arange(block.target.shape[1]) <= torch.tensor(lengths).unsqueeze(-1)
    first = torch.nn.functional.pad((torch.tensor(lengths) + 1).cumsum(0), (1, 0)).int()
    last_and_drafts = torch.cat([torch.full((len(lengths), 1), 99), block.ids], 1)
    where = torch.arange(len(lengths) - 1, -1, -1, dtype=torch.int32)
    position = 50 * torch.arange(len(lengths)).unsqueeze(-1) + torch.arange(block.target.shape[1])
    draft = options.pop("draft_logits", block.draft)
    held = None if draft is None else torch.cat([draft.flip(0), torch.full((2, *draft.shape[1:]), torch.nan)])
    nobody = options.pop("num_nobody", 2)
    return vllm_v2.rejection_sample(
        torch.cat([block.target[is_row], torch.full((nobody, block.target.shape[2]), torch.nan)]), held,
        torch.cat([last_and_drafts[is_row], torch.full((nobody,), -1)]), first,
        torch.cat([position[is_row], torch.zeros(nobody, dtype=torch.int64)]), where, torch.empty(0), torch.empty(0),
        torch.cat([temperature.flip(0), torch.full((2,), torch.nan)]), torch.arange(len(lengths) + 2) - 4,
        block.ids.shape[1], **options,
    )  # fmt: skip


def chain(
    block: Block, coins: Tensor, final: Tensor, function: Callable[..., None], **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Slots lie in `predicts` in reverse; what nobody writes stays 777."""
    batch_size, num_slots = block.target.shape[:2]
    predicts = torch.full((batch_size * num_slots,), 777, dtype=torch.int32)
    index, count = torch.full((batch_size, num_slots), 777, dtype=torch.int32), torch.zeros(batch_size).int()
    where = torch.arange(batch_size * num_slots - 1, -1, -1).view(batch_size, num_slots)
    following = torch.arange(1, num_slots + 1).expand(batch_size, -1) % num_slots
    function(
        predicts=predicts, accept_index=index, accept_token_num=count,
        candidates=torch.cat([torch.full((batch_size, 1), 99), block.ids], 1), retrive_index=where,
        retrive_next_token=options.pop("next_token", following - (following == 0).long()),
        retrive_next_sibling=torch.full_like(where, -1), uniform_samples=coins,
        uniform_samples_for_final_sampling=final, target_probs=block.p, threshold_single=1.0, threshold_acc=1.0,
        deterministic=True, **{"draft_probs": block.q} | options,
    )  # fmt: skip
    return predicts.flip(0).view(batch_size, num_slots), index, count
