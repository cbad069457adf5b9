"""What a policy has learned, in a file that outlives the process."""

import json
import os
from pathlib import Path

from metasd.bandits.base import Bandit
from metasd.core import MetaSDError


def save_state(bandit: Bandit, path: Path) -> None:
    """Write `bandit.state()` as JSON; a reader sees the old file or the new one, never half of it.

    Raises:
        MetaSDError: the file cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.part")
    try:
        unfinished.write_text(json.dumps(bandit.state()))
        os.replace(unfinished, path)
    except OSError as error:
        raise MetaSDError(f"bandit state: cannot write {str(path)!r}: {error.strerror}") from None


def load_state(bandit: Bandit, path: Path) -> None:
    """Put back what `save_state` wrote.

    Raises:
        MetaSDError: the file cannot be read, is no JSON, or is the state of another policy or other arms.
    """
    try:
        state = json.loads(path.read_text())
    except OSError as error:
        raise MetaSDError(f"bandit state: cannot read {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise MetaSDError(f"bandit state: expected JSON in {str(path)!r} ({error})") from None
    if not isinstance(state, dict):
        raise MetaSDError(f"bandit state: expected a JSON object in {str(path)!r}, got {type(state).__name__}")
    bandit.load(state)
