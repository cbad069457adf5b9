"""Made-up worlds and the theory's curves: closed forms, growth; the arrays play what the shipped policies play."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from metasd.bandits import make_bandit
from metasd.cli import app
from metasd.core import UsageError
from metasd.simulation import SETTINGS, Setting, World, play
from metasd.simulation.suite import share_ratio
from metasd.simulation.theory import (
    mean_accepted,
    mean_be,
    regret_curve,
    signal,
    slope,
    ucb_index,
)

N = 5
RATES = [0.3, 0.5, 0.7, 0.9]


def means(setting: Setting, arm: int, num_tokens: int = 40_000) -> dict[str, float]:
    """Mean rewards of an arm over all starts of one long answer."""
    world = World(setting, num_tokens, seed=1, block=N)
    return {
        "bd": float(np.asarray(world.bd)[:, arm].mean()),
        "be": float(np.asarray(world.accepted)[:, arm].mean()) / N,
        "rb": float(np.asarray(world.rb)[:, arm].mean()),
    }


@pytest.mark.parametrize("is_greedy", [True, False])
@pytest.mark.parametrize("rate", RATES)
def test_expectations_are_the_closed_forms(rate: float, is_greedy: bool) -> None:
    """E[BD] = a, E[BE] = (a - a^(N+1)) / (N (1 - a)), E[RB] = E[N_acc]: 40,000 starts, standard errors below 0.004."""
    found = means(Setting("one", ((rate,),), is_greedy=is_greedy), 0)
    assert found["bd"] == pytest.approx(rate, abs=0.015)
    assert found["be"] == pytest.approx(mean_be(rate, N), abs=0.02)
    assert found["rb"] == pytest.approx(mean_accepted(rate, N), abs=0.08)


def test_signal_is_what_the_design_says() -> None:
    """MATH: BE 6.8 / 7.7 / 12.5 / 39.6, BD 23.8 / 20.0 / 23.8 / 55.6 at a = .3 / .5 / .7 / .9."""
    assert [round(signal(rate, N, "be"), 1) for rate in RATES] == [6.8, 7.7, 12.5, 39.6]
    assert [round(signal(rate, N, "bd"), 1) for rate in RATES] == [23.8, 20.0, 23.8, 55.6]


def test_a_drifting_world_drifts() -> None:
    world = World(Setting("two", ((0.9, 0.1), (0.1, 0.9)), segment_tokens=500), 1000, seed=2)
    bd = np.asarray(world.bd)
    assert bd[:480, 0].mean() > 0.8 > 0.2 > bd[520:1000, 0].mean()


def test_scores_are_those_of_the_free_arms_and_of_the_emitted_tokens() -> None:
    world = World(Setting("free", ((0.2, 0.5, 0.8),), free_arms=2), 50, seed=3)
    scores = world.scores(10, 3)
    assert set(scores) == {"arm1", "arm2"}
    for arm, each in scores.items():
        matches = 0
        while matches < 3 and each.overlap[matches]:
            matches += 1
        assert min(world.accepted[10][int(arm[-1])], 3) == matches


def test_regret_by_wald() -> None:
    """Reg = sum_i E[n_i] (mu* - mu_i) / (1 + mu*) for random play of two arms, within 4 standard errors."""
    curve = regret_curve([0.4, 0.7], None, budgets=[4000], num_answers=300)
    best, other = mean_accepted(0.7, N), mean_accepted(0.4, N)
    rounds = 4000 / (1 + (best + other) / 2)
    wanted = rounds / 2 * (best - other) / (1 + best)
    error = curve.regret[:, 0].std() / math.sqrt(300)
    assert curve.regret[:, 0].mean() == pytest.approx(wanted, abs=4 * error)


def test_growth_is_logarithmic_for_ucb_and_linear_for_another_arm() -> None:
    budgets = [500, 1000, 2000, 4000, 8000]
    ucb = regret_curve([0.4, 0.7], ucb_index(0.22), budgets=budgets, num_answers=300)
    fixed = regret_curve([0.4, 0.7], 0, budgets=budgets, num_answers=300)
    _, low, high = slope([math.log(budget) for budget in budgets], ucb.regret)
    assert low < high < 12
    last = ucb.regret.mean(0)
    assert last[-1] - last[-2] < 0.5 * last[-1]  # twice the tokens, far from twice the regret
    ratio = fixed.regret.mean(0)
    assert ratio[-1] / ratio[-2] == pytest.approx(2, abs=0.1)
    wanted = 1 / (1 + mean_accepted(0.4, N)) - 1 / (1 + mean_accepted(0.7, N))
    found, low, high = slope(budgets, fixed.regret)
    assert low - 1e-3 < wanted < high + 1e-3
    assert found == pytest.approx(wanted, rel=0.05)


def test_divergence_finds_the_best_arm_sooner_than_efficiency() -> None:
    for beta in (0.1, 0.22):
        found = share_ratio(beta)
        print(f"beta {beta}, rounds to 90 %: {found}")
        assert found["ratio_interval"][0] > 1
    assert share_ratio(0.22, rewards=("be", "be"))["ratio"] == 1  # the negative control


def test_arrays_play_what_the_shipped_policy_plays() -> None:
    """The same index on the same sums: the shipped UCB's choices, told to the array form round by round."""
    world = World(SETTINGS["stationary"], 400, seed=4)
    arms = world.setting.arms
    trace = play(
        make_bandit("ucb:beta=0.22,decay=1", (*arms, "null"), reward="bd", objective="tokens", num_draft_tokens=N),
        world,
    )
    index, total, count = ucb_index(0.22), np.zeros((1, len(arms))), np.zeros((1, len(arms)))
    token = 0
    for t, (arm, end) in enumerate(zip(trace.arms, trace.tokens, strict=True)):
        assert arm == (t if t < len(arms) else int(index(total / count, count, t).argmax(-1)[0]))
        total[0, arm] += world.bd[token][arm]
        count[0, arm] += 1
        token = end


