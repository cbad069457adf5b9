"""One fixture, `ops`, runs the contract tests over every backend and device that can run here."""

import pytest
from op_runner import Ops, usable
from quick_interpreter import make_quick
from tie_band import TIES

make_quick()


@pytest.fixture(params=usable(), ids=lambda ops: f"{ops.backend}-{ops.device}")
def ops(request: pytest.FixtureRequest) -> Ops:
    return request.param


@pytest.fixture(
    params=[ops for ops in usable() if not ops.is_interpreted], ids=lambda ops: f"{ops.backend}-{ops.device}"
)
def fast_ops(request: pytest.FixtureRequest) -> Ops:
    """For tests with 100,000 rows and more."""
    return request.param


@pytest.fixture
def ties(request: pytest.FixtureRequest) -> dict[str, int]:
    """Counts of compared rows and of rows inside the tie band, printed at the end of the run."""
    return request.config.stash.setdefault(TIES, {"rows": 0, "ties": 0})
