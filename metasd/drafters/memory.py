"""How much memory a drafter will take, said before it is loaded."""

import logging
from pathlib import Path

import torch

from metasd.core import MetaSDError

_log = logging.getLogger(__name__)
_MARGIN = 1.1  # what loading needs besides the weights


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def weight_bytes(path: Path) -> int:
    """Bytes of the weights in a file or a folder, as they are stored."""
    if path.is_file():
        return path.stat().st_size
    stored = [each for pattern in ("*.safetensors", "*.bin") for each in path.glob(pattern)]
    safe = [each for each in stored if each.suffix == ".safetensors"]
    return sum(each.stat().st_size for each in safe or stored)


def check_room(name: str, path: Path, device: torch.device) -> None:
    """Say what a drafter's weights take, and refuse what cannot fit.

    Raises:
        MetaSDError: more than is free; the message names the drafter, and both numbers.
    """
    if not path.exists():
        return  # a hub id, or a mistake that loading names
    needed, free = weight_bytes(path), free_bytes(device)
    _log.info("drafter %s: %.1f MB of weights", name, needed / 1e6)
    if free is not None and needed * _MARGIN > free:
        raise MetaSDError(
            f"drafter {name!r} needs {needed / 1e9:.2f} GB for its weights on {device}, where {free / 1e9:.2f} GB are "
            "free: leave it out, or use a smaller dtype or fewer drafters"
        )
