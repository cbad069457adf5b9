"""Every registered bandit with what it cannot do without: the contract tests run over these."""

from pathlib import Path
from typing import Any

import pytest

from metasd.bandits import BANDITS

CLASSIFIER = Path(__file__).with_name("router.json")
"""Of prompts of the tokens 1 to 3 ("low") and 11 to 13 ("high")."""


def specs(arm: str) -> list[Any]:
    """For a pool that has this arm."""
    needed = {"oracle": f"oracle:other={arm}", "router": f"router:path={CLASSIFIER},other={arm}"}
    return [pytest.param(needed.get(name, name), id=name) for name in BANDITS.names()]
