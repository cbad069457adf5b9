"""`metasd simulate`: every policy in made-up worlds, without a model."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from metasd.console import Bars, JsonOption, out, write_json
from metasd.core import MetaSDError, jsonable, refuse
from metasd.simulation.suite import REFERENCE, Report, run_suite

SUITES = ("paper",)


def simulate(
    suite: Annotated[str, typer.Option(help=f"One of {', '.join(SUITES)}.")] = "paper",
    answers: Annotated[int, typer.Option(min=2, help="Answers in each setting; the same ones for every policy.")] = 60,
    tokens: Annotated[int, typer.Option(min=20, help="B, the tokens of an answer.")] = 400,
    plots: Annotated[Path | None, typer.Option(help="Folder for pictures (PNG); needs matplotlib.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Stopping-time regret of every policy in made-up worlds, and the theory beside it."""
    if suite not in SUITES:
        raise refuse("suite", f"one of {', '.join(SUITES)}", repr(suite))
    with Bars() as bars:
        report = run_suite(answers, tokens, advance=bars.advance)
    out.print(_table(report))
    for text in _lines(report):
        out.print(text, highlight=False)
    if plots is not None:
        try:
            from metasd.simulation.plots import draw
        except ImportError as error:
            raise MetaSDError(f'--plots: {error.name} is missing: pip install "metasd[plots]"') from None
        for path in draw(report, plots):
            out.print(f"wrote {path}", highlight=False)
    write_json(json_file, facts_of(report, answers, tokens))


def facts_of(report: Report, answers: int, tokens: int) -> dict[str, Any]:
    """The report in plain JSON types."""
    return {
        "answers": answers,
        "tokens": tokens,
        "regret": {
            setting: {
                name: {
                    "regret": report.regret(setting, name),
                    "against_ucb_bd": report.against(setting, name),
                    "num_switches": outcome.num_switches,
                    "best_share": outcome.best_share.round(4).tolist(),
                }
                for name, outcome in table.items()
            }
            for setting, table in report.outcomes.items()
        },
        "curves": {
            name: {"budgets": curve.budgets, "regret": curve.regret.mean(0).tolist()}
            for name, curve in report.curves.items()
        },
        "facts": jsonable(report.facts),
        "steps_a_minute": report.steps_a_minute,
    }


def _table(report: Report) -> Table:
    table = Table(title="stopping-time regret: rounds beyond the best fixed arm's, on the same answers")
    table.add_column("policy", min_width=23)
    for setting in report.outcomes:
        table.add_column(setting, justify="right")
    players = list(next(iter(report.outcomes.values())))
    best = {setting: min(players, key=lambda name: report.regret(setting, name)[0]) for setting in report.outcomes}
    for name in players:
        cells = []
        for setting in report.outcomes:
            mean, low, _ = report.regret(setting, name)
            text = f"{mean:.1f} ± {mean - low:.1f}"
            cells.append(f"[bold]{text}[/bold]" if best[setting] == name else text)
        table.add_row(name, *cells)
    table.caption = "means with 95 % intervals over answers; negative where the best arm changes within the answer"
    return table


def _lines(report: Report) -> list[str]:
    facts = report.facts
    growth = facts["rounds_per_ln_b"]["ucb + bd"]
    linear = facts["rounds_per_b"]["second-best arm"]
    against = {setting: report.against(setting, "auto") for setting in report.outcomes}
    return [
        *(
            f"UCB, beta {beta}, plays the best arm in 90 % of the answers after {share['bd']} rounds by bd, "
            f"{share['be']} by be: {share['ratio']:.2f} times as many "
            f"({share['ratio_interval'][0]:.2f} to {share['ratio_interval'][1]:.2f})"
            for beta, share in facts["rounds_to_90_percent"].items()
        ),
        f"regret of ucb + bd grows by {growth[0]:.2f} rounds per ln B ({growth[1]:.2f} to {growth[2]:.2f}); of the "
        f"second-best arm by {1000 * linear[0]:.1f} per 1000 tokens ({1000 * linear[1]:.1f} to {1000 * linear[2]:.1f})",
        f"auto against {REFERENCE}, rounds: "
        + ", ".join(f"{name} {mean:+.1f} ({low:+.1f} to {high:+.1f})" for name, (mean, low, high) in against.items()),
        f"{report.steps_a_minute / 1e6:.1f} million policy steps a minute on one core",
    ]
