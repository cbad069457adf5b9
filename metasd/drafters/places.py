"""From what a user calls a drafter to a folder on this machine."""

import re
from pathlib import Path

from metasd.core import MetaSDError

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_PATTERNS = ["*.json", "*.safetensors", "*.bin"]


def local_folder(path: str) -> Path:
    """The folder itself, or where a hub id's files lie once they have been fetched.

    Raises:
        MetaSDError: it is neither, or fetching failed.
    """
    place = Path(path).expanduser()
    if place.exists() or not _HUB_ID.fullmatch(path):
        return place
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, allow_patterns=_PATTERNS))
    except Exception as error:  # many kinds: no network, no such repository, no permission
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise MetaSDError(f"no folder {path!r}, and the hub gives no repository of that name: {reason}") from error
