"""The demo pool: drafters for the demo target that ship with the package, listed in a manifest."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metasd.core import MetaSDError
from metasd.drafters.base import Drafter

if TYPE_CHECKING:
    from metasd.target import Target

FOLDER = Path(__file__).parent.parent / "demo_pool"
MANIFEST = FOLDER / "manifest.json"
COPYING = ("ngram", "suffix")
"""Drafters that need no weights; the whole pool of a target for which none ship."""


@dataclass(frozen=True)
class Entry:
    """A drafter of the manifest.

    Attributes:
        name: of the arm; kind: registered name of its class; path: file or folder beside the manifest.
        sha256: of each of its files, by path; num_bytes: of all.
        facts: recipe, command, data, licences and measured acceptance, as training wrote them.
    """

    name: str
    kind: str
    path: str
    sha256: dict[str, str]
    num_bytes: int
    facts: dict[str, Any]


def entries() -> list[Entry]:
    """What ships.

    Raises:
        MetaSDError: the manifest is missing or damaged.
    """
    try:
        return [Entry(**row) for row in json.loads(MANIFEST.read_text())["drafters"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MetaSDError(f"{MANIFEST}: expected the manifest of the demo pool ({error}); reinstall metasd") from error


def load_demo_pool(target: "Target") -> list[str | Drafter]:
    """The arms of `drafters="demo"`: for the demo target all that ships, for others those that need no weights."""
    if target.source != "demo":
        return list(COPYING)
    from metasd.drafters import DRAFTERS

    loaded = [DRAFTERS.load(entry.kind)(target, str(FOLDER / entry.path), entry.name) for entry in entries()]
    return [*loaded, *COPYING]


def digests(path: Path) -> dict[str, str]:
    """SHA-256 of a file, or of each file in a folder, by its path beside the manifest."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    return {each.relative_to(path.parent).as_posix(): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}
