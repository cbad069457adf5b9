"""Wrong arguments: a ValueError names the argument, what was expected and what came, before anything is written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from op_runner import Ops
from torch import Tensor

from metasd_kernels import VerifyOutput, logit_cutoff, make_workspace, sample, verify
from metasd_kernels.backends import BACKENDS, Backend, obstacles, register
from metasd_kernels.outputs import empty_output

NAN, INF = float("nan"), float("inf")
B, K, V, D = 3, 2, 8, 5


def arguments() -> dict[str, Any]:
    """A legal call."""
    return {
        "target_logits": torch.zeros(B, K + 1, V),
        "draft_token_ids": torch.zeros(B, K, dtype=torch.int64),
        "draft_logits": torch.zeros(B, K, V),
        "seed": torch.arange(B),
    }


def packed() -> dict[str, Any]:
    """A legal call in the packed form: blocks of 2, 0 and 1."""
    return {
        "target_logits": torch.zeros(3 + B, V),
        "draft_token_ids": torch.zeros(3, dtype=torch.int64),
        "draft_logits": torch.zeros(3, V),
        "cu_num_draft_tokens": torch.tensor([0, 2, 2, 3], dtype=torch.int32),
        "max_num_draft_tokens": K,
        "seed": torch.arange(B),
    }


@dataclass(frozen=True)
class Wrong:
    """`argument` becomes `value`; `actual` is what the error must say came."""

    argument: str
    value: Any
    actual: str
    others: tuple[tuple[str, Any], ...] = ()
    form: Callable[[], dict[str, Any]] = arguments


def transposed(*size: int) -> Tensor:
    return torch.zeros(*size[:-2], size[-1], size[-2]).transpose(-1, -2)


SMALL_DRAFT = (("draft_logits", torch.zeros(B, K, D)),)
WRONG = {
    "target rank": Wrong("target_logits", torch.zeros(B, V), "[3, 8]"),
    "target dtype": Wrong("target_logits", torch.zeros(B, K + 1, V, dtype=torch.int64), "int64"),
    "target no tensor": Wrong("target_logits", [[0.0]], "[[0.0]]"),
    "target V = 0": Wrong("target_logits", torch.zeros(B, K + 1, 0), "[3, 3, 0]"),
    "target no rows": Wrong("target_logits", torch.zeros(B, 0, V), "[3, 0, 8]"),
    "target transposed": Wrong("target_logits", transposed(B, K + 1, V), "strides [24, 1, 3]"),
    "target stepped": Wrong("target_logits", torch.zeros(B, K + 1, 2 * V)[..., ::2], "strides [48, 16, 2]"),
    "ids rank": Wrong("draft_token_ids", torch.zeros(B * K, dtype=torch.int64), "[6]"),
    "ids shape": Wrong("draft_token_ids", torch.zeros(B, K + 1, dtype=torch.int64), "[3, 3]"),
    "ids dtype": Wrong("draft_token_ids", torch.zeros(B, K), "float32"),
    "ids int16": Wrong("draft_token_ids", torch.zeros(B, K, dtype=torch.int16), "int16"),
    "ids device": Wrong("draft_token_ids", torch.zeros(B, K, dtype=torch.int64, device="meta"), "meta"),
    "draft shape": Wrong("draft_logits", torch.zeros(B, K + 1, V), "[3, 3, 8]"),
    "draft V = 0": Wrong("draft_logits", torch.zeros(B, K, 0), "[3, 2, 0]"),
    "draft transposed": Wrong("draft_logits", transposed(B, K, V), "strides [16, 1, 2]"),
    "draft device": Wrong("draft_logits", torch.zeros(B, K, V, device="meta"), "meta"),
    "temperature negative": Wrong("temperature", -0.5, "-0.5"),
    "temperature NaN": Wrong("temperature", NAN, "nan"),
    "temperature inf": Wrong("temperature", INF, "inf"),
    "temperature beyond fp32": Wrong("temperature", 1e39, "1e+39"),
    "temperature beyond float": Wrong("temperature", 10**400, "1000"),
    "temperature bool": Wrong("temperature", True, "True"),
    "temperature shape": Wrong("temperature", torch.ones(B + 1), "[4]"),
    "temperature scalar tensor": Wrong("temperature", torch.tensor(1.0), "[]"),
    "temperature int tensor": Wrong("temperature", torch.ones(B, dtype=torch.int64), "int64"),
    "draft temperature negative": Wrong("draft_temperature", -1, "-1"),
    "draft temperature shape": Wrong("draft_temperature", torch.ones(B, K), "[3, 2]"),
    "target cutoff shape": Wrong("target_cutoff", torch.zeros(B, K), "[3, 2]"),
    "target cutoff number": Wrong("target_cutoff", 0.5, "0.5"),
    "draft cutoff shape": Wrong("draft_cutoff", torch.zeros(B, K + 1), "[3, 3]"),
    "lengths dtype": Wrong("num_draft_tokens", torch.ones(B), "float32"),
    "lengths shape": Wrong("num_draft_tokens", torch.ones(B + 1, dtype=torch.int32), "[4]"),
    "width without counts": Wrong("max_num_draft_tokens", 3, "3"),
    "reward length shape": Wrong("reward_length", torch.ones(1), "[1]"),
    "rule": Wrong("rule", "tokens", "'tokens'"),
    "backend": Wrong("backend", "cuda", "'cuda'"),
    "backend none": Wrong("backend", None, "None"),
    "seed int for rows": Wrong("seed", 1, "1"),
    "seed shape": Wrong("seed", torch.arange(1), "[1]"),
    "seed dtype": Wrong("seed", torch.arange(B).int(), "int32"),
    "seed float": Wrong("seed", 1.5, "1.5"),
    "offset shape": Wrong("offset", torch.arange(2), "[2]"),
    "offset range": Wrong("offset", 2**63, str(2**63)),
    "coins shape": Wrong("uniform_samples", torch.zeros(B, K + 1), "[3, 3]"),
    "coins dtype": Wrong("uniform_samples", torch.zeros(B, K + 2, dtype=torch.float64), "float64"),
    "map duplicate": Wrong("draft_to_target", torch.tensor([0, 1, 1, 2, 3]), "id 1 more than once", SMALL_DRAFT),
    "map too large": Wrong("draft_to_target", torch.tensor([0, 1, 8, 2, 3]), "8", SMALL_DRAFT),
    "map negative": Wrong("draft_to_target", torch.tensor([0, 1, -1, 2, 3]), "-1", SMALL_DRAFT),
    "map shape": Wrong("draft_to_target", torch.arange(D - 1), "[4]", SMALL_DRAFT),
    "map dtype": Wrong("draft_to_target", torch.arange(D).int(), "int32", SMALL_DRAFT),
    "map without logits": Wrong("draft_to_target", torch.arange(D), "[5]", (("draft_logits", None),)),
    "sparse shape": Wrong("draft_to_target", torch.zeros(B, K, D + 1, dtype=torch.int64), "[3, 2, 6]", SMALL_DRAFT),
    "workspace too small": Wrong("workspace", make_workspace(B, K, V - 1), "(3, 2, 7)"),
    "workspace type": Wrong("workspace", torch.zeros(9), "[9]"),
    "workspace device": Wrong("workspace", make_workspace(B, K, V, device="meta"), "meta"),
    "packed rows": Wrong("target_logits", torch.zeros(2, V), "[2, 8]", form=packed),
    "packed ids": Wrong("draft_token_ids", torch.zeros(4, dtype=torch.int64), "[4]", form=packed),
    "packed counts dtype": Wrong("cu_num_draft_tokens", torch.zeros(4), "float32", form=packed),
    "packed counts rank": Wrong("cu_num_draft_tokens", torch.zeros(2, 2, dtype=torch.int32), "[2, 2]", form=packed),
    "packed and ragged": Wrong("num_draft_tokens", torch.zeros(B, dtype=torch.int32), "[3]", form=packed),
    "packed width": Wrong("max_num_draft_tokens", -1, "-1", form=packed),
    "packed cutoff": Wrong("target_cutoff", torch.zeros(B, K + 1), "[3, 3]", form=packed),
}  # fmt: skip


def poisoned(ops: Ops) -> VerifyOutput:
    out = empty_output(B, K, torch.float32, torch.device(ops.device), True)
    for value in out:
        value.fill_(77)
    return out


def refused(error: pytest.ExceptionInfo[ValueError], argument: str, actual: str) -> None:
    message = str(error.value)
    assert message.startswith(f"{argument}: expected "), message
    assert actual in message.split(", got ")[-1], message


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_verify_refuses(ops: Ops, wrong: Wrong) -> None:
    """Catches an argument that is broadcast, cast, ignored, or that fails inside a kernel with `out` half written."""
    out = poisoned(ops)
    options = {"backend": ops.backend} | wrong.form() | dict(wrong.others) | {wrong.argument: wrong.value}
    is_meta = isinstance(wrong.value, Tensor) and wrong.value.is_meta
    if not is_meta:
        options = {name: ops.there(value) for name, value in options.items()}
    with pytest.raises(ValueError, match=": expected ") as error:
        verify(**options, out=out)
    refused(error, wrong.argument, wrong.actual)
    assert all((value == 77).all() for value in out)


@pytest.mark.parametrize("form", [arguments, packed])
def test_the_legal_calls_are_legal(ops: Ops, form: Callable[[], dict[str, Any]]) -> None:
    """The control: what the wrong calls above are made of passes."""
    out = poisoned(ops)
    verify(**{name: ops.there(value) for name, value in form().items()}, backend=ops.backend, out=out)
    assert not (out.status == 77).any()


@pytest.mark.parametrize(
    ("field", "value", "actual"),
    [
        ("output_token_ids", torch.full((B, K + 1), 77, dtype=torch.int32), "int32"),
        ("output_token_ids", torch.full((B, K), 77), "[3, 2]"),
        ("tv_distance", torch.full((0,), 77.0), "[0]"),
        ("tv_distance", torch.full((B, K), 77.0, dtype=torch.float64), "float64"),
        ("tv_distance", torch.full((B, 2 * K), 77.0)[:, ::2], "strides [4, 2]"),
        ("status", torch.full((1,), 77, dtype=torch.int32).expand(B), "strides [0]"),
        ("status", torch.zeros(B, dtype=torch.int32, device="meta"), "meta"),
        ("status", None, "None"),
    ],
)
def test_verify_refuses_wrong_outputs(ops: Ops, field: str, value: Tensor | None, actual: str) -> None:
    """Catches a silent cast, a write with the wrong stride, or a first field written before the last is checked."""
    there = value if value is None or value.is_meta else ops.there(value).as_strided(value.shape, value.stride())
    out = poisoned(ops)._replace(**{field: there})
    with pytest.raises(ValueError, match=": expected ") as error:
        verify(**{name: ops.there(given) for name, given in arguments().items()}, backend=ops.backend, out=out)
    refused(error, f"out.{field}", actual)
    assert all((value == 77).all() for value in out if value is not None and not value.is_meta)


def test_out_must_be_a_verify_output(ops: Ops) -> None:
    """Catches a plain tuple, whose fields have no names to check."""
    with pytest.raises(ValueError, match=r"^out: expected a VerifyOutput, got tuple"):
        verify(**arguments(), out=tuple(poisoned(ops)))


def test_a_map_is_checked_again(ops: Ops) -> None:
    """Catches a check that is remembered too long: after a write into the map, and for a smaller target."""
    given = {name: ops.there(value) for name, value in (arguments() | dict(SMALL_DRAFT)).items()}
    mapping = ops.there(torch.arange(D))
    for _ in range(2):
        verify(**given, draft_to_target=mapping, backend=ops.backend)
    with pytest.raises(ValueError, match=r"^draft_to_target: expected ids in \[0, 4\), got 4"):
        verify(**(given | {"target_logits": given["target_logits"][..., :4].contiguous()}), draft_to_target=mapping)
    mapping[0] = 1
    with pytest.raises(ValueError, match=r"^draft_to_target: expected distinct target ids, got id 1"):
        verify(**given, draft_to_target=mapping, backend=ops.backend)


@pytest.mark.parametrize(
    ("argument", "value", "actual"),
    [
        ("logits", torch.zeros(V), "[8]"),
        ("logits", torch.zeros(B, 0), "[3, 0]"),
        ("logits", transposed(B, V), "strides [1, 3]"),
        ("logits", torch.zeros(B, V, dtype=torch.int32), "int32"),
        ("temperature", -1.0, "-1.0"),
        ("temperature", NAN, "nan"),
        ("temperature", torch.ones(B + 1), "[4]"),
        ("cutoff", torch.zeros(B, 1), "[3, 1]"),
        ("seed", 3, "3"),
        ("position", -1, "-1"),
        ("position", 2**32, str(2**32)),
        ("position", 1.0, "1.0"),
        ("position", torch.zeros(2, dtype=torch.int64), "[2]"),
        ("position", torch.zeros(B), "float32"),
        ("uniform_samples", torch.zeros(B, 3), "[3, 3]"),
        ("out", torch.full((B,), 77, dtype=torch.int32), "int32"),
        ("out", torch.full((2 * B,), 77)[::2], "strides [2]"),
    ],
)
def test_sample_refuses(ops: Ops, argument: str, value: Any, actual: str) -> None:
    """As for verify."""
    out = ops.there(torch.full((B,), 77))
    options = {"logits": torch.zeros(B, V), "temperature": 1.0, "seed": torch.arange(B), "out": out}
    given = {name: ops.there(one) for name, one in (options | {argument: value}).items()}
    if argument == "out":
        given["out"] = ops.there(value).as_strided(value.shape, value.stride())
    with pytest.raises(ValueError, match=": expected ") as error:
        sample(**given, backend=ops.backend)
    refused(error, argument, actual)
    assert (out == 77).all()


@pytest.mark.parametrize(
    ("argument", "value", "actual"),
    [
        ("logits", torch.tensor(1.0), "[]"),
        ("logits", torch.zeros(B, 0), "[3, 0]"),
        ("logits", transposed(B, V), "strides [1, 3]"),
        ("logits", "logits", "'logits'"),
        ("temperature", -1.0, "-1.0"),
        ("top_k", 1.5, "1.5"),
        ("top_k", 2**64, str(2**64)),
        ("top_k", torch.ones(B), "float32"),
        ("top_p", 1.1, "1.1"),
        ("top_p", NAN, "nan"),
        ("min_p", -0.1, "-0.1"),
        ("min_p", torch.ones(B + 1), "[4]"),
    ],
)
def test_logit_cutoff_refuses(ops: Ops, argument: str, value: Any, actual: str) -> None:
    """As for verify."""
    given = {"logits": ops.there(torch.zeros(B, V))} | {argument: ops.there(value)}
    with pytest.raises(ValueError, match=": expected ") as error:
        logit_cutoff(**given, backend=ops.backend)
    refused(error, argument, actual)


@pytest.mark.parametrize("sizes", [(-1, 2, 8), (2, -1, 8), (2, 2, 0), (2.0, 2, 8), (2, 2, True)])
def test_make_workspace_refuses(sizes: tuple[Any, Any, Any]) -> None:
    """Catches a workspace of no use that fails only when it is used."""
    with pytest.raises(ValueError, match=r"^(batch_size|num_draft_tokens|vocab_size): expected an int of at least"):
        make_workspace(*sizes)


def test_a_backend_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a silent fallback when a backend was asked for by name."""
    monkeypatch.setitem(BACKENDS, "broken", Backend("broken", "nowhere", lambda kind: f"no {kind} here", frozenset()))
    assert obstacles()["broken"]
    with pytest.raises(ValueError, match="'broken' cannot run on device type 'cpu' here: no cpu here"):
        verify(**arguments(), backend="broken")
    with pytest.raises(ValueError, match="registered already"):
        register(BACKENDS["broken"])
