"""How many compared rows of the verify op were inside the tie band: counted in each process, printed at the end."""

from typing import Any

import pytest

TIES = pytest.StashKey[dict[str, int]]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """With several processes the counts come home with each that ends."""
    total = node.config.stash.setdefault(TIES, {"rows": 0, "ties": 0})
    for name, count in getattr(node, "workeroutput", {}).get("ties", {}).items():
        total[name] += count


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        counts = session.config.stash.get(TIES, {})
        session.config.workeroutput["ties"] = {name: int(count) for name, count in counts.items()}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = terminalreporter.config.stash.get(TIES, None)
    if counts and counts["rows"]:
        share = counts["ties"] / counts["rows"]
        terminalreporter.write_line(f"tie band: {counts['ties']} of {counts['rows']} compared rows ({share:.3%})")
