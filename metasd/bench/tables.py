"""A run in the terminal."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from metasd.bench.outcome import Outcome
from metasd.bench.statistics import OVERALL, Cell, Estimate


def speed_table(outcome: Outcome) -> Table:
    """Multiples of plain's rate, by domain and overall; the fastest of each column in bold."""
    shown = Table(title="times plain decoding")
    shown.add_column("system", no_wrap=True)
    for group in outcome.table:
        shown.add_column(group, justify="right", no_wrap=group == OVERALL)
    shown.add_column("tokens/s", justify="right")
    best = {group: max(cells, key=lambda name: _value(cells[name].speed_up)) for group, cells in outcome.table.items()}
    names = list(dict.fromkeys(name for cells in outcome.table.values() for name in cells))
    for name in names:
        row = []
        for group, cells in outcome.table.items():
            estimate = cells[name].speed_up if name in cells else None
            text = with_interval(estimate, dim=True) if group == OVERALL else _short(estimate)
            row.append(f"[bold]{text}[/bold]" if best[group] == name else text)
        whole = outcome.table[OVERALL].get(name)
        shown.add_row(label(name, whole), *row, f"{whole.tokens_per_second:.1f}" if whole else "-")
    shown.caption = "in brackets: 95 % interval, paired bootstrap over prompts; the first forward pass is left out"
    return shown


def round_table(outcome: Outcome) -> Table:
    """What the rounds tell, over all prompts."""
    shown = Table(title="rounds, over all prompts", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("system", no_wrap=True)
    for column in (
        "length", "rate", "by position", "bd", "switch", "catch", "over", "best", "/oracle"
    ):  # fmt: skip
        shown.add_column(column, justify="right", no_wrap=True)
    for name, cell in outcome.table[OVERALL].items():
        shown.add_row(label(name, cell), *round_cells(cell), _short(cell.over_oracle))
    shown.caption = (
        "length: tokens a step, bonus included; rate: accepted of drafted tokens; switch: of arms, an answer; catch, "
        "over: shares of the time, catching up and overhead; best: rounds of the oracle's arm; /oracle: times its speed"
    )
    return shown


def round_cells(cell: Cell) -> list[str]:
    """A cell's numbers as text, "-" where it has none."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.0%}"

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    positions = " ".join(f"{value:.2f}".removeprefix("0") for value in (cell.acceptance_by_position or ())[:3])
    return [
        number(cell.acceptance_length),
        share(cell.acceptance_rate),
        positions or "-",
        number(cell.block_divergence),
        "-" if cell.switches is None else f"{cell.switches:.1f}",
        share(cell.catch_up_share),
        share(cell.overhead_share),
        share(cell.best_arm_share),
    ]


def with_interval(estimate: Estimate | None, dim: bool = False) -> str:
    """A multiple and its interval."""
    if estimate is None:
        return "-"
    if estimate.interval is None:
        return f"{estimate.value:.2f}"
    low, high = estimate.interval
    text = f"({low:.2f} {high:.2f})"
    return f"{estimate.value:.2f} " + (f"[dim]{text}[/dim]" if dim else text)


def label(name: str, cell: Cell | None) -> str:
    """A system's name; replayed ones are marked."""
    return f"{name} (replayed)" if cell is not None and cell.is_replayed else name


def _short(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.2f}"


def _value(estimate: Estimate | None) -> float:
    return estimate.value if estimate is not None else 0.0
