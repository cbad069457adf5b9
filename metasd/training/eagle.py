"""Training of an EAGLE-1 head on answers of its target.

The head learns from its own features as well: in step s a position's features, but for those before the last s, are
what the head itself said in step s - 1, as in drafting. Loss: KL(p || q) and TV(p, q), the latter being 1 minus the
probability of acceptance, both among the draft vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from metasd.drafters.eagle.head import EagleHead
from metasd.training.feature_store import Sample

_CHUNK = 512  # positions in a matrix of logits


@dataclass(frozen=True)
class EagleRecipe:
    """How a head is trained; written into its manifest.

    Attributes:
        num_epochs: passes over the answers.
        batch_size: answers a step of the optimiser.
        learning_rate: the largest; it rises over the first 5 % of the steps and falls as a cosine.
        step_weights: weight of the loss at each depth of drafting; as many steps are unrolled.
        tv_weight: of 1 - acceptance beside KL.
        tv_temperature: at which acceptance is meant; KL is at 1.
        feature_weight: of the smooth L1 distance between the head's first feature and the target's.
        noise: half width of the uniform noise on the target's features.
        num_candidates: tokens among which p and q are compared in a step of the optimiser: three quarters are the
            likeliest of the batch under p, the others drawn at random. A whole draft vocabulary takes most of the time.
    """

    num_epochs: int = 5
    batch_size: int = 8
    learning_rate: float = 1e-3
    step_weights: tuple[float, ...] = (1.0, 0.8, 0.64)
    tv_weight: float = 1.0
    tv_temperature: float = 0.7
    feature_weight: float = 0.2
    noise: float = 0.1
    num_candidates: int = 2048
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """Answers side by side, T pairs: index t holds (x_{t+1}, h_t), which predicts x_{t+2}. All answers begin at one
    index, so the pairs before it, of prompts, need no more than keys and values; padded on both sides."""

    next_ids: Tensor  # [B, T] int64, x_{t+1}
    features: Tensor  # [B, T, H], h_t
    next_features: Tensor  # [B, T, H], h_{t+1}
    is_output: Tensor  # [B, T] bool: x_{t+2} belongs to the answer
    num_padded: Tensor  # [B] int64, indices before a sample's first pair
    first_output: int  # the index at which all answers begin

    @classmethod
    def of(cls, samples: Sequence[Sample], device: torch.device) -> "Batch":
        pairs = [len(sample.token_ids) - 2 for sample in samples]
        contexts = [max(count - sample.num_outputs, 0) for count, sample in zip(pairs, samples, strict=True)]
        longest = max(contexts) + max(count - context for count, context in zip(pairs, contexts, strict=True))
        size = samples[0].features.shape[1]
        next_ids = torch.zeros(len(samples), longest, dtype=torch.int64)
        features, next_features = torch.zeros(2, len(samples), longest, size)
        is_output = torch.zeros(len(samples), longest, dtype=torch.bool)
        num_padded = max(contexts) - torch.tensor(contexts)
        for i, (sample, count) in enumerate(zip(samples, pairs, strict=True)):
            own = slice(int(num_padded[i]), int(num_padded[i]) + count)
            next_ids[i, own] = sample.token_ids[1:-1]
            features[i, own] = sample.features[:-2]
            next_features[i, own] = sample.features[1:-1]
            is_output[i, max(contexts) : own.stop] = True
        return cls(
            next_ids.to(device),
            features.to(device),
            next_features.to(device),
            is_output.to(device),
            num_padded.to(device),
            max(contexts),
        )


@dataclass
class Vocabulary:
    """The target's embedding and head, and the rows of the latter that a draft can be drawn from."""

    embedding: Tensor  # [V, H]
    head: Tensor  # [V, H]
    draft_ids: Tensor  # [V_d] int64, ascending
    draft_head: Tensor = field(init=False)  # [V_d, H]

    def __post_init__(self) -> None:
        self.draft_head = self.head[self.draft_ids].contiguous()


