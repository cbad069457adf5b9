"""A sequence on the device at fixed addresses: what crosses captured graphs, and the law that they draw from."""

from collections.abc import Sequence

import torch
from torch import Tensor

from metasd.config import MAX_NUM_DRAFT_TOKENS
from metasd.core import SamplingLaw
from metasd_kernels import logit_cutoff, sample

BUCKETS = (128, 512, 2048, 8192, 32768, 131072)
"""How much of a cache a captured forward pass reads: the next of these that holds the sequence."""


class StaticSequence:
    """Tokens and counters of one sequence. Graphs advance them, the host reads them once a round.

    Args:
        capacity: the most tokens, draft included.
        device: where all lies.

    Attributes:
        tokens: `[C]` int64; the draft stands behind the committed ones.
        length: `[1]` int64, how many are committed.
        step: `[1]` int64, drafted tokens of this round.
        nonce, seed: `[1]` int64, of the coins.
        features: the target's hidden states by layer, `[C, H]`, row t of token t.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        def zero() -> Tensor:
            return torch.zeros(1, dtype=torch.int64, device=device)

        with torch.inference_mode(False):
            self.tokens = torch.zeros(capacity + MAX_NUM_DRAFT_TOKENS + 2, dtype=torch.int64, device=device)
            self.length, self.step, self.nonce, self.seed = zero(), zero(), zero(), zero()
        self.features: dict[int, Tensor] = {}

    @property
    def moving(self) -> tuple[Tensor, ...]:
        """What graphs advance."""
        return self.tokens, self.length, self.step, self.nonce

    def start(self, prompt_ids: Sequence[int], seed: Tensor) -> None:
        """A new sequence, whose prompt the target has read but for its last token."""
        count = len(prompt_ids)
        self.tokens[:count] = torch.tensor(list(prompt_ids), device=self.tokens.device)
        self.length.fill_(count)
        self.seed.copy_(seed)
        self.nonce.zero_()
        self.step.zero_()

    def last(self, width: int) -> Tensor:
        """Places `[width]` of the last tokens, drafted ones among them; before the beginning the first one again."""
        return (self.length + self.step + torch.arange(-width, 0, device=self.length.device)).clamp(min=0)

    def store_features(self, positions: Tensor, features: dict[int, Tensor]) -> None:
        """Keep rows `[1, M, H]` of the tokens at `positions` `[M]`."""
        for layer, rows in features.items():
            if layer not in self.features:
                with torch.inference_mode(False):
                    self.features[layer] = rows.new_zeros((len(self.tokens), rows.shape[-1]))
            self.features[layer].index_copy_(0, positions, rows[0])


class StaticLaw:
    """A sampling law whose numbers are tensors: one captured graph serves every temperature.

    Attributes:
        form: what a graph's shape depends on: (whether it is greedy, whether it has cutoffs).
    """

    def __init__(self, device: torch.device) -> None:
        with torch.inference_mode(False):
            self._temperature = torch.zeros(1, device=device)
            self._top_k = torch.zeros(1, dtype=torch.int64, device=device)
            self._top_p, self._min_p = torch.ones(1, device=device), torch.zeros(1, device=device)
        self.form = (True, False)

    def set(self, law: SamplingLaw) -> None:
        self.form = (law.is_greedy, law.has_cutoff)
        self._temperature.fill_(law.temperature)
        self._top_k.fill_(law.top_k)
        self._top_p.fill_(law.top_p)
        self._min_p.fill_(law.min_p)

    @property
    def is_greedy(self) -> bool:
        return self.form[0]

    @property
    def temperature(self) -> float | Tensor:
        """What the ops are given."""
        return 0.0 if self.is_greedy else self._temperature

    def cutoff(self, rows: Tensor) -> Tensor | None:
        """Of rows `[R, V]`: `[R]`, or None where every token is kept."""
        if not self.form[1]:
            return None
        count = rows.shape[0]
        return logit_cutoff(
            rows,
            temperature=self._temperature.expand(count),
            top_k=self._top_k.expand(count),
            top_p=self._top_p.expand(count),
            min_p=self._min_p.expand(count),
        )


class StaticDrawing:
    """Draws a block token by token at fixed addresses, and keeps the laws; `BlockDrawing` for captured graphs.

    Args:
        vocab_size: V_d, of the rows that are drawn from.
        draft_to_target: `[V_d]`, what an index means in the target's vocabulary; None: itself.
    """

    def __init__(
        self, vocab_size: int, dtype: torch.dtype, device: torch.device, draft_to_target: Tensor | None = None
    ) -> None:
        self.law, self.draft_to_target = StaticLaw(device), draft_to_target
        with torch.inference_mode(False):
            self.logits = torch.zeros((1, MAX_NUM_DRAFT_TOKENS, vocab_size), dtype=dtype, device=device)
            self.cutoff = torch.zeros((1, MAX_NUM_DRAFT_TOKENS), device=device)

    def draw(self, row: Tensor, sequence: StaticSequence) -> None:
        """Draw from `[1, V_d]`, write the token behind the last one, and move on."""
        cutoff = self.law.cutoff(row)
        index = sample(
            row,
            temperature=self.law.temperature,
            cutoff=cutoff,
            seed=sequence.seed,
            offset=sequence.nonce,
            position=sequence.step,
        )
        token = index if self.draft_to_target is None else self.draft_to_target[index]
        sequence.tokens.index_copy_(0, sequence.length + sequence.step, token)
        if not self.law.is_greedy:
            self.logits.index_copy_(1, sequence.step, row.unsqueeze(1))
            if cutoff is not None:
                self.cutoff.index_copy_(1, sequence.step, cutoff.unsqueeze(1))
        sequence.step.add_(1)
