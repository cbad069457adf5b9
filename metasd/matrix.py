"""Which drafter suits which domain: acceptance of a first draft token, teacher-forced on the target's own answers."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metasd.core import Draft, Request, SamplingLaw
from metasd.drafters import Drafter
from metasd.logits import law_cutoff
from metasd.target import Target
from metasd.training.answers import Answer
from metasd_kernels import verify

NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class TokenRecord:
    """One arm on one answer of the target: for each of its m tokens what MATH calls (a, 1 - TV).

    Attributes:
        arm: the drafter.
        domain: of the prompt.
        temperature: of the law, and with which the answer was drawn.
        ratio: min(1, q(y) / p(y)) of each token y of the answer; 0 where the arm slept.
        overlap: 1 - TV(p, q) there, the probability that a token drafted there would have been accepted.
    """

    arm: str
    domain: str
    temperature: float
    ratio: tuple[float, ...]
    overlap: tuple[float, ...]


@torch.inference_mode()
def score_answer(target: Target, drafters: Mapping[str, Drafter], answer: Answer) -> Iterator[TokenRecord]:
    """Each drafter's records on one answer, at the temperature with which it was drawn.

    One forward pass of the target gives the laws p and the features that white-box drafters read.
    """
    law = SamplingLaw(answer.temperature)
    prompt, tokens = list(answer.prompt_ids), list(answer.output_ids)
    layers = tuple({layer: None for drafter in drafters.values() for layer in drafter.feature_layers})
    rows, behind = target.read([*prompt, *tokens], len(tokens), layers), len(prompt) - 1
    features = target.take_features()
    for arm, drafter in drafters.items():
        parts = [features[layer][0] for layer in drafter.feature_layers]
        own = torch.cat(parts, dim=-1) if parts else None
        drafter.reset(Request(prompt, law, len(prompt) + len(tokens), None if own is None else own[:behind]))
        laws = drafter.score(tokens, None if own is None else own[behind:])
        ratio, overlap = compare(rows, laws, tokens, law)
        yield TokenRecord(arm, answer.domain, answer.temperature, ratio, overlap)


def compare(
    rows: Tensor, laws: Draft, token_ids: Sequence[int], law: SamplingLaw
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(min(1, q(y) / p(y)), 1 - TV(p, q)) at each of m positions.

    Args:
        rows: `[m, V]`, the target's logits before each token.
        laws: the drafter's, from `Drafter.score`.
        token_ids: the m tokens y.
        law: the target's temperature and cutoffs.
    """
    emitted = torch.tensor([token_ids], device=rows.device)
    block = torch.cat([rows, rows[-1:]]).unsqueeze(0)  # verify wants a row behind the last draft token
    cutoff = law_cutoff(block, law)
    # The tokens stand in for drafts: TV does not depend on them, and p(y) comes from a draft that is a point mass.
    options: dict[str, Any] = {
        "temperature": law.temperature,
        "target_cutoff": cutoff,
        "seed": torch.zeros_like(emitted[0, :1]),
    }
    p = verify(block, emitted, **options).accept_probability[0]
    if laws.logits is None:
        guessed = verify(block, laws.token_ids.clamp(min=0), **options).accept_probability[0]
        q = (laws.token_ids[0] == emitted[0]).to(p.dtype)
        overlap = guessed
    else:
        made = verify(
            block, emitted, laws.logits, draft_temperature=laws.temperature, draft_cutoff=laws.cutoff,
            draft_to_target=laws.draft_to_target, **options,
        )  # fmt: skip
        overlap = 1 - made.tv_distance[0]
        q = _probabilities(laws, emitted[0])
    is_awake = laws.token_ids[0] >= 0
    ratio = torch.where(is_awake, (q / p).clamp(max=1).nan_to_num(), 0)
    return tuple(ratio.tolist()), tuple(torch.where(is_awake, overlap, 0).tolist())


def _probabilities(laws: Draft, token_ids: Tensor) -> Tensor:
    """q(y) of each token, `[m]`, from a draft's own rows."""
    assert laws.logits is not None
    rows = laws.logits[0].float()
    if laws.cutoff is not None:
        rows = rows.masked_fill(rows < laws.cutoff[0].unsqueeze(-1), -torch.inf)
    q = (rows / laws.temperature).softmax(-1)
    ids = torch.arange(rows.shape[-1], device=rows.device) if laws.draft_to_target is None else laws.draft_to_target
    ids = ids[0] if ids.dim() == 3 else ids.expand(rows.shape)
    return (q * (ids == token_ids.unsqueeze(-1))).sum(-1)


@dataclass(frozen=True)
class Cell:
    """Acceptance of an arm on a domain, and how far a paired bootstrap over answers puts it below the domain's best."""

    mean: float
    behind_best: tuple[float, float]  # 95 % interval of best - own, within the family; (0, 0) for the best


def means(records: Sequence[TokenRecord]) -> dict[str, dict[str, list[tuple[float, int]]]]:
    """domain -> arm -> (sum of overlaps, tokens) of each answer, answers in the same order for every arm."""
    table: dict[str, dict[str, list[tuple[float, int]]]] = {}
    for record in records:
        cells = table.setdefault(record.domain, {}).setdefault(record.arm, [])
        cells.append((sum(record.overlap), len(record.overlap)))
    return table


def matrix(records: Sequence[TokenRecord], families: Mapping[str, str], seed: int = 0) -> dict[str, dict[str, Cell]]:
    """domain -> arm -> Cell; `families` names the family of each arm."""
    chance = random.Random(seed)
    found: dict[str, dict[str, Cell]] = {}
    for domain, arms in means(records).items():
        num_answers = len(next(iter(arms.values())))
        draws = [chance.choices(range(num_answers), k=num_answers) for _ in range(NUM_RESAMPLES)]
        point = {arm: _mean(cells, range(num_answers)) for arm, cells in arms.items()}
        found[domain] = {}
        for arm, cells in arms.items():
            best = max((other for other in arms if families[other] == families[arm]), key=lambda other: point[other])
            gaps = [0.0]
            if best != arm:
                gaps = sorted(_mean(arms[best], draw) - _mean(cells, draw) for draw in draws)
            found[domain][arm] = Cell(
                point[arm], (gaps[int(0.025 * (len(gaps) - 1))], gaps[int(0.975 * (len(gaps) - 1))])
            )
    return found


def _mean(cells: Sequence[tuple[float, int]], chosen: Sequence[int]) -> float:
    total = sum(cells[i][0] for i in chosen)
    return total / max(sum(cells[i][1] for i in chosen), 1)


@dataclass(frozen=True)
class Ceiling:
    """What choosing by domain could gain at most within a family: ratios of mean acceptance over domains."""

    oracle: float
    best_fixed: str
    over_best_fixed: float
    over_generalist: float | None


def ceiling(table: Mapping[str, Mapping[str, Cell]], arms: Sequence[str], generalist: str | None) -> Ceiling:
    """The oracle that knows each domain's best arm, against the best single arm and against the generalist."""
    mean = {arm: sum(cells[arm].mean for cells in table.values()) / len(table) for arm in arms}
    oracle = sum(max(cells[arm].mean for arm in arms) for cells in table.values()) / len(table)
    best = max(mean, key=lambda arm: mean[arm])
    over = None if generalist is None else oracle / mean[generalist]
    return Ceiling(oracle, best, oracle / mean[best], over)
