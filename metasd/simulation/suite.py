"""The suite `paper`: every policy in every setting on the same answers, and the checks of the theory."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metasd.bandits import CostTable, make_bandit
from metasd.core import NULL_ARM
from metasd.simulation.play import play
from metasd.simulation.theory import (
    Curve,
    interval,
    regret_curve,
    resampled,
    rounds_to_share,
    signal,
    slope,
    ucb_index,
)
from metasd.simulation.world import SETTINGS, Setting, World

Advance = Callable[[str, int, int, str], None]
BLOCK = 5
BETA = 0.22
BUDGETS = (250, 500, 1000, 2000, 4000, 8000, 16000)


@dataclass(frozen=True)
class Player:
    """A policy as it is played: its spec, reward and objective."""

    name: str
    spec: str
    reward: str = "auto"
    objective: str = "tokens"


PLAYERS = (
    Player("auto", "auto", objective="speed"),
    Player("ucb + bd (metasd-paper)", "ucb:carry=query", "bd"),
    Player("ucb + be", "ucb:carry=query", "be"),
    Player("ucb + rb", "ucb:carry=query", "rb"),
    Player("discounted-ucb + bd", "discounted-ucb", "bd"),
    Player("sliding-ucb + bd", "sliding-ucb", "bd"),
    Player("kl-ucb + bd", "kl-ucb", "bd"),
    Player("thompson + bd", "thompson", "bd"),
    Player("epsilon-greedy + bd", "epsilon-greedy", "bd"),
    Player("sequential-halving + bd", "sequential-halving", "bd"),
    Player("explore-then-commit + bd", "explore-then-commit", "bd"),
    Player("exp3 + bd", "exp3", "bd"),
    Player("ucbspec", "ucbspec"),
    Player("exp3spec", "exp3spec"),
    Player("hedge + cf", "hedge"),
    Player("random", "random"),
    Player("round-robin", "round-robin"),
)
REFERENCE = "ucb + bd (metasd-paper)"


@dataclass(frozen=True)
class Outcome:
    """A policy in a setting.

    Attributes:
        seconds: of each answer, in rounds; switches at their price.
        best_share: `[rounds]`, how often the arm was played that is the best one there, over the answers still going.
        num_switches: a mean answer's.
    """

    seconds: NDArray[np.float64]
    best_share: NDArray[np.float64]
    num_switches: float


@dataclass
class Report:
    """What a suite found.

    Attributes:
        outcomes: by setting and player.
        best_fixed: by setting, the mean seconds of the arm that is the best fixed one over all answers.
        curves: regret against B, vectorised.
        facts: the checks, as plain numbers.
        steps_a_minute: policy steps on one core.
    """

    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    best_fixed: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    steps_a_minute: float = 0.0

    def regret(self, setting: str, player: str) -> tuple[float, float, float]:
        """Mean seconds beyond the best fixed arm's on the same answers, with a paired 95 % interval."""
        return _paired(self.outcomes[setting][player].seconds - self.best_fixed[setting])

    def against(self, setting: str, player: str, other: str = REFERENCE) -> tuple[float, float, float]:
        """Mean seconds more than another player's on the same answers, with a paired 95 % interval."""
        table = self.outcomes[setting]
        return _paired(table[player].seconds - table[other].seconds)


def run_suite(
    num_answers: int = 60,
    num_tokens: int = 400,
    settings: Sequence[Setting] = tuple(SETTINGS.values()),
    players: Sequence[Player] = PLAYERS,
    advance: Advance = lambda stage, done, total, note: None,
) -> Report:
    """Play every policy in every setting, and draw the theory's curves.

    Args:
        num_answers: in each setting; the same ones for all policies.
        num_tokens: B.
        settings: kinds of worlds.
        players: policies.
        advance: told of progress.
    """
    report, steps, begin = Report(), 0, time.process_time()
    total, done = len(settings) * len(players), 0
    for setting in settings:
        worlds = [World(setting, num_tokens, seed, BLOCK) for seed in range(num_answers)]
        fixed = [np.asarray([_rounds_of_one_arm(world, arm) for world in worlds]) for arm in range(len(setting.arms))]
        report.best_fixed[setting.name] = min(fixed, key=lambda seconds: float(seconds.mean()))
        table = report.outcomes[setting.name] = {}
        for player in players:
            table[player.name], played = _outcome(player, worlds)
            steps, done = steps + played, done + 1
            advance("policies", done, total, f"{setting.name}, {player.name}")
    report.steps_a_minute = 60 * steps / (time.process_time() - begin)
    for done, (name, curve) in enumerate(_curves(), start=1):
        report.curves[name] = curve
        advance("curves", done, 4, name)
    report.facts = _facts(report.curves)
    return report


