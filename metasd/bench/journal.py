"""A run's measurements as they come, one JSON line each, so that a run goes on where it was stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metasd.bench.answers import Answer, Row
from metasd.core import MetaSDError, refuse

Key = tuple[str, str, int, int | None]


class Journal:
    """Rows by their key, in a file or only in memory.

    Args:
        path: JSONL; its first line holds the facts. None: nothing is written.
        facts: what must be the same for rows to be comparable: models, versions, lengths, the prompts.
        is_resumed: whether rows that are there already are taken over.

    Attributes:
        rows: by key, in the order in which they were measured.
        states: what each system had learned behind its last row of a repetition, by system, repetition and seed.

    Raises:
        UsageError: the file is there though the run is not a resumed one; or its facts are others.
        MetaSDError: the file cannot be read or written.
    """

    def __init__(self, path: Path | None, facts: Mapping[str, Any], is_resumed: bool = False) -> None:
        self._path = path
        self.rows: dict[Key, Row] = {}
        self.states: dict[tuple[str, int, int | None], dict[str, Any]] = {}
        if path is None:
            return
        try:
            if path.exists() and path.stat().st_size:
                if not is_resumed:
                    raise refuse("--journal", "a file that is not there yet, or --resume", repr(path.name))
                self._read(path, facts)
            else:
                path.write_text(json.dumps({"facts": facts}) + "\n", encoding="utf-8")
        except OSError as error:
            raise MetaSDError(f"--journal: cannot open {str(path)!r}: {error.strerror}") from None

    def add(self, row: Row, state: dict[str, Any] | None) -> None:
        """Keep a measurement, and what its system has learned so far."""
        self._take(row, state)
        if self._path is None:
            return
        line: dict[str, Any] = {"key": row.key, "domain": row.domain, "answer": row.answer.to_json(), "state": state}
        if row.replayed:
            line["replayed"] = True
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise MetaSDError(f"--journal: cannot write {str(self._path)!r}: {error.strerror}") from None

    def _take(self, row: Row, state: dict[str, Any] | None) -> None:
        self.rows[row.key] = row
        if state is not None:
            self.states[row.system, row.repetition, row.seed] = state

    def _read(self, path: Path, facts: Mapping[str, Any]) -> None:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # a run that was killed may leave half a line
        lines = whole.splitlines()
        try:
            found = json.loads(lines[0])["facts"]
            rows = [_row(json.loads(line)) for line in lines[1:]]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise refuse("--journal", "a file that `metasd bench` wrote", f"{path.name!r} ({error!r})") from None
        for name, value in json.loads(json.dumps(facts)).items():
            if found.get(name) != value:
                raise refuse(f"--resume, {name}", f"{found.get(name)!r} as in {path.name!r}", repr(value))
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        for row, state in rows:
            self._take(row, state)


def _row(entry: Mapping[str, Any]) -> tuple[Row, dict[str, Any] | None]:
    system, prompt_id, repetition, seed = entry["key"]
    answer = Answer.from_json(entry["answer"])
    row = Row(system, prompt_id, repetition, seed, entry["domain"], answer, entry.get("replayed", False))
    return row, entry["state"]
