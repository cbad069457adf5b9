"""Losslessness on the user's own models: greedy answers token for token, and the law of a round's first token.

The greedy reference is twofold: plain decoding in this engine, and `generate(do_sample=False)` of transformers. Where
two tokens are nearly tied, passes over one and over several positions may round to different winners; such a
difference is reported with its margin and counted apart.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from metasd.config import SamplingParams
from metasd.core import NULL_ARM, Coins, Draft, MetaSDError, Request, SamplingLaw
from metasd.drafters import Drafter
from metasd.engine import MetaSD
from metasd.logits import law_cutoff
from metasd_kernels import sample, verify

NEAR_TIE = 1e-4
"""Float32: two logits closer than this may change places between passes of different width."""
LAW = SamplingLaw(temperature=0.8, top_p=0.95)
ERROR_RATE = 1e-9
_ROWS = 64  # requests verified in one call
_LEAST_EXPECTED = 8.0  # rarer tokens share a bin


@dataclass(frozen=True)
class GreedyOutcome:
    """One prompt: where the answer first differs from a reference, and how close the two tokens were."""

    prompt: str
    num_tokens: int
    reference: str  # "plain" | "transformers"
    position: int | None  # None: equal
    margin: float  # logit of the winner minus logit of the other token; 0 if equal
    near_tie: float  # margins below this are near-ties in this dtype

    @property
    def is_equal(self) -> bool:
        return self.position is None

    @property
    def is_near_tie(self) -> bool:
        return self.position is not None and self.margin < self.near_tie


@dataclass(frozen=True)
class LawOutcome:
    """One drafter at one prompt: chi-square of the first token of a round against the target's law."""

    drafter: str
    prompt: str
    num_draws: int
    num_bins: int
    chi_square: float
    limit: float  # exceeded with probability ERROR_RATE by an exact sampler
    mean_accepted: float

    @property
    def is_passed(self) -> bool:
        return self.chi_square <= self.limit