def choose_draft_ids(
    samples: Sequence[Sequence[int]], size: int, vocab_size: int, others: Tensor | None = None
) -> Tensor:
    """The most frequent token ids, ascending; filled up with `others` and the lowest ids, which BPE merged first."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for ids in samples:
        counts += 2 * torch.bincount(torch.tensor(list(ids)), minlength=vocab_size)
    if others is not None:
        counts[others.cpu()] += 1
    order = torch.argsort(counts, descending=True, stable=True)
    return order[: min(size, vocab_size)].sort().values


def unroll(
    head: EagleHead, batch: Batch, embedding: Tensor, num_steps: int, first: int, noise: float = 0.0
) -> Iterator[Tensor]:
    """The head's outputs `[B, T - first, H]` at each depth of drafting, the first from the target's features.

    Those of depth s, counted from 0, hold from index `first + s` on: before it nothing says what the head is fed.
    """
    embedded = functional.embedding(batch.next_ids, embedding)
    features = batch.features
    if noise:
        features = features + noise * (2 * torch.rand_like(features) - 1)
    length = batch.next_ids.shape[1]
    groups = head.config.num_heads // head.config.num_kv_heads
    index = torch.arange(length, device=embedded.device)
    rows = index[first:, None]
    padded = index < batch.num_padded[:, None, None, None]  # [B, 1, 1, T]
    past: list[tuple[Tensor, Tensor]] = []  # keys and values of each step, for each query head
    for step in range(num_steps):
        begin = first if step else 0
        residual, x = head.enter(embedded[:, begin:], features)
        queries, keys, values = head.attention_states(x, begin)
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        past.append((keys, values))
        if step == 0:
            seen = ((index <= rows) & ~padded) | (index == rows)
            attended = functional.scaled_dot_product_attention(queries[:, :, first:], keys, values, attn_mask=seen)
            residual = residual[:, first:]
        else:
            attended = _attend(queries, past, (index <= rows - step) & ~padded)
        out = head.leave(residual, attended)
        yield out
        features = functional.pad(out, (0, 0, 1, 0))[:, :-1]  # index t is fed what index t - 1 said


def _attend(queries: Tensor, past: Sequence[tuple[Tensor, Tensor]], seen: Tensor) -> Tensor:
    """Attention in step s: to the target's positions up to t - s, and to the s own ones behind them."""
    step, (num_queries, length) = len(past) - 1, seen.shape[-2:]
    scale = queries.shape[-1] ** -0.5
    scores = [(queries @ past[0][0].transpose(-1, -2) * scale).masked_fill(~seen, -math.inf)]
    shifted = []
    for i in range(1, step + 1):
        keys, values = (functional.pad(part, (0, 0, step - i, 0))[:, :, :num_queries] for part in past[i])
        scores.append((queries * keys).sum(-1, keepdim=True) * scale)
        shifted.append(values)
    weights = torch.cat(scores, dim=-1).softmax(-1)
    attended = weights[..., :length] @ past[0][1]
    for i, values in enumerate(shifted):
        attended = attended + weights[..., length + i : length + i + 1] * values
    return attended


def loss_of(head: EagleHead, batch: Batch, vocabulary: Vocabulary, recipe: EagleRecipe) -> Tensor:
    """Mean loss per answer token, over all steps."""
    num_steps = len(recipe.step_weights)
    first = max(batch.first_output - (num_steps - 1), 0)
    own = batch.is_output[:, first:].flatten().nonzero().squeeze(1)
    targets = batch.next_features[:, first:].flatten(0, 1)[own]
    with torch.no_grad():
        laws = _target_laws(targets, vocabulary, recipe)
    total = torch.zeros((), device=targets.device)
    index = torch.arange(first, batch.next_ids.shape[1], device=targets.device)
    num_before = (index - batch.num_padded[:, None]).flatten()[own]  # pairs of the sample before an index
    for step, out in enumerate(unroll(head, batch, vocabulary.embedding, num_steps, first, recipe.noise)):
        said = out.flatten(0, 1)[own]
        usable = (num_before >= step).float()  # index t of step s began at index t - s
        kl, tv = _distances(said, laws, recipe.tv_temperature)
        loss = ((kl + recipe.tv_weight * tv) * usable).sum() / usable.sum().clamp(min=1)
        if step == 0 and recipe.feature_weight:
            loss = loss + recipe.feature_weight * functional.smooth_l1_loss(said, targets)
        total = total + recipe.step_weights[step] * loss
    return total / sum(recipe.step_weights)


