"""Policies over many answers at once, as arrays: for curves that need 10^5 tokens, and the closed forms beside them.

Blocks are greedy and stationary here: position k of a draft matches with the arm's rate a, independently. Then
E[BD] = a, E[N_acc] = (a - a^(N+1)) / (1 - a) and E[BE] = E[N_acc] / N (MATH: rewards of the paper).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Index = Callable[[Floats, Floats, int], Floats]
"""From mean rewards `[S, arms]`, numbers of rounds `[S, arms]` and t: whom to play is the largest."""


@dataclass(frozen=True)
class Curve:
    """Stopping-time regret of S answers.

    Attributes:
        budgets: B.
        regret: `[S, len(budgets)]`, rounds until B tokens beyond what the best arm needs on average.
        is_best: `[rounds, S]`, whether the best arm was played.
    """

    budgets: list[int]
    regret: Floats
    is_best: NDArray[np.bool_]


def mean_accepted(rate: float, block: int) -> float:
    """E[N_acc] of a stationary arm."""
    return block if rate >= 1 else (rate - rate ** (block + 1)) / (1 - rate)


def mean_be(rate: float, block: int) -> float:
    """E[BE] of a stationary arm."""
    return mean_accepted(rate, block) / block


def signal(rate: float, block: int, reward: str) -> float:
    """(d mean / d rate)^2 / variance of a round's reward: how fast a mean tells two arms apart."""
    if reward == "bd":
        return block / (rate * (1 - rate))
    counts = np.arange(block + 1)
    law = np.append(rate ** counts[:-1] * (1 - rate), rate**block)
    mean = float((law * counts).sum()) / block
    variance = float((law * (counts / block) ** 2).sum()) - mean**2
    step = 1e-5
    slope = (mean_be(rate + step, block) - mean_be(rate - step, block)) / (2 * step)
    return slope**2 / variance


def ucb_index(beta: float) -> Index:
    """MetaSD-UCB's."""
    return lambda mean, count, t: mean + beta * np.sqrt(2 * math.log(t) / count)


def regret_curve(
    rates: Sequence[float],
    index: Index | int | None,
    *,
    budgets: Sequence[int],
    reward: str = "bd",
    num_answers: int = 200,
    block: int = 5,
    seed: int = 0,
) -> Curve:
    """Play an index policy in S answers at once; a number: that arm; None: arms at random.

    Args:
        rates: of the arms.
        index: the policy.
        budgets: B at which the regret is taken, ascending.
        reward: "be" or "bd".
        num_answers: S.
        block: N.
        seed: of the matches.
    """
    generator = np.random.default_rng(seed)
    acceptance = np.asarray(rates)
    num_arms, rows = len(rates), np.arange(num_answers)
    total, count = np.zeros((num_answers, num_arms)), np.zeros((num_answers, num_arms))
    tokens, taken = np.zeros(num_answers), np.full((num_answers, len(budgets)), np.nan)
    best, is_best, t = int(acceptance.argmax()), list[NDArray[np.bool_]](), 0
    while tokens.min() < budgets[-1]:
        if index is None:
            arms = generator.integers(num_arms, size=num_answers)
        elif isinstance(index, int):
            arms = np.full(num_answers, index)
        elif t < num_arms:
            arms = np.full(num_answers, t)
        else:
            arms = index(total / count, count, t).argmax(-1)
        matches = generator.random((num_answers, block)) < acceptance[arms, None]
        accepted = np.cumprod(matches, axis=-1).sum(-1)
        total[rows, arms] += matches.mean(-1) if reward == "bd" else accepted / block
        count[rows, arms] += 1
        t += 1
        is_best.append(arms == best)
        before, tokens = tokens, tokens + accepted + 1
        for i, budget in enumerate(budgets):
            crossed = (before < budget) & (tokens >= budget)
            # the last round counts in part: a whole one would add the same noise to every policy
            taken[crossed, i] = t - 1 + (budget - before[crossed]) / (tokens[crossed] - before[crossed])
    ideal = np.asarray(budgets) / (1 + mean_accepted(max(rates), block))
    return Curve(list(budgets), taken - ideal, np.stack(is_best))


def rounds_to_share(is_best: NDArray[np.bool_], share: float = 0.9, window: int = 10) -> int:
    """The first round from which on, over `window` rounds, the best arm is played in that share of the answers; the
    number of rounds where it never is."""
    shares = is_best.mean(-1)
    smooth = np.convolve(shares, np.ones(window) / window, mode="valid")
    reached = np.flatnonzero(smooth >= share)
    return int(reached[0]) if reached.size else len(shares)


def interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    """The middle of so much of a bootstrap's values."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def resampled(num_answers: int, num_draws: int = 400, seed: int = 0) -> NDArray[np.int64]:
    """Indices `[num_draws, num_answers]` of bootstrap samples."""
    return np.random.default_rng(seed).integers(num_answers, size=(num_draws, num_answers))


def slope(x: Sequence[float], regret: Floats) -> tuple[float, float, float]:
    """Least-squares slope of the mean regret against x, and its 95 % bootstrap interval over answers."""
    around = np.asarray(x) - np.mean(x)

    def of(rows: Floats) -> float:
        return float(around @ rows.mean(0) / (around @ around))

    low, high = interval(np.asarray([of(regret[rows]) for rows in resampled(len(regret))]))
    return of(regret), low, high