def _outcome(player: Player, worlds: Sequence[World]) -> tuple[Outcome, int]:
    """A player on these answers, and how many steps it took."""
    setting, traces = worlds[0].setting, []
    for world in worlds:
        costs = CostTable()
        costs.add_verify(0, 1.0)
        costs.add_verify(BLOCK, 1.0)
        bandit = make_bandit(
            player.spec,
            (*setting.arms, NULL_ARM),
            reward=player.reward,
            objective=player.objective,
            num_draft_tokens=BLOCK,
            costs=costs,
        )
        traces.append(play(bandit, world))
    length = max(len(trace.arms) for trace in traces)
    hits, going = np.zeros(length), np.zeros(length)
    best = setting.rates_at(worlds[0].num_tokens + 1).argmax(-1)
    for trace in traces:
        begins = [0, *trace.tokens[:-1]]
        hits[: len(trace.arms)] += np.asarray(trace.arms) == best[begins]
        going[: len(trace.arms)] += 1
    outcome = Outcome(
        np.asarray([trace.seconds for trace in traces]),
        hits / going,
        float(np.mean([trace.num_switches for trace in traces])),
    )
    return outcome, int(going.sum())


def _rounds_of_one_arm(world: World, arm: int) -> int:
    rounds, token = 0, 0
    while token < world.num_tokens:
        token += world.accepted[token][arm] + 1
        rounds += 1
    return rounds


def _curves() -> Iterator[tuple[str, Curve]]:
    rates = SETTINGS["stationary"].segments[0]
    second = int(np.argsort(rates)[-2])
    yield "ucb + bd", regret_curve(rates, ucb_index(BETA), budgets=BUDGETS, reward="bd")
    yield "ucb + be", regret_curve(rates, ucb_index(BETA), budgets=BUDGETS, reward="be")
    yield "second-best arm", regret_curve(rates, second, budgets=BUDGETS)
    yield "random", regret_curve(rates, None, budgets=BUDGETS)


def _facts(curves: dict[str, Curve]) -> dict[str, Any]:
    """Rounds to 90 % best-arm share, growth of the regret, and the signal of the two rewards."""
    log_budgets = np.log(BUDGETS).tolist()
    budgets = [float(budget) for budget in BUDGETS]
    return {
        "rounds_to_90_percent": {str(beta): share_ratio(beta) for beta in (0.1, 0.15, BETA)},
        "rounds_per_ln_b": {"ucb + bd": slope(log_budgets, curves["ucb + bd"].regret)},
        "rounds_per_b": {"second-best arm": slope(budgets, curves["second-best arm"].regret)},
        "signal": {
            f"{rate:.1f}": {reward: signal(rate, BLOCK, reward) for reward in ("be", "bd")}
            for rate in (0.3, 0.5, 0.7, 0.9)
        },
    }


def share_ratio(beta: float, rewards: tuple[str, str] = ("bd", "be"), num_answers: int = 2000) -> dict[str, Any]:
    """Rounds until UCB plays the best arm in 90 % of the answers with one reward and with another, and how many times
    as many the second takes, with a 95 % bootstrap interval over answers."""
    rates = SETTINGS["stationary"].segments[0]
    first, second = (
        regret_curve(rates, ucb_index(beta), budgets=[1500], reward=reward, num_answers=num_answers).is_best
        for reward in rewards
    )
    length = min(len(first), len(second))
    first, second = first[:length], second[:length]
    ratios = [
        rounds_to_share(second[:, rows]) / max(1, rounds_to_share(first[:, rows]))
        for rows in resampled(num_answers, num_draws=200)
    ]
    counts = {reward: rounds_to_share(played) for reward, played in zip(rewards, (first, second), strict=True)}
    ratio = rounds_to_share(second) / max(1, rounds_to_share(first))
    return counts | {"ratio": ratio, "ratio_interval": interval(np.asarray(ratios))}


def _paired(differences: NDArray[np.float64]) -> tuple[float, float, float]:
    mean = float(differences.mean())
    half = 1.96 * float(differences.std(ddof=1)) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return mean, mean - half, mean + half
