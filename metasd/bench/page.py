"""A run as one HTML file: no script, no network, readable on a phone, in the light and in the dark."""

from html import escape
from pathlib import Path
from string import Template

from metasd.bench.outcome import Outcome
from metasd.bench.plots import Plot, draw
from metasd.bench.statistics import OVERALL, Estimate
from metasd.bench.systems import PLAIN
from metasd.bench.tables import label, round_cells, with_interval
from metasd.core import MetaSDError

_TEMPLATE = Path(__file__).with_name("page.html")
_ROUND_COLUMNS = (
    "tokens a step", "accepted", "by position", "bd", "switches", "catch-up", "overhead", "best arm"
)  # fmt: skip


def write_page(outcome: Outcome, path: Path) -> None:
    """Write the report.

    Raises:
        MetaSDError: it cannot be written.
    """
    try:
        path.write_text(page(outcome), encoding="utf-8")
    except OSError as error:
        raise MetaSDError(f"--html: cannot write {str(path)!r}: {error.strerror}") from None


def page(outcome: Outcome) -> str:
    """The report's text."""
    passport = outcome.passport
    facts = {
        "command": passport.get("command"),
        "commit": passport.get("commit") or "not a checkout",
        "device": f"{passport.get('device')}, {passport.get('threads')} threads",
        "precision": passport.get("dtype"),
        "versions": ", ".join(f"{name} {version}" for name, version in passport.get("versions", {}).items()),
        **outcome.settings,
        "repetitions": outcome.plan.repetitions,
        "tokens of an answer": f"at most {outcome.plan.max_new_tokens}",
        "temperature": outcome.plan.temperature,
    }
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        cards="\n".join(_cards(outcome)),
        verdict="passed" if outcome.verdict.is_passed else "failed",
        verdict_line=escape(outcome.verdict.line()),
        plots="\n".join(_figure(plot) for plot in draw(outcome)),
        speed=_speed_table(outcome),
        rounds=_round_table(outcome),
        notes="\n".join(f"<li>{escape(note)}</li>" for note in outcome.notes()),
        passport="\n".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items()),
    )


def _cards(outcome: Outcome) -> list[str]:
    """The fastest systems, in large figures."""
    cells = outcome.table[OVERALL]
    names = [name for name in cells if name != PLAIN and cells[name].speed_up is not None]
    names.sort(key=lambda name: -_value(cells[name].speed_up))
    cards = []
    for name in names[:3]:
        estimate = cells[name].speed_up
        assert estimate is not None
        between = f"{estimate.interval[0]:.2f} to {estimate.interval[1]:.2f}" if estimate.interval else "one prompt"
        cards.append(
            f'<div class="card"><b>{estimate.value:.2f}&times;</b><span>{escape(label(name, cells[name]))}</span>'
            f"<small>{between}</small></div>"
        )
    plain = cells[PLAIN].tokens_per_second
    cards.append(f'<div class="card"><b>{plain:.1f}</b><span>tokens/s, plain</span><small>= 1&times;</small></div>')
    return cards


def _figure(plot: Plot) -> str:
    return (
        f'<figure id="plot-{plot.name}" class="plot"><h3>{escape(plot.title)}</h3>{plot.svg}'
        f"<figcaption>{escape(plot.caption)}</figcaption></figure>"
    )


def _speed_table(outcome: Outcome) -> str:
    groups = list(outcome.table)
    names = list(dict.fromkeys(name for cells in outcome.table.values() for name in cells))
    rows = []
    for name in names:
        cells = [outcome.table[group].get(name) for group in groups]
        whole = outcome.table[OVERALL].get(name)
        values = [with_interval(cell.speed_up) if cell else "-" for cell in cells]
        values.append(f"{whole.tokens_per_second:.1f}" if whole else "-")
        rows.append(_row(label(name, whole), values))
    return _table(("system", *groups, "tokens/s"), rows)


def _round_table(outcome: Outcome) -> str:
    cells = outcome.table[OVERALL]
    rows = [
        _row(label(name, cell), [*round_cells(cell), with_interval(cell.over_oracle)]) for name, cell in cells.items()
    ]
    return _table(("system", *_ROUND_COLUMNS, "over oracle"), rows)


def _row(name: str, values: list[str]) -> str:
    return f"<tr><th>{escape(name)}</th>" + "".join(f"<td>{escape(value)}</td>" for value in values) + "</tr>"


def _table(heads: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _value(estimate: Estimate | None) -> float:
    return estimate.value if estimate is not None else 0.0
