"""`metasd matrix DATA`: which drafter suits which domain, and what choosing could gain at most."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from metasd.console import Bars, DeviceOption, DraftersOption, JsonOption, TargetOption, log_to, out, status, write_json
from metasd.core import NULL_ARM, MetaSDError
from metasd.drafters import Drafter, load_drafters
from metasd.matrix import Ceiling, Cell, TokenRecord, ceiling, matrix, score_answer
from metasd.target import Target
from metasd.training.answers import Answer, read_answers
from metasd.training.distill import distill, is_prompt_file

GENERALIST = "generalist"


def matrix_command(
    data: Annotated[Path, typer.Argument(help="JSONL, also gzipped: prompts, which the target answers, or answers.")],
    target: TargetOption = "demo",
    drafters: DraftersOption = "demo",
    domain: Annotated[
        list[str] | None,
        typer.Option(help="A row, also for domains that begin with it and a dash; may be given often."),
    ] = None,
    work: Annotated[Path, typer.Option(help="Folder for the answers, which later runs use again.")] = Path("matrix"),
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Prompts only: tokens of an answer.")] = 128,
    both: Annotated[bool, typer.Option(help="Prompts only: answer each greedily and at temperature 0.7.")] = True,
    log: Annotated[Path | None, typer.Option(help="Write (min(1, q/p), 1 - TV) of each token and arm, JSONL.")] = None,
    device: DeviceOption = "auto",
    json_file: JsonOption = None,
) -> None:
    """Acceptance of a first draft token by domain and drafter, teacher-forced on the target's own answers."""
    with status(f"loading {target}") as shown, log_to(shown):
        loaded = Target.load(target, device=device)
        arms = {name: arm for name, arm in load_drafters(drafters, loaded).items() if name != NULL_ARM}
    domains = tuple(domain or ())
    with Bars() as bars:
        answers_file = data
        if is_prompt_file(data):
            answers_file = work / f"{data.name.split('.')[0]}-answers.jsonl"
            distill(loaded, data, answers_file, domains, max_new_tokens=max_new_tokens, both=both, advance=bars.advance)
        answers = [_in_row(answer, domains) for answer in read_answers(answers_file, loaded.vocab_size, domains)]
        records: list[TokenRecord] = []
        for done, answer in enumerate(answers, start=1):
            records += score_answer(loaded, arms, answer)
            bars.advance("scoring", done, len(answers), answer.domain)
    _write_log(log, records)
    families = {name: type(arm).__name__.removesuffix("Drafter") for name, arm in arms.items()}
    table = matrix(records, families)
    ceilings = _ceilings(table, families)
    out.print(_table(table, arms, families))
    for family, found in ceilings.items():
        over = "" if found.over_generalist is None else f", {found.over_generalist:.3f} x the generalist"
        out.print(
            f"{family}: an oracle that knows the domain accepts {found.oracle:.3f}: {found.over_best_fixed:.3f} x the "
            f"best fixed arm ({found.best_fixed}){over}",
            highlight=False,
        )
    facts = {
        "answers": len(answers),
        "matrix": {row: {arm: asdict(cell) for arm, cell in cells.items()} for row, cells in table.items()},
        "ceilings": {family: asdict(found) for family, found in ceilings.items()},
    }
    write_json(json_file, facts)


def _in_row(answer: Answer, domains: Sequence[str]) -> Answer:
    for name in domains:
        if answer.domain == name or answer.domain.startswith(f"{name}-"):
            return replace(answer, domain=name)
    return answer


def _ceilings(table: Mapping[str, Mapping[str, Cell]], families: Mapping[str, str]) -> dict[str, Ceiling]:
    """One for each family with more than one arm."""
    found = {}
    for family in dict.fromkeys(families.values()):
        arms = [arm for arm in families if families[arm] == family]
        if len(arms) > 1:
            generalist = next((arm for arm in arms if GENERALIST in arm), None)
            found[family] = ceiling(table, arms, generalist)
    return found


def _table(table: Mapping[str, Mapping[str, Cell]], arms: Mapping[str, Drafter], families: Mapping[str, str]) -> Table:
    shown = Table(title="probability that a first draft token is accepted; best of its family in bold")
    shown.add_column("drafter")
    for row in table:
        shown.add_column(row, justify="right")
    for arm in arms:
        shown.add_row(arm, *(_cell(table[row][arm], table[row], families, arm) for row in table))
    shown.caption = "in brackets: 95 % interval of what the family's best has more (paired bootstrap over answers)"
    return shown


def _cell(cell: Cell, row: Mapping[str, Cell], families: Mapping[str, str], arm: str) -> str:
    if cell.mean == max(row[other].mean for other in row if families[other] == families[arm]):
        return f"[bold]{cell.mean:.3f}[/bold]"
    low, high = cell.behind_best
    return f"{cell.mean:.3f} [dim]({low:+.3f} {high:+.3f})[/dim]"


def _write_log(path: Path | None, records: Sequence[TokenRecord]) -> None:
    if path is None:
        return
    rounded: dict[str, Any]
    try:
        with path.open("w") as file:
            for record in records:
                rounded = asdict(record)
                scores = rounded.pop("scores")
                rounded |= {name: [round(value, 5) for value in values] for name, values in scores.items()}
                file.write(json.dumps(rounded) + "\n")
    except OSError as error:
        raise MetaSDError(f"--log: cannot write {str(path)!r}: {error.strerror}") from None
