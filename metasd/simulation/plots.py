"""The suite as pictures."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from metasd.simulation.suite import BLOCK, PLAYERS, Report
from metasd.simulation.theory import signal

mpl.use("Agg")
from matplotlib import pyplot as plt

_SHOWN = ("auto", "ucb + bd (metasd-paper)", "ucb + be", "exp3 + bd", "hedge + cf", "sequential-halving + bd", "random")


def draw(report: Report, folder: Path) -> list[Path]:
    """Write the suite's pictures.

    Returns:
        their files: regret by policy, regret against B, best-arm share, feedback signal.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [_policies(report, folder), _regret(report, folder), _share(report, folder), _signal(folder)]


def _policies(report: Report, folder: Path) -> Path:
    figure, axes = plt.subplots(1, len(report.outcomes), figsize=(3.2 * len(report.outcomes), 5.5), sharey=True)
    names = [player.name for player in PLAYERS if player.name in next(iter(report.outcomes.values()))]
    for axis, setting in zip(np.atleast_1d(axes), report.outcomes, strict=True):
        found = [report.regret(setting, name) for name in names]
        means = [mean for mean, _, _ in found]
        colors = ["C3" if name == "auto" else "C0" if name.startswith("ucb + bd") else "0.6" for name in names]
        axis.barh(range(len(names)), means, xerr=[high - mean for mean, _, high in found], color=colors)
        axis.set_yticks(range(len(names)), names)
        axis.set_title(setting)
        axis.set_xlabel("regret in rounds")
        axis.axvline(0, color="black", linewidth=0.8)
    np.atleast_1d(axes)[0].invert_yaxis()
    return _saved(figure, folder / "policies.png")


def _regret(report: Report, folder: Path) -> Path:
    figure, axis = plt.subplots(figsize=(7, 4.5))
    for name, curve in report.curves.items():
        mean = curve.regret.mean(0)
        half = 1.96 * curve.regret.std(0, ddof=1) / len(curve.regret) ** 0.5
        axis.plot(curve.budgets, mean, marker="o", markersize=3, label=name)
        axis.fill_between(curve.budgets, mean - half, mean + half, alpha=0.2)
    axis.set_xscale("log")
    axis.set_yscale("symlog", linthresh=10)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("tokens B")
    axis.set_ylabel("stopping-time regret, rounds")
    axis.legend()
    return _saved(figure, folder / "regret.png")


def _share(report: Report, folder: Path) -> Path:
    figure, axes = plt.subplots(1, len(report.outcomes), figsize=(3.2 * len(report.outcomes), 3.6), sharey=True)
    for axis, (setting, table) in zip(np.atleast_1d(axes), report.outcomes.items(), strict=True):
        for name in _SHOWN:
            if name in table:
                share = table[name].best_share[:140]
                axis.plot(np.convolve(share, np.ones(8) / 8, mode="valid"), label=name)
        axis.set_title(setting)
        axis.set_xlabel("round")
    np.atleast_1d(axes)[0].set_ylabel("share of the best arm")
    np.atleast_1d(axes)[-1].legend(fontsize=7)
    return _saved(figure, folder / "best_arm_share.png")


def _signal(folder: Path) -> Path:
    figure, axis = plt.subplots(figsize=(6, 4))
    rates = np.linspace(0.05, 0.95, 60)
    for reward in ("bd", "be"):
        axis.plot(rates, [signal(rate, BLOCK, reward) for rate in rates], label=reward)
    axis.set_yscale("log")
    axis.set_xlabel("acceptance rate of the arm")
    axis.set_ylabel("(d mean / d rate)^2 / variance, a round")
    axis.legend()
    return _saved(figure, folder / "signal.png")


def _saved(figure: Figure, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
