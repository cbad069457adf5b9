"""What a measured number must be accompanied by: versions, device, commit and command."""

import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("metasd", "torch", "transformers", "triton", "numpy", "flashspec")


def passport(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Facts about this run.

    Args:
        device, dtype: of the target.
    """
    return {
        "command": command(),
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu(),
        "threads": torch.get_num_threads(),
        "dtype": str(dtype).removeprefix("torch."),
    }


def command() -> str:
    """What was typed; of absolute paths the last part, since folders of this machine say nothing."""
    return " ".join(["metasd", *(Path(word).name if word.startswith("/") else word for word in sys.argv[1:])])


def commit() -> str | None:
    """The commit of a checkout, marked where files are changed; None for an installed package."""
    folder = Path(__file__).parent.parent.parent
    if not (folder / ".git").exists() or shutil.which("git") is None:
        return None
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False).stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
