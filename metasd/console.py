"""What the commands print with: two consoles, a progress bar, a JSON file."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.status import Status

from metasd.core import MetaSDError

out, err = Console(), Console(stderr=True)

TargetOption = Annotated[
    str, typer.Option(help='Target: "demo", a folder, or a hub id of a causal transformers model.')
]
DraftersOption = Annotated[
    str, typer.Option(help="The pool: names, folders or hub ids, separated by commas; options as name:key=value.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
DtypeOption = Annotated[str, typer.Option(help="auto (the checkpoint's), float32, bfloat16 or float16.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write everything that is printed to this file.")]


def line(text: str) -> None:
    """A line on standard output, as it is."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def status(text: str) -> Status:
    """A line that shows that something goes on."""
    return err.status(text)


def progress() -> Progress:
    """A bar that goes away when it is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=err, transient=True)


class Bars:
    """A bar for each stage that reports."""

    def __init__(self) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self._progress = Progress(*columns, TextColumn("{task.fields[note]}"), console=err)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._progress.stop()

    def advance(self, stage: str, done: int, total: int, note: str) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, note=note)
        self._progress.update(self._tasks[stage], completed=done, total=total, note=note)


@contextmanager
def log_to(shown: Status) -> Iterator[None]:
    """Show the packages' log lines above the status line."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.console.print(record.getMessage(), markup=False, highlight=False)

    logger, handler = logging.getLogger("metasd"), Handler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def write_json(path: Path | None, facts: dict[str, Any]) -> None:
    """Write what was printed, where a file was asked for.

    Raises:
        MetaSDError: it cannot be written.
    """
    write_text(path, json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "--json")


def write_text(path: Path | None, text: str, option: str) -> None:
    """Write a text, where a file was asked for by this option.

    Raises:
        MetaSDError: it cannot be written.
    """
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MetaSDError(f"{option}: cannot write {str(path)!r}: {error.strerror}") from None
