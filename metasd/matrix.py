"""Which drafter suits which domain: acceptance of a first draft token, teacher-forced on the target's own answers."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from metasd.core import Request, SamplingLaw, TokenScores
from metasd.drafters import Drafter
from metasd.scores import TargetLaws, score_tokens
from metasd.target import Target
from metasd.training.answers import Answer

NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class TokenRecord:
    """One arm on one answer of the target.

    Attributes:
        arm: the drafter.
        domain: of the prompt.
        temperature: of the law, and with which the answer was drawn.
        scores: of its tokens.
    """

    arm: str
    domain: str
    temperature: float
    scores: TokenScores


@torch.inference_mode()
def score_answer(target: Target, drafters: Mapping[str, Drafter], answer: Answer) -> Iterator[TokenRecord]:
    """Each drafter's records on one answer, at the temperature with which it was drawn.

    One forward pass of the target gives the laws p and the features that white-box drafters read.
    """
    law = SamplingLaw(answer.temperature)
    prompt, tokens = list(answer.prompt_ids), list(answer.output_ids)
    layers = tuple({layer: None for drafter in drafters.values() for layer in drafter.feature_layers})
    rows, behind = target.read([*prompt, *tokens], len(tokens), layers), len(prompt) - 1
    features, target_laws = target.take_features(), TargetLaws(rows, law)
    for arm, drafter in drafters.items():
        parts = [features[layer][0] for layer in drafter.feature_layers]
        own = torch.cat(parts, dim=-1) if parts else None
        drafter.reset(Request(prompt, law, len(prompt) + len(tokens), None if own is None else own[:behind]))
        laws = drafter.score(tokens, None if own is None else own[behind:])
        yield TokenRecord(arm, answer.domain, answer.temperature, score_tokens(target_laws, laws, tokens))


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
        cells.append((sum(record.scores.overlap), len(record.scores.overlap)))
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
