"""A run as pictures: SVG whose colours are the page's, so that it is readable in the light and in the dark."""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from metasd.bench.outcome import Outcome
from metasd.bench.statistics import OVERALL, SINGLE, Cell
from metasd.bench.systems import ORACLE, PLAIN
from metasd.core import NULL_ARM

NUM_COLORS = 8
WIDTH = 4.6  # inches; a phone shows 10 pt of it as about 9 px
_MAX_POLICIES, _MAX_SINGLES = 6, 4
_TEXT, _LINE, _MUTED = "#010203", "#010204", "#010205"
_COLORS = [f"#0102{16 + index:02x}" for index in range(NUM_COLORS)]
# Placeholders in the picture, and what the page has for them.
_PAGE_COLORS = {
    _TEXT: "currentColor",
    _LINE: "var(--line)",
    _MUTED: "var(--muted)",
    **{color: f"var(--c{index})" for index, color in enumerate(_COLORS)},
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "axes.titlecolor": _TEXT,
    "axes.edgecolor": _LINE,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _LINE,
    "ytick.color": _LINE,
    "xtick.labelcolor": _TEXT,
    "ytick.labelcolor": _TEXT,
    "grid.color": _LINE,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@dataclass(frozen=True)
class Plot:
    """A picture of the report.

    Attributes:
        name: unique, for links and tests.
        title, caption: words around it.
        svg: an `<svg>` element without a size of its own.
    """

    name: str
    title: str
    caption: str
    svg: str


def draw(outcome: Outcome) -> list[Plot]:
    """The report's pictures; those for which a run has nothing are left out."""
    with mpl.rc_context(_STYLE):
        plots = [_speed(outcome, group) for group in _groups(outcome)]
        shares, rewards = outcome.shares(), outcome.rewards()
        colors = _arm_colors(outcome)
        plots += [_arms(outcome, system, colors) for system in list(shares)[:_MAX_POLICIES]]
        if any(curve.rounds for curve in rewards.values()):
            plots.append(_rewards(outcome))
        if _drafting(outcome):
            plots.append(_positions(outcome))
    return plots


def _groups(outcome: Outcome) -> list[str]:
    """Overall first; a run of one domain has nothing else to say."""
    domains = [group for group in outcome.table if group != OVERALL]
    return [OVERALL, *(domains if len(domains) > 1 else [])]


def _speed(outcome: Outcome, group: str) -> Plot:
    """A dot for each system with its interval, the fastest on top."""
    cells = {name: cell for name, cell in outcome.table[group].items() if cell.speed_up is not None and name != PLAIN}
    names = sorted(cells, key=lambda name: _speed_up(cells[name]))
    figure, axes = _figure(0.8 + 0.27 * max(len(names), 1))
    for height, name in enumerate(names):
        estimate = cells[name].speed_up
        assert estimate is not None
        color = _MUTED if name.startswith(SINGLE) else _COLORS[2] if name == ORACLE else _COLORS[0]
        low, high = estimate.interval or (estimate.value, estimate.value)
        axes.plot([low, high], [height, height], color=color, linewidth=2.2, solid_capstyle="round")
        axes.plot(estimate.value, height, "o", color=color, markersize=5.5)
    axes.axvline(1, color=_TEXT, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(names)), [name + (" *" if cells[name].is_replayed else "") for name in names])
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", linewidth=0.5)
    axes.set_xlabel("times plain decoding")
    count = next(iter(outcome.table[group].values())).num_prompts
    text = f"{count} prompts; the dashed line is plain decoding. Bars: 95 % intervals, paired bootstrap over prompts."
    return _plot(figure, f"speed-{group}", f"Speed-up: {group}", text)


def _arms(outcome: Outcome, system: str, colors: Mapping[str, str]) -> Plot:
    """Which arms are played, round by round of an answer."""
    shares = outcome.shares()[system]
    groups: dict[str, list[float]] = {}
    for arm, values in shares.share.items():
        group = arm if arm in colors else "other arms"
        groups[group] = [a + b for a, b in zip(groups.get(group, [0.0] * len(values)), values, strict=True)]
    figure, axes = _figure(3.4)
    edges = [*shares.first_round, shares.first_round[-1] + 4]
    axes.stackplot(
        edges,
        [[*values, values[-1]] for values in groups.values()],
        colors=[colors.get(arm, _LINE) for arm in groups],
        labels=list(groups),
        step="post",
        linewidth=0,
    )
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round of the answer")
    axes.set_ylabel("share of the answers")
    _legend_below(figure, 2)
    return _plot(figure, f"arms-{system}", f"Arms played: {system}", "Over all answers that last as long.")


