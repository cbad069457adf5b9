"""The ops as torch sees them: schemas, fakes, functionalisation, torch.compile."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import make_case
from op_runner import Ops
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from metasd_kernels import VerifyOutput, logit_cutoff, sample, verify
from metasd_kernels.outputs import empty_output

OPS = torch.ops.metasd


def recorded(ops: Ops, name: str, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """The arguments that a public function hands to `torch.ops.metasd.<name>`."""
    seen: list[tuple[Any, ...]] = []
    real = getattr(OPS, name)
    with monkeypatch.context() as patch:
        for module in ("verify", "sample"):  # as if torch were tracing: by way of the dispatcher
            patch.setattr(sys.modules[f"metasd_kernels.ops.{module}"], "form_of", lambda arguments: None)
        patch.setattr(OPS, name, lambda *arguments: (seen.append(arguments), real(*arguments))[1])
        call()
    return seen[0]


def on_device(ops: Ops, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    case = make_case(1, **options)
    return [ops.there(value) for value in case.arguments], {
        name: ops.there(value) for name, value in case.options.items()
    }


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("kind", ["point", "dense", "sparse"])
def test_opcheck_verify(ops: Ops, monkeypatch: pytest.MonkeyPatch, kind: str, rule: str) -> None:
    """Catches a schema that hides a mutation, and a fake whose shapes, dtypes or strides are not the real ones."""
    arguments, options = on_device(ops, kind=kind, rule=rule, use_cutoffs=True, batch_size=4, vocab_size=50)
    for compute_tv in (True, False):
        given = recorded(
            ops,
            "verify",
            lambda tv=compute_tv: verify(*arguments, **options, compute_tv=tv, backend=ops.backend),
            monkeypatch,
        )
        torch.library.opcheck(OPS.verify.default, given)
        out = empty_output(4, 4, torch.float32, torch.device(ops.device), compute_tv)
        given = recorded(
            ops,
            "verify_out",
            lambda tv=compute_tv, out=out: verify(*arguments, **options, compute_tv=tv, backend=ops.backend, out=out),
            monkeypatch,
        )
        torch.library.opcheck(OPS.verify_out.default, given)


def test_opcheck_sample_and_cutoff(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for verify."""
    logits, temperature = ops.there(torch.randn(5, 40)), ops.there(torch.rand(5))
    options = {"temperature": temperature, "seed": ops.there(torch.arange(5)), "backend": ops.backend}
    given = recorded(ops, "sample", lambda: sample(logits, **options), monkeypatch)
    torch.library.opcheck(OPS.sample.default, given)
    out = ops.there(torch.zeros(5, dtype=torch.int64))
    given = recorded(ops, "sample_out", lambda: sample(logits, **options, out=out), monkeypatch)
    torch.library.opcheck(OPS.sample_out.default, given)
    call = lambda: logit_cutoff(logits, temperature=temperature, top_k=3, top_p=0.5, backend=ops.backend)  # noqa: E731
    torch.library.opcheck(OPS.logit_cutoff.default, recorded(ops, "logit_cutoff", call, monkeypatch))


@pytest.mark.parametrize("engine", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", ["point", "reduced"])
def test_compiled_equals_eager(ops: Ops, engine: str, kind: str) -> None:
    """Catches a graph break in the checks, and arguments that the compiler bakes in or reorders."""
    arguments, options = on_device(ops, kind=kind, is_injected=False, batch_size=ops.num_rows)
    out = empty_output(ops.num_rows, 4, torch.float32, torch.device(ops.device), True)

    def step(logits: Tensor, *rest: Any) -> tuple[Any, ...]:
        cutoff = logit_cutoff(logits, top_k=20, temperature=0.9, backend=ops.backend)
        settings = dict(options, target_cutoff=cutoff, backend=ops.backend)
        token = sample(logits[:, 0], temperature=options["temperature"], seed=options["seed"], backend=ops.backend)
        verify(logits, *rest, **settings, out=out)
        return cutoff, token, *verify(logits, *rest, **settings)

    want = step(*arguments)
    filled = [value.clone() for value in out]
    for value in out:
        value.zero_()
    torch._dynamo.reset()  # one code object may be compiled only a few times
    have = torch.compile(step, fullgraph=True, backend=engine)(*arguments)
    for left, right in zip((*have, *out), (*want, *filled), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("form", ["padded", "packed", "lean"])
def test_fake_shapes_are_the_real_ones(ops: Ops, form: str) -> None:
    """Catches a compiled graph that is planned for other shapes than it gets."""
    case = make_case(2, batch_size=ops.num_rows, dtypes=(torch.bfloat16, torch.bfloat16))
    arguments, options = case.packed() if form == "packed" else (case.arguments, case.options)
    options = dict(options, compute_tv=form != "lean")
    real = ops.verify(*arguments, **options)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        as_fake = {
            name: mode.from_tensor(value) if isinstance(value, Tensor) else value for name, value in options.items()
        }
        fake = verify(*map(mode.from_tensor, arguments), **as_fake)
    assert isinstance(fake, VerifyOutput)
    assert [(value.shape, value.dtype, value.stride()) for value in fake] == [
        (value.shape, value.dtype, value.stride()) for value in real
    ]
