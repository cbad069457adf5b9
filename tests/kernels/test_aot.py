"""The Triton kernels as a GPU would get them, checked without one: what is launched, and what it compiles to.

The interpreter and the compiler exclude each other within a process, so the compiler runs in another one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metasd_kernels import launch
from metasd_kernels.aot import CALLS

# By call: launches; 128-bit loads at least (those of a tile: bytes / threads / 16, both laws); instructions an element
# at most. Nothing may spill.
LIMITS: dict[str, tuple[int, int, float]] = {
    "verify, dense": (1, 8, 60),
    "verify, dense, fp32": (1, 8, 85),
    "verify, dense, block rule": (1, 4, 115),
    "verify, point mass": (1, 4, 25),
    "verify, reduced vocabulary": (1, 4, 75),
    "verify, sparse": (1, 2, 90),
    "verify, odd vocabulary": (1, 0, 100),
    "verify, middle vocabulary": (1, 4, 80),
    "verify, small vocabulary": (1, 4, 100),
    "verify, small vocabulary, block rule": (1, 4, 140),
    "verify, two launches": (2, 4, 155),
    "sample": (1, 4, 0),
    "logit_cutoff": (1, 1, 0),
}

KEYS = """
import json, sys
from metasd_kernels.aot import Call, recorded
found = {}
for kind in ("dense", "point", "reduced", "sparse"):
    for rule in ("token", "block"):
        keys, grids = set(), set()
        for batch_size in (1, 2, 3, 16, 17, 64, 255, 256):
            with recorded(132) as launches:
                Call("", 32000, kind, rule=rule, batch_size=batch_size).run()
            assert len(launches) == 1, (kind, rule, batch_size, len(launches))
            keys.add(launches[0].key())
            grids.add(launches[0].grid[0] / batch_size)
        found[f"{kind}, {rule}"] = [len(keys), len(grids)]
print(json.dumps(found))
"""


def run(*arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return done.stdout


def test_one_variant_and_one_launch_for_every_batch_size() -> None:
    """Edge 26: catches a batch size that is compiled in, and a helper launch beside the fused one."""
    found = json.loads(run("-c", KEYS))
    assert found == {name: [1, 1] for name in found}
    assert len(found) == 8


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path: Path = tmp_path_factory.mktemp("aot") / "aot.json"
    sys.stdout.write(run("-m", "metasd_kernels.aot", "--json", str(path)))
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("name", LIMITS)
def test_compiled_code_keeps_its_limits(reports: list[dict[str, Any]], name: str) -> None:
    """Catches a spill, a load that fell apart into 16-bit ones, and work that crept into the path of every tile."""
    num_launches, wide_loads, instructions = LIMITS[name]
    found = [one for one in reports if one["name"] == name]
    assert {one["capability"] for one in found} == {80, 90, 100}
    for one in found:
        where = f"{name} on sm_{one['capability']}: {one}"
        assert one["num_launches"] == num_launches, where
        assert one["spilled_bytes"] == 0, where
        assert one["wide_loads"] >= wide_loads, where
        if one["instructions_per_element"] is not None:
            assert one["instructions_per_element"] <= instructions, where
        assert one["programs_per_processor"] >= one["promised_programs"], where


def test_every_setting_is_compiled() -> None:
    """Catches a line of launch.py that no call here exercises; there are at most 12."""
    used = {
        launch.verify_settings(call.vocab_size, is_heavy=call.rule == "block" or call.kind == "sparse")
        for call in CALLS
    }
    assert used >= set(launch.VERIFY)
    assert len(launch.VERIFY) <= 12
    assert {call.name for call in CALLS} == set(LIMITS)
