"""Registration with torch.library: `Library.define`, `impl` and `register_fake`, cheaper a call than `custom_op`."""

from typing import Any

import torch

_LIBRARY = torch.library.Library("metasd", "DEF")


def register(name: str, schema: str, implementation: Any, fake: Any) -> None:
    """Make `torch.ops.metasd.<name>`; the fake says what shapes and dtypes come out, for torch.compile."""
    _LIBRARY.define(f"{name}{schema}")
    _LIBRARY.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"metasd::{name}", fake, lib=_LIBRARY)
