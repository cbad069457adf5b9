"""Drafters: one file each, registered here by name. A new one is a file with a class and a line in this table."""

import logging
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from metasd.core import NULL_ARM, UsageError, refuse
from metasd.drafters.base import Drafter, StaticDrafter
from metasd.drafters.demo import load_demo_pool
from metasd.drafters.memory import check_room
from metasd.registry import Registry, parse_spec, split_specs

if TYPE_CHECKING:
    from metasd.target import Target

_log = logging.getLogger(__name__)
DRAFTERS = Registry(
    "drafter",
    {
        "null": "metasd.drafters.null:NullDrafter",
        "ngram": "metasd.drafters.ngram:NgramDrafter",
        "suffix": "metasd.drafters.suffix:SuffixDrafter",
        "lm": "metasd.drafters.lm:LMDrafter",
        "eagle": "metasd.drafters.eagle.drafter:EagleDrafter",
        "early-exit": "metasd.drafters.early_exit:EarlyExitDrafter",
        "ngram-lm": "metasd.drafters.ngram_lm:NgramLMDrafter",
    },
)

__all__ = ["DRAFTERS", "Drafter", "StaticDrafter", "check_drafters", "load_drafters"]


def load_drafters(given: str | Sequence[str | Drafter], target: "Target") -> dict[str, Drafter]:
    """The pool's arms by name, in the order given; the null arm is added where it is missing.

    Args:
        given: specs (also in one string, with commas): "demo", a registered name, `name:key=value,...`, the folder of
            an EAGLE head, the file of an n-gram LM, the folder or hub id of a causal model with the target's tokenizer;
            or ready drafters.
        target: what they draft for.

    Raises:
        UsageError: a name is unknown (the known ones are listed) or stands twice.
        MetaSDError: a model cannot be loaded, or its tokenizer is not the target's.
    """
    if isinstance(given, str):
        given = split_specs(given)
    check_drafters(given)
    given = [arm for entry in given for arm in (load_demo_pool(target) if entry == "demo" else [entry])]
    arms: dict[str, Drafter] = {}
    for entry in given:
        drafter = _load_one(entry, target) if isinstance(entry, str) else entry
        if drafter is not entry:
            _report(drafter)
        if not isinstance(drafter, Drafter):
            raise refuse("drafters", "names, paths or Drafter objects", type(drafter).__name__)
        if drafter.target is not target:
            raise refuse("drafters", "drafters built for this target", f"{drafter.name!r} of another one")
        if drafter.name in arms:
            raise refuse("drafters", "arms with different names (lm:path=FOLDER,name=NAME)", f"{drafter.name!r} twice")
        arms[drafter.name] = drafter
    if NULL_ARM not in arms:
        arms[NULL_ARM] = DRAFTERS.load(NULL_ARM)(target)
    return arms


def check_drafters(given: str | Sequence[str | Drafter]) -> None:
    """Fail on an unknown name before anything expensive is loaded.

    Raises:
        UsageError: the known names are listed.
    """
    if not isinstance(given, Iterable):
        raise refuse("drafters", "names, paths or Drafter objects", type(given).__name__)
    for entry in split_specs(given) if isinstance(given, str) else given:
        if isinstance(entry, str) and entry != "demo":
            name = entry.partition(":")[0]
            if name not in DRAFTERS and not _is_path(entry):
                known = ", ".join(DRAFTERS.names())
                raise UsageError(
                    f"drafters: expected one of {known}, or the folder or hub id of a model, got {entry!r}"
                )


def _is_path(spec: str) -> bool:
    return "/" in spec or spec.startswith(".")


def _kind_of(path: str) -> str:
    """What lies at a path: a file of counts, an EAGLE head, or else a causal model."""
    from metasd.drafters.eagle.checkpoint import is_eagle_folder

    place = Path(path).expanduser()
    if place.suffix == ".safetensors":
        return "ngram-lm"
    return "eagle" if place.is_dir() and is_eagle_folder(place) else "lm"


def _report(drafter: Drafter) -> None:
    """Say what a loaded drafter assumes, and warn where it does not seem to fit."""
    for assumption in getattr(drafter, "assumptions", ()):
        _log.info("drafter %s: %s", drafter.name, assumption)
    doubt = drafter.self_check()
    if doubt:
        _log.warning("%s", doubt)
        warnings.warn(doubt, RuntimeWarning, stacklevel=3)


def _load_one(spec: str, target: "Target") -> Drafter:
    is_path = spec.partition(":")[0] not in DRAFTERS and _is_path(spec)  # a path may contain a colon
    name, options = (_kind_of(spec), {"path": spec}) if is_path else parse_spec(spec)
    if "path" in options:
        check_room(spec, Path(str(options["path"])).expanduser(), target.device)
    drafter: Drafter = DRAFTERS.load(name).from_options(target, options)
    return drafter