def _rewards(outcome: Outcome) -> Plot:
    figure, axes = _figure(3.4)
    for index, (system, curve) in enumerate(list(outcome.rewards().items())[:NUM_COLORS]):
        axes.plot(curve.rounds, curve.values, color=_COLORS[index], label=system, linewidth=1.8)
    axes.set_xlabel("round of the run")
    axes.set_ylabel("cumulative reward")
    axes.grid(linewidth=0.5)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    _legend_below(figure, 3)
    text = "Block divergence (1 minus the distance of the laws) added up over rounds, one answer after the other."
    return _plot(figure, "reward", "Cumulative reward", text)


def _positions(outcome: Outcome) -> Plot:
    """Acceptance falls with the place in the block: how fast, by system."""
    figure, axes = _figure(3.4)
    cells = outcome.table[OVERALL]
    for index, name in enumerate(_drafting(outcome)):
        values = cells[name].acceptance_by_position or ()
        style = (0, (3, 2)) if name.startswith(SINGLE) else "-"
        places = range(1, len(values) + 1)
        color = _COLORS[index % NUM_COLORS]
        axes.plot(places, values, color=color, marker="o", markersize=3.5, linestyle=style, label=name)
    axes.set_xlabel("place in the block")
    axes.set_ylabel("accepted")
    axes.set_ylim(0, 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(linewidth=0.5)
    _legend_below(figure, 2)
    text = "Share of the drafts that reach a place whose token there was accepted. Dashed: a drafter alone."
    return _plot(figure, "positions", "Acceptance by position", text)


def _drafting(outcome: Outcome) -> list[str]:
    """Policies, and the drafters alone with the longest acceptance."""
    cells = {name: cell for name, cell in outcome.table[OVERALL].items() if cell.acceptance_by_position}
    singles = sorted(
        (name for name in cells if name.startswith(SINGLE)), key=lambda name: -(cells[name].acceptance_length or 0.0)
    )
    others = [name for name in cells if not name.startswith(SINGLE)]
    return [*others[: NUM_COLORS - _MAX_SINGLES], *singles[:_MAX_SINGLES]]


def _arm_colors(outcome: Outcome) -> dict[str, str]:
    """One colour for an arm in all pictures; those that are played least share one."""
    counts: dict[str, int] = {}
    for system in outcome.policies:
        for row in outcome.rows_of(system):
            for record in row.answer.rounds:
                counts[record.arm] = counts.get(record.arm, 0) + 1
    arms = sorted((arm for arm in counts if arm != NULL_ARM), key=lambda arm: -counts[arm])[:NUM_COLORS]
    return {NULL_ARM: _MUTED, **dict(zip(arms, _COLORS, strict=False))}


def _speed_up(cell: Cell) -> float:
    return cell.speed_up.value if cell.speed_up is not None else 0.0


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.add_subplot()
    axes.patch.set_visible(False)
    return figure, axes


def _legend_below(figure: Figure, columns: int) -> None:
    figure.legend(loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=1.4)


def _plot(figure: Figure, name: str, title: str, caption: str) -> Plot:
    name = re.sub(r"[^A-Za-z0-9]+", "-", name)
    return Plot(name, title, caption, _svg(figure, name))


def _svg(figure: Figure, name: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    head, rest = text.split(">", 1)
    view_box = re.search(r'viewBox="([^"]+)"', head)
    assert view_box is not None
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    for before, after in (('id="', f'id="{name}-'), ("url(#", f"url(#{name}-"), ('href="#', f'href="#{name}-')):
        rest = rest.replace(before, after)  # ids of all pictures share one page
    for placeholder, color in _PAGE_COLORS.items():
        rest = rest.replace(placeholder, color)
    rest = re.sub(r"(font: [^';\"]*px )[^;\"]*", r"\1system-ui, sans-serif", rest)
    return f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{view_box.group(1)}" role="img">{rest.strip()}'
