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

# Limits by call: registers, spilled bytes are 0 for all, 128-bit loads at least, instructions an element at most.
LIMITS: dict[str, tuple[int, int, float]] = {}

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
