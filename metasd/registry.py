"""A name-to-class table with lazy imports: `pip install` of an optional dependency is only needed by who uses it."""

import importlib
import inspect
from typing import Any

from metasd.core import UsageError


class Registry:
    """Known names of one kind of thing. An entry is `"package.module:Attribute"`, imported when it is asked for."""

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def register(self, name: str, target: str) -> None:
        """Add a name; the contract tests run over it from then on."""
        if name in self._entries:
            raise UsageError(f"{self.kind} {name!r} is registered already")
        self._entries[name] = target

    def names(self) -> list[str]:
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def load(self, name: str) -> Any:
        """The class behind a name.

        Raises:
            UsageError: the name is unknown; the message lists the known ones.
        """
        if name not in self._entries:
            raise UsageError(f"{self.kind}: expected one of {', '.join(self.names())}, got {name!r}")
        module, _, attribute = self._entries[name].partition(":")
        return getattr(importlib.import_module(module), attribute)


def split_specs(text: str) -> list[str]:
    """Split `"ngram:max_match=3,min_match=2,suffix"` into its specs; a part `key=value` belongs to the spec before."""
    specs: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if specs and ":" not in part and "=" in part:
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return specs


def annotation_name(parameter: inspect.Parameter) -> str:
    """ "int" for a parameter annotated with int, also where annotations are kept as text."""
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else str(getattr(annotation, "__name__", annotation))


def parse_spec(spec: str) -> tuple[str, dict[str, float | str]]:
    """Split `"name:key=value,key=value"`; numbers become floats.

    Raises:
        UsageError: a part is not `key=value`.
    """
    name, _, rest = spec.partition(":")
    options: dict[str, float | str] = {}
    for part in filter(None, rest.split(",")):
        key, separator, value = part.partition("=")
        if not separator or not key:
            raise UsageError(f"{spec!r}: expected name:key=value,key=value, got the part {part!r}")
        try:
            options[key.strip()] = float(value)
        except ValueError:
            options[key.strip()] = value.strip()
    return name.strip(), options