def check_greedy(engine: MetaSD, prompt: str, max_new_tokens: int, on_chat: bool) -> Iterator[GreedyOutcome]:
    """Compare one greedy answer with plain decoding and with transformers."""
    question = [{"role": "user", "content": prompt}] if on_chat else prompt
    ids = engine.target.encode(question)
    params = SamplingParams(max_new_tokens=max_new_tokens)
    answer = engine.generate(ids, params).token_ids
    plain = engine.generate_plain(ids, params).token_ids
    yield compare(engine, prompt, ids, answer, plain, "plain")
    model = engine.target.model
    with torch.inference_mode():
        prompt_ids = torch.tensor([ids], device=engine.target.device)
        generated = model.generate(
            prompt_ids,
            attention_mask=torch.ones_like(prompt_ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            eos_token_id=sorted(engine.target.eos_token_ids) or None,
            pad_token_id=0,
        )
    yield compare(engine, prompt, ids, answer, generated[0, len(ids) :].tolist(), "transformers")


def compare(
    engine: MetaSD, prompt: str, prompt_ids: list[int], answer: list[int], reference: list[int], name: str
) -> GreedyOutcome:
    """A greedy answer beside a reference, called `name`; where they part, how near a tie the target's choice was."""
    model = engine.target.model
    threshold = NEAR_TIE
    if answer == reference:
        return GreedyOutcome(prompt, len(answer), name, None, 0.0, threshold)
    pairs = zip(answer, reference, strict=False)
    shorter = min(len(answer), len(reference))
    position = next((k for k, (left, right) in enumerate(pairs) if left != right), shorter)
    if position == shorter:  # one is a prefix of the other: no tie explains that
        return GreedyOutcome(prompt, len(answer), name, position, math.inf, threshold)
    with torch.inference_mode():
        context = torch.tensor([prompt_ids + answer[:position]], device=engine.target.device)
        logits = model(input_ids=context, use_cache=False).logits[0, -1].double()
    margin = float((logits[answer[position]] - logits[reference[position]]).abs())
    if model.dtype != torch.float32:  # a few units in the last place of the largest logit
        threshold = 4 * torch.finfo(model.dtype).eps * float(logits.abs().max())
    return GreedyOutcome(prompt, len(answer), name, position, margin, threshold)


def check_law(
    engine: MetaSD, prompt: str, num_draws: int, on_chat: bool, progress: Callable[[], None] = lambda: None
) -> Iterator[LawOutcome]:
    """Test the law of the first token of a round, for each drafter that has something to propose somewhere.

    The place is the last one in a greedy answer of 32 tokens where the drafter is awake. A drafter's tokens are drawn
    from the law that it hands over for verification; that its own draws come from that law is checked by comparing
    some of them, coin for coin.

    Raises:
        MetaSDError: a drafter drew a token that its own law and coins do not give.
    """
    question = [{"role": "user", "content": prompt}] if on_chat else prompt
    ids = engine.target.encode(question)
    text = ids + engine.generate_plain(ids, SamplingParams(max_new_tokens=32, ignore_eos=True)).token_ids
    for name, drafter in engine.pool.drafters.items():
        place = None if name == NULL_ARM else _place_awake(drafter, text, len(ids))
        if place is None:
            continue
        with torch.inference_mode():
            engine.target.start(text[:place])
            rows = engine.target.score(torch.tensor([[text[place - 1]]], device=engine.target.device))
            first = drafter.draft(1, Coins(torch.zeros(1, dtype=torch.int64, device=rows.device), 0))
            if first is not None:
                _check_own_draws(drafter, first)
                yield _law_outcome(name, prompt, rows, first, num_draws, progress)


def _place_awake(drafter: Drafter, text: list[int], least: int) -> int | None:
    """The longest part of the text behind which the drafter has something to propose; it is ready there."""
    for place in range(len(text), least - 1, -1):
        drafter.reset(Request(tuple(text[:place]), LAW, place + 2))
        if drafter.offer(1) is not None:
            with torch.inference_mode():
                drafter.commit(())
            return place
    return None


def _check_own_draws(drafter: Drafter, first: Draft, num_draws: int = 4) -> None:
    """The drafter's tokens are those that its law gives for the same coins; a point mass is the same every time."""
    for seed in range(1, num_draws + 1):
        key = torch.tensor([seed], device=first.token_ids.device)
        drafter.rewind(1)
        again = drafter.draft(1, Coins(key, 7))
        if again is None:
            raise MetaSDError(f"drafter {drafter.name!r} proposed a token, and then none in the same place")
        expected = first.token_ids[:, 0]
        if first.logits is not None:
            cutoff = None if again.cutoff is None else again.cutoff[:, 0]
            assert again.logits is not None
            expected = sample(again.logits[:, 0], temperature=again.temperature, cutoff=cutoff, seed=key, offset=7)
        if not torch.equal(again.token_ids[:, 0], expected):
            raise MetaSDError(f"drafter {drafter.name!r} does not draw its tokens from the law that it hands over")


def _law_outcome(
    name: str, prompt: str, rows: Tensor, draft: Draft, num_draws: int, progress: Callable[[], None]
) -> LawOutcome:
    cutoff = law_cutoff(rows, LAW)
    assert cutoff is not None
    kept = rows[0, 0].double() / LAW.temperature
    law = kept.masked_fill(rows[0, 0] < cutoff[0, 0], -torch.inf).softmax(-1)
    counts = torch.zeros_like(law)
    num_accepted = 0
    for start in range(0, num_draws, _ROWS):
        seeds = torch.arange(start, min(start + _ROWS, num_draws), device=rows.device) + 1_000_003
        size = seeds.shape[0]
        tokens, logits, draft_cutoff = draft.token_ids.expand(size, 1), None, None
        if draft.logits is not None:
            logits = draft.logits.expand(size, -1, -1).contiguous()
            draft_cutoff = None if draft.cutoff is None else draft.cutoff.expand(size, 1)
            tokens = sample(
                logits[:, 0],
                temperature=draft.temperature,
                cutoff=None if draft_cutoff is None else draft_cutoff[:, 0],
                seed=seeds,
            ).unsqueeze(1)
        output = verify(
            rows.expand(size, 2, -1),  # the bonus row does not matter for the first token
            tokens,
            logits,
            temperature=LAW.temperature,
            draft_temperature=draft.temperature,
            target_cutoff=cutoff.expand(size, 2),
            draft_cutoff=draft_cutoff,
            seed=seeds,
        )
        counts += torch.bincount(output.output_token_ids[:, 0], minlength=law.shape[0])
        num_accepted += int(output.num_accepted_tokens.sum())
        progress()
    chi_square, num_bins = _chi_square(counts, law, num_draws)
    return LawOutcome(
        name, prompt, num_draws, num_bins, chi_square, chi_square_limit(num_bins - 1), num_accepted / num_draws
    )


def _chi_square(counts: Tensor, law: Tensor, num_draws: int) -> tuple[float, int]:
    """Over the tokens that are frequent enough, and one bin for the rest; a token without mass must not occur."""
    expected = law * num_draws
    if bool((counts[law == 0] > 0).any()):
        return math.inf, 2
    is_frequent = expected >= _LEAST_EXPECTED
    observed_bins = torch.cat([counts[is_frequent], counts[~is_frequent].sum().view(1)])
    expected_bins = torch.cat([expected[is_frequent], expected[~is_frequent].sum().view(1)])
    if float(expected_bins[-1]) < _LEAST_EXPECTED and len(expected_bins) > 1:  # too rare for a bin of its own
        for bins in (observed_bins, expected_bins):
            bins[-2] += bins[-1]
        observed_bins, expected_bins = observed_bins[:-1], expected_bins[:-1]
    return float(((observed_bins - expected_bins) ** 2 / expected_bins).sum()), len(expected_bins)


def chi_square_limit(degrees: int) -> float:
    """What an exact sampler exceeds with probability ERROR_RATE; 0 degrees of freedom leave room for rounding only."""
    if degrees < 1:
        return 1e-6
    low, high = 0.0, 100.0 + 10.0 * degrees
    for _ in range(60):
        middle = (low + high) / 2
        half = torch.tensor([degrees / 2, middle / 2], dtype=torch.float64)
        exceeds = float(torch.special.gammaincc(half[0], half[1]))
        low, high = (middle, high) if exceeds > ERROR_RATE else (low, middle)
    return high
