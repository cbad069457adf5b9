"""The house rules that a machine can guard: direction of imports, file length, banned patterns, documents in step."""

import ast
import re
from pathlib import Path

import pytest

from metasd.bandits import BANDITS, REWARDS
from metasd.config import PRESETS
from metasd.drafters import DRAFTERS
from metasd_kernels.backends import BACKENDS

ROOT = Path(__file__).parent.parent
MAX_LINES = 400
# From the top of the house to its cellar; a file may import from its own floor and those below.
FLOORS = [
    {"cli", "cli_bench", "cli_matrix", "cli_simulate", "cli_train", "__main__"},
    {"bench", "report"},
    {"check", "integrations", "prompts"},
    {"matrix", "simulation"},
    {"training"},
    {"__init__", "engine"},
    {"static_round"},
    {"round", "static_loop"},
    {"graph", "pool", "scores", "verification"},
    {"bandits", "drafters", "logits", "stopping"},
    {"target"},
    {"cache", "demo", "metrics", "features"},
    {"slots", "static"},
    {"config", "console", "registry"},
    {"core"},
]
# Nothing in a round reads from the device, except the one named read.
LOOP_FILES = [
    "round.py",
    "verification.py",
    "pool.py",
    "logits.py",
    "drafters/lm.py",
    "drafters/drawing.py",
    "drafters/eagle/drafter.py",
]
DEVICE_READS = re.compile(r"\.(item|cpu|tolist|numpy)\(\)")
THE_ONE_READ = "read_verdict"


def floor_of(room: str) -> int:
    found = [index for index, rooms in enumerate(FLOORS) if room in rooms]
    assert found, f"metasd/{room} has no floor in tests/test_house.py: add it where it belongs"
    return found[0]


def imported_rooms(path: Path) -> set[str]:
    """Rooms of `metasd` that a file imports at run time; what only the type checker reads does not count."""
    rooms: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "metasd" else [f"metasd.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("metasd.")}
    return rooms


def python_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", python_files("metasd"), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    room = path.relative_to(ROOT / "metasd").parts[0].removesuffix(".py")
    for other in imported_rooms(path):
        assert floor_of(other) >= floor_of(room), f"{room} must not import from {other}"


@pytest.mark.parametrize("path", python_files("metasd_kernels"), ids=lambda path: str(path.relative_to(ROOT)))
def test_kernels_know_neither_metasd_nor_transformers(path: Path) -> None:
    modules = re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
    assert not [name for name in modules if name.split(".")[0] in ("metasd", "transformers", "safetensors")]


def test_no_file_is_too_long() -> None:
    files = [path for name in ("metasd", "metasd_kernels", "tests", "benchmarks") for path in python_files(name)]
    files += [*(ROOT / "csrc").iterdir()]
    too_long = {path.name: n for path in files if (n := len(path.read_text().splitlines())) > MAX_LINES}
    assert not too_long


@pytest.mark.parametrize("name", LOOP_FILES)
def test_the_loop_reads_the_device_once(name: str) -> None:
    tree = ast.parse((ROOT / "metasd" / name).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != THE_ONE_READ]
    for function in functions:
        assert not DEVICE_READS.search(ast.unparse(function)), f"{name}: {function.name} reads from the device"


def table_names(heading: str) -> list[str]:
    """Names in the first column of the table under a heading of the README."""
    text = (ROOT / "README.md").read_text()
    section = re.search(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, f"README has no section {heading}"
    return re.findall(r"^\| `([^`]+)`", section.group(1), re.MULTILINE)


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Drafters", DRAFTERS.names()),
        ("Bandits", BANDITS.names()),
        ("Rewards", list(REWARDS)),
        ("Presets", list(PRESETS)),
        ("Backends", list(BACKENDS)),
    ],
)
def test_readme_tables_match_the_registries(heading: str, names: list[str]) -> None:
    assert table_names(heading) == names


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_documents_name_files_that_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    paths = re.findall(r"`((?:metasd|metasd_kernels|csrc|tests|benchmarks|examples|docs)/[\w./-]+)`", text)
    paths += [link for link in re.findall(r"\]\(([\w./-]+)\)", text) if not link.startswith("http")]
    assert not [path for path in paths if not (ROOT / path).exists()]
