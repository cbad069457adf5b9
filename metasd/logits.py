"""From the target's raw logits to its processed law: penalties, minimum length, processors, cutoffs.

Row k of a block is processed with the tokens before it: the committed ones and the first k of the draft. So every row
gets what plain decoding would have given it, had the draft been accepted up to there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from metasd.config import SamplingParams
from metasd.core import SamplingLaw
from metasd_kernels import logit_cutoff

_STATELESS = "is_stateless"
_TRANSFORMERS_STATELESS = frozenset(
    {
        "RepetitionPenaltyLogitsProcessor",
        "EncoderRepetitionPenaltyLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "SuppressTokensLogitsProcessor",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
    }
)


def is_stateless(processor: object) -> bool:
    """Whether a processor says of itself, or is known, to depend on its arguments only."""
    declared = getattr(processor, _STATELESS, None)
    if declared is not None:
        return bool(declared)
    kind = type(processor)
    return kind.__module__.startswith("transformers.") and kind.__name__ in _TRANSFORMERS_STATELESS


def law_cutoff(logits: Tensor, law: SamplingLaw) -> Tensor | None:
    """The cutoff of each row `[...]` of logits `[..., V]`, or None where the law keeps every token."""
    if not law.has_cutoff:
        return None
    return logit_cutoff(logits, temperature=law.temperature, top_k=law.top_k, top_p=law.top_p, min_p=law.min_p)


class LogitsPipeline:
    """Processes the target's rows for one request, and follows the committed tokens.

    Args:
        params: of the request.
        prompt_ids: the prompt.
        vocab_size: V of the target's logits.
        eos_token_ids: what `min_new_tokens` forbids.
        device: where logits lie.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        vocab_size: int,
        eos_token_ids: frozenset[int],
        device: torch.device,
    ) -> None:
        self.law = params.law
        self._params, self._device = params, device
        self._stateless = [entry for entry in params.logits_processors if is_stateless(entry)]
        self._processors = list(params.logits_processors)
        self.is_stepwise = len(self._stateless) < len(self._processors)
        self._penalizes_answer = params.frequency_penalty != 0 or params.presence_penalty != 0
        self._counts_tokens = self._penalizes_answer or params.repetition_penalty != 1
        self._num_new = 0
        self._eos = torch.tensor(sorted(eos_token_ids), dtype=torch.int64, device=device)
        self._committed = list(prompt_ids)
        if self._counts_tokens:
            self._in_prompt = torch.zeros(vocab_size, device=device)
            self._in_prompt[torch.tensor(self._committed, device=device)] = 1.0
            self._in_answer = torch.zeros(vocab_size, device=device)

    @property
    def is_identity(self) -> bool:
        """Whether rows pass through as they are."""
        return not (self._counts_tokens or self._processors or self._params.min_new_tokens > self._num_new)

    def rows(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """Processed logits of consecutive rows.

        Args:
            logits: `[1, M, V]` raw logits; not written to.
            drafted: `[1, P + M - 1]` tokens behind the committed ones; row m has the first P + m of them before it.

        Returns:
            `[1, M, V]`; the input itself where nothing is to be done.
        """
        if self.is_identity:
            return logits
        num_rows = logits.shape[1]
        start = drafted.shape[1] - (num_rows - 1)
        x = logits[0].float() if logits.dtype != torch.float64 else logits[0].clone()
        x = x.clone() if x.data_ptr() == logits.data_ptr() else x
        if self._counts_tokens:
            x = self._penalize(x, drafted[0], start)
        for m in range(num_rows):
            if self._num_new + start + m < self._params.min_new_tokens:
                x[m, self._eos] = -torch.inf
        if self._processors:
            committed = torch.tensor([self._committed], device=self._device)
            for m in range(num_rows):
                prefix = torch.cat([committed, drafted[:, : start + m]], dim=1)
                for processor in self._processors:
                    x[m] = processor(prefix, x[m : m + 1].clone())[0]
        return x.unsqueeze(0)

    def _penalize(self, x: Tensor, drafted: Tensor, start: int) -> Tensor:
        """transformers' repetition penalty over prompt and answer; OpenAI's frequency and presence over the answer."""
        answer = self._in_answer.expand_as(x).clone()
        for k in range(drafted.shape[0]):
            answer[max(0, k + 1 - start) :, drafted[k]] += 1.0
        penalty = self._params.repetition_penalty
        if penalty != 1:
            penalized = torch.where(x < 0, x * penalty, x / penalty)
            x = torch.where(answer + self._in_prompt > 0, penalized, x)
        if self._penalizes_answer:
            x = x - self._params.frequency_penalty * answer - self._params.presence_penalty * (answer > 0)
        return x

    def commit(self, token_ids: Sequence[int]) -> None:
        """Take tokens that became part of the answer."""
        self._num_new += len(token_ids)
        self._committed.extend(token_ids)
        if self._counts_tokens:
            for token in token_ids:
                self._in_answer[token] += 1.0
