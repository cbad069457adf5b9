"""What the ops remember of calls that were checked: a decode loop is checked once, and no wrong call slips through."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from metasd_kernels import make_workspace, sample, verify
from metasd_kernels.ops.forms import Forms, form_of
from metasd_kernels.ops.sample import _KNOWN as KNOWN_SAMPLES
from metasd_kernels.ops.verify import _KNOWN as KNOWN_BLOCKS
from metasd_kernels.outputs import empty_output

B, K, V = 1, 2, 8
CPU = torch.device("cpu")


def verified(**changes: Any) -> None:
    call: dict[str, Any] = {
        "target_logits": torch.zeros(B, K + 1, V), "draft_token_ids": torch.zeros(B, K, dtype=torch.int64),
        "draft_logits": torch.zeros(B, K, V), "backend": "native", "seed": 1, "offset": 2,
    }  # fmt: skip
    verify(**call | changes)


def sampled(**changes: Any) -> None:
    sample(**{"logits": torch.zeros(B, V), "backend": "native", "temperature": 1.0, "seed": 1, "offset": 2} | changes)


@pytest.mark.parametrize(
    ("call", "known"), [(verified, KNOWN_BLOCKS), (sampled, KNOWN_SAMPLES)], ids=["verify", "sample"]
)
def test_a_decode_loop_is_one_form(call: Callable[..., None], known: Forms[Any]) -> None:
    """Every round has a nonce of its own, every request a seed: neither may cost the checks again."""
    known.clear()
    for turn in range(20):
        call(seed=turn, offset=100 + turn)
    assert len(known) == 1


OTHER: dict[str, Any] = {
    "target_logits": torch.zeros(B, K + 1, V, dtype=torch.bfloat16),
    "draft_token_ids": torch.zeros(B, K, dtype=torch.int32),
    "draft_logits": None,
    "temperature": 0.5,
    "draft_temperature": 0.5,
    "target_cutoff": torch.zeros(B, K + 1),
    "draft_cutoff": torch.zeros(B, K),
    "num_draft_tokens": torch.full((B,), K),
    "draft_to_target": torch.arange(V),
    "reward_length": torch.full((B,), K),
    "rule": "block",
    "uniform_samples": torch.full((B, K + 2), 0.5),
    "compute_tv": False,
    "backend": "reference",
    "out": empty_output(B, K, torch.float32, CPU, True),
    "workspace": make_workspace(B, K, V, device=CPU),
    "seed": torch.ones(B, dtype=torch.int64),
    "offset": torch.ones(B, dtype=torch.int64),
}


@pytest.mark.parametrize("name", OTHER)
def test_every_other_argument_makes_another_form(name: str) -> None:
    """Catches an argument that was left out of the form: its next value would never be checked."""
    KNOWN_BLOCKS.clear()
    verified()
    verified(**{name: OTHER[name]})
    assert len(KNOWN_BLOCKS) == 2


@pytest.mark.parametrize(
    ("name", "value"), [("rule", "blocks"), ("temperature", -1.0), ("backend", "cuda"), ("seed", 2**63)]
)
def test_wrong_after_right_is_refused(name: str, value: Any) -> None:
    """The same call but for one value was checked just before."""
    verified()
    with pytest.raises(ValueError, match=name):
        verified(**{name: value})


def test_traced_or_differentiable_calls_have_no_form() -> None:
    """They go by way of the dispatcher, which checks each time."""
    assert form_of([torch.zeros(1)]) is not None
    assert form_of([torch.zeros(1, requires_grad=True)]) is None
    assert form_of([[1]]) is None
