"""Write the manifest of a folder of trained drafters: python -m metasd.training.manifest FOLDER

Every folder with a `training.json` and every n-gram LM in it becomes an entry with its facts, size and digests.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import safe_open

from metasd.drafters.demo import Entry, digests


def entry_of(path: Path) -> Entry:
    """The entry of a folder that `metasd train` wrote, or of a file of counts."""
    facts: dict[str, Any]
    if path.is_dir():
        facts = json.loads((path / "training.json").read_text())
        files = sorted(each for each in path.rglob("*") if each.is_file())
    else:
        with safe_open(path, framework="pt") as file:
            facts = dict(file.metadata())
        files = [path]
    kind = str(facts.pop("kind"))
    return Entry(
        path.stem if path.is_file() else path.name,
        kind,
        path.name,
        digests(path),
        sum(each.stat().st_size for each in files),
        facts,
    )


def write(folder: Path) -> Path:
    """Write `manifest.json` over what lies in the folder; specialists first, the generalist of a family behind them."""
    paths = [each.parent for each in folder.glob("*/training.json")] + list(folder.glob("*.safetensors"))
    paths.sort(key=lambda path: (path.is_file(), "generalist" in path.name, path.name))
    rows = [asdict(entry_of(path)) for path in paths]
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({"drafters": rows}, indent=1) + "\n")
    return manifest


if __name__ == "__main__":
    write(Path(sys.argv[1]))