def test_forgetting_policies_recover_after_a_change() -> None:
    """The best arm turns the worst after 600 tokens: in the last 60 rounds they play the new best arm more than UCB."""
    setting = Setting("turn", ((0.8, 0.4), (0.3, 0.5)), segment_tokens=600)
    shares = {}
    for spec in ("ucb", "discounted-ucb", "sliding-ucb", "auto", "fixed:arm=arm0"):
        hits = 0.0
        for seed in range(20):
            bandit = make_bandit(spec, ("arm0", "arm1", "null"), reward="bd", objective="tokens", num_draft_tokens=N)
            hits += np.mean(np.asarray(play(bandit, World(setting, 900, seed)).arms[-60:]) == 1)
        shares[spec] = hits / 20
    print(shares)
    for spec in ("discounted-ucb", "sliding-ucb", "auto"):
        assert shares[spec] > shares["ucb"] + 0.1
    assert shares["fixed:arm=arm0"] == 0


def test_halving_is_ahead_where_a_switch_is_dear() -> None:
    """40 answers; the difference to UCB is several standard errors; without a price there is none to speak of."""
    difference = {}
    for name in ("switching-cost", "stationary"):
        setting, both = SETTINGS[name], []
        for spec in ("sequential-halving", "ucb"):
            seconds = [
                play(
                    make_bandit(spec, (*setting.arms, "null"), reward="bd", objective="tokens", num_draft_tokens=N),
                    World(setting, 400, seed),
                ).seconds
                for seed in range(40)
            ]
            both.append(np.asarray(seconds))
        difference[name] = both[0] - both[1]
    error = difference["switching-cost"].std() / math.sqrt(40)
    assert difference["switching-cost"].mean() < -3 * error
    assert difference["switching-cost"].mean() < difference["stationary"].mean() - 10


def test_command(tmp_path: Path) -> None:
    """A small run: every policy and setting in the JSON, pictures that are not blank."""
    plt = pytest.importorskip("matplotlib.pyplot")
    command = [
        "simulate",
        "--answers",
        "3",
        "--tokens",
        "60",
        "--plots",
        str(tmp_path),
        "--json",
        str(tmp_path / "s.json"),
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "s.json").read_text())
    assert set(facts["regret"]) == set(SETTINGS)
    assert all("auto" in table and "random" in table for table in facts["regret"].values())
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == ["best_arm_share.png", "policies.png", "regret.png", "signal.png"]
    for name in pictures:
        assert plt.imread(tmp_path / name)[..., :3].std() > 0.02


@pytest.mark.parametrize("segments", [(), ((),), ((0.5, 1.2),), ((0.5,), (0.5, 0.6))])
def test_wrong_settings(segments: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(UsageError, match="segments: expected"):
        Setting("wrong", segments)


def test_unknown_suite() -> None:
    result = CliRunner().invoke(app, ["simulate", "--suite", "best"])
    assert isinstance(result.exception, UsageError)
    assert "suite: expected one of paper, got 'best'" in str(result.exception)
