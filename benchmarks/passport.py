"""What a measured number must be accompanied by: versions, device, commit and command.

python benchmarks/passport.py [--json FILE]
"""

import argparse
import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def command() -> str:
    """What was typed; folders outside the project are of this machine, and say nothing."""
    program, *words = sys.argv
    name = "pytest" if "pytest" in program else f"python {Path(program).name}"
    return " ".join([name, *(Path(word).name if word.startswith("/") else word for word in words)])


def passport() -> dict[str, Any]:
    """Facts about this run."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    ).stdout.strip()
    cpu = next(
        (line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), platform.machine()
    )
    return {
        "command": command(),
        "commit": commit,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("torch", "transformers", "triton", "metasd")},
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write it there")
    target = parser.parse_args().json
    text = json.dumps(passport(), indent=1)
    target.write_text(text + "\n") if target else print(text)