@dataclass(frozen=True)
class _Laws:
    """p among M candidates of the draft vocabulary, which hold nearly all of its mass."""

    rows: Tensor  # [M, H] of the head
    warm: Tensor  # [N, M] p at temperature 1
    sharp: Tensor  # [N, M] p at the temperature of acceptance


def _target_laws(features: Tensor, vocabulary: Vocabulary, recipe: EagleRecipe) -> _Laws:
    rows = vocabulary.draft_head
    logits = features @ rows.T
    if recipe.num_candidates < len(rows):
        num_random = recipe.num_candidates // 4
        likely = logits.softmax(-1).amax(0).topk(recipe.num_candidates - num_random).indices
        drawn = torch.randint(len(rows), (num_random,), device=rows.device)
        chosen = torch.cat([likely, drawn]).unique()
        rows, logits = rows[chosen], logits[:, chosen]
    return _Laws(rows, logits.softmax(-1), (logits / recipe.tv_temperature).softmax(-1))


def _distances(features: Tensor, laws: _Laws, temperature: float) -> tuple[Tensor, Tensor]:
    """KL(p || q) up to p's entropy, and TV(p, q), for each row of features `[N, H]`."""
    logits = features @ laws.rows.T
    kl = -(laws.warm * logits.log_softmax(-1)).sum(-1)
    tv = 1.0 - torch.minimum(laws.sharp, (logits / temperature).softmax(-1)).sum(-1)
    return kl, tv


@torch.no_grad()
def held_out_acceptance(
    head: EagleHead, samples: Sequence[Sample], vocabulary: Vocabulary, num_steps: int, device: torch.device
) -> list[float]:
    """Greedy: at each depth, the share of answer tokens at which this and all shallower drafts match the target's."""
    hits, count = torch.zeros(num_steps), 0
    for first in range(0, len(samples), 8):
        batch = Batch.of(samples[first : first + 8], device)
        begin = batch.first_output
        is_output = batch.is_output[:, begin:]
        next_features = batch.next_features[:, begin:].flatten(0, 1)
        wanted = torch.cat([(part @ vocabulary.head.T).argmax(-1) for part in next_features.split(_CHUNK)])
        wanted = wanted.view(is_output.shape)
        alive = is_output.clone()  # by index of the first depth; depth s looks at index t + s
        count += int(alive.sum())
        for step, out in enumerate(unroll(head, batch, vocabulary.embedding, num_steps, begin)):
            guess = vocabulary.draft_ids[(out @ vocabulary.draft_head.T).argmax(-1)]
            match = functional.pad((guess == wanted) & is_output, (0, step))[:, step:]
            alive &= match
            hits[step] += float(alive.sum())
    return (hits / max(count, 1)).tolist()


def make_optimizer(head: EagleHead, recipe: EagleRecipe, num_steps: int) -> tuple[Optimizer, LRScheduler]:
    """AdamW with a warm-up and a cosine, over so many steps."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    warm_up = max(num_steps // 20, 1)

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(num_steps - warm_up, 1)))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def train_step(
    head: EagleHead, batch: Batch, vocabulary: Vocabulary, recipe: EagleRecipe,
    optimizer: Optimizer, schedule: LRScheduler,
) -> float:  # fmt: skip
    """One step of the optimiser; the loss before it."""
    loss = loss_of(head, batch, vocabulary, recipe)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(head.parameters(), 0.5)
    optimizer.step()
    schedule.step()
    return float(loss.detach())
