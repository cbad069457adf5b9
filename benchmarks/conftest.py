"""What the benchmarks share: red tests stop them, memory for the logits, and the table at the end."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from passport import passport
from rich.console import Console
from rich.table import Table
from workloads import GIB, Shape, Workload, make_workload

ROOT = Path(__file__).parent.parent
ROWS, GOALS = pytest.StashKey[list[dict[str, Any]]](), pytest.StashKey[list[str]]()
QUICK_FILE = "tests/kernels/test_verify_contract.py"
QUICK_TESTS = "agrees_with_the_oracle or without_tv or odd_strides"


@pytest.fixture(scope="session", autouse=True)
def _green_tests() -> None:
    """No speed without exactness."""
    kind = "cuda" if torch.cuda.is_available() else "native-cpu"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", QUICK_FILE]
    command += ["-k", f"({QUICK_TESTS}) and {kind}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.exit(f"the op's tests are red, nothing is measured:\n{result.stdout[-3000:]}", returncode=1)


@pytest.fixture(scope="session")
def workload_of() -> Callable[[Shape, str], Workload]:
    """The workload of a shape and an acceptance; only the last one is good, since all use the same memory."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    memory, last = torch.empty(GIB, dtype=torch.uint8, device=device), dict[tuple[Shape, str], Workload]()

    def workload(shape: Shape, acceptance: str) -> Workload:
        if (shape, acceptance) not in last:
            last.clear()
            last[shape, acceptance] = make_workload(shape, acceptance, memory)
        return last[shape, acceptance]

    return workload


@pytest.fixture(scope="session")
def read_us() -> dict[str, float]:
    """Microseconds to read the bytes of a shape once, measured when the first row needs it."""
    return {}


@pytest.fixture(scope="session")
def rows(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return request.config.stash.setdefault(ROWS, [])


@pytest.fixture(scope="session")
def goals(request: pytest.FixtureRequest) -> list[str]:
    return request.config.stash.setdefault(GOALS, [])


def pytest_benchmark_update_json(config: pytest.Config, benchmarks: Any, output_json: dict[str, Any]) -> None:
    output_json["passport"], output_json["goals"] = passport(), config.stash.get(GOALS, [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash.get(ROWS, [])
    console = Console(file=terminalreporter._tw._file, width=120)
    if rows:
        console.print(table_of(rows))
    for line in config.stash.get(GOALS, []):
        console.print(f"goal: {line}")
    if rows:
        console.print(passport())


def table_of(rows: list[dict[str, Any]]) -> Table:
    """Each row with its time as a multiple of ours: with TV where the peer computes it, without where it does not."""
    table = Table(title="microseconds a call, median")
    for name in ("shape", "accepted", "mode", "peer", "us", "times ours", "times reading", "launches"):
        table.add_column(name, justify="right" if name in ("us", "times ours", "times reading", "launches") else "left")

    def own(row: dict[str, Any]) -> float | None:
        name = "verify" if row["has_tv"] else "verify, no TV"
        same = [
            r["us"] for r in rows if r["peer"] == name and all(r[k] == row[k] for k in ("shape", "acceptance", "mode"))
        ]
        return same[0] if same else None

    shown = ""
    for row in rows:
        if row["shape"] != shown:
            table.add_section()
            shown = row["shape"]
        mine = own(row)
        table.add_row(
            row["shape"], row["acceptance"], row["mode"], row["peer"], f"{row['us']:.1f}",
            f"{row['us'] / mine:.2f}" if mine else "", f"{row['us'] / row['read_us']:.2f}", str(row["launches"] or ""),
        )  # fmt: skip
    return table
