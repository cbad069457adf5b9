"""The files of a checkpoint: which tensors are where, known without reading their data."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from metasd.core import MetaSDError

_FILES = ("model.safetensors", "pytorch_model.bin")
_DAMAGE = (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError, SafetensorError)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        MetaSDError: no such file, or something else in it.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise MetaSDError(f"the file {path} is missing; expected a folder with a checkpoint of an EAGLE head") from None
    except (OSError, ValueError) as error:
        raise _damaged(path) from error
    if not isinstance(content, dict):
        raise MetaSDError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def weight_paths(folder: Path) -> list[Path]:
    """The files with the weights: safetensors before pickles, one file before shards.

    Raises:
        MetaSDError: there are none, or the index names one that is missing.
    """
    for name in _FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            places = read_json(index).get("weight_map")
            if not isinstance(places, dict) or not places:
                raise MetaSDError(f"{index}: expected a weight_map from tensors to files, got {places!r}")
            shards = sorted({folder / str(place) for place in places.values()})
            missing = [shard for shard in shards if not shard.is_file()]
            if missing:
                raise MetaSDError(f"the file {missing[0]} is missing, though {index.name} names it; fetch it again")
            return shards
    raise MetaSDError(f"{folder}: expected weights in {' or '.join(_FILES)}, got neither, nor an index of shards")


class WeightFiles:
    """Tensors of a folder, by name.

    Args:
        folder: with a safetensors file, a pickled dictionary of tensors (read with `weights_only`), or shards of these.

    Attributes:
        shapes: of each tensor.

    Raises:
        MetaSDError: no weights, or a damaged file; the message names it.
    """

    def __init__(self, folder: Path) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._pickled: dict[str, Tensor] = {}
        self._paths: dict[str, Path] = {}
        for path in weight_paths(folder):
            try:
                shapes = self._safetensors(path) if path.suffix == ".safetensors" else self._pickle(path)
            except _DAMAGE as error:
                raise _damaged(path) from error
            self.shapes |= shapes
            self._paths |= dict.fromkeys(shapes, path)

    def _safetensors(self, path: Path) -> dict[str, tuple[int, ...]]:
        with safe_open(path, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118

    def _pickle(self, path: Path) -> dict[str, tuple[int, ...]]:
        # Mapped, the data of a large file stays on the disk until it is asked for.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
            raise MetaSDError(f"{path}: expected a dictionary of tensors, got {type(loaded).__name__} of other things")
        self._pickled |= loaded
        return {name: tuple(value.shape) for name, value in loaded.items()}

    def read(self, name: str) -> Tensor:
        """The tensor as stored, on the CPU; it may lie in the file, so copy it before the file changes."""
        if name in self._pickled:
            return self._pickled[name]
        path = self._paths[name]
        try:
            with safe_open(path, framework="pt") as opened:
                tensor: Tensor = opened.get_tensor(name)
        except _DAMAGE as error:
            raise _damaged(path) from error
        return tensor


def _damaged(path: Path) -> MetaSDError:
    return MetaSDError(f"the file {path} is damaged or incomplete; fetch it again")
