"""`verify` inside a captured CUDA graph: what only a GPU can show. Edge cases 15, 24 and 26 of the contract's list."""

import pytest
import torch
from cases import make_case
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from metasd_kernels import VerifyOutput, make_workspace, verify
from metasd_kernels.outputs import empty_output

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
REPLAYS = 1000


def on_gpu(**options: object) -> tuple[list[Tensor | None], dict[str, object]]:
    case = make_case(1, is_injected=False, **options)
    arguments = [None if value is None else value.cuda() for value in case.arguments]
    settings = {name: value.cuda() if isinstance(value, Tensor) else value for name, value in case.options.items()}
    return arguments, settings | {"offset": torch.zeros(1, dtype=torch.int64, device="cuda")}


@pytest.mark.parametrize("kind", ["point", "dense", "reduced", "sparse"])
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("vocab_size", [1500, 32000])
def test_replays_equal_eager_calls(rule: str, kind: str, vocab_size: int) -> None:
    """Catches coins baked into the graph, counters left dirty, and partial results of an older replay that are read."""
    arguments, options = on_gpu(rule=rule, kind=kind, vocab_size=vocab_size)
    workspace = make_workspace(24, 4, vocab_size, device="cuda")
    out = empty_output(24, 4, torch.float32, torch.device("cuda"), compute_tv=True)
    verify(*arguments, **options, backend="triton", out=out, workspace=workspace)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        verify(*arguments, **options, backend="triton", out=out, workspace=workspace)
    workspace.partials.fill_(float("nan"))
    tokens = set()
    for replay in range(REPLAYS):
        options["offset"].fill_(replay)
        graph.replay()
        want = verify(*arguments, **options, backend="triton")
        for name, mine, theirs in zip(VerifyOutput._fields, out, want, strict=True):
            assert torch.equal(mine, theirs), (replay, name)
        tokens.add(tuple(out.output_token_ids.flatten().tolist()))
    assert not workspace.counters.any()
    assert len(tokens) > REPLAYS // 2  # fresh coins draw fresh tokens


@pytest.mark.parametrize("kind", ["point", "dense"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_call_is_one_launch(rule: str, kind: str) -> None:
    """Catches a helper kernel beside the fused one: a copy, a memset, a cast."""
    arguments, options = on_gpu(rule=rule, kind=kind, vocab_size=32000)
    out = empty_output(24, 4, torch.float32, torch.device("cuda"), compute_tv=True)
    workspace = make_workspace(24, 4, 32000, device="cuda")
    options["num_draft_tokens"] = options["num_draft_tokens"].int()
    verify(*arguments, **options, backend="triton", out=out, workspace=workspace)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        verify(*arguments, **options, backend="triton", out=out, workspace=workspace)
        torch.cuda.synchronize()
    kernels = [event.name for event in trace.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 1, kernels


def test_more_programs_than_the_device_holds() -> None:
    """Catches a deadlock of waiting programs: 256 requests of 9 rows over a large vocabulary, tickets in use."""
    batch_size, vocab_size = 256, 32000
    generator = torch.Generator("cuda").manual_seed(0)
    target = torch.randn(batch_size, 9, vocab_size, device="cuda", generator=generator, dtype=torch.bfloat16)
    draft = torch.randn(batch_size, 8, vocab_size, device="cuda", generator=generator, dtype=torch.bfloat16)
    ids = torch.randint(vocab_size, (batch_size, 8), device="cuda", generator=generator)
    seeds = torch.arange(batch_size, device="cuda")
    for rule in ("token", "block"):
        options = {"temperature": 0.8, "seed": seeds, "offset": 3, "rule": rule}
        for _ in range(20):
            have = verify(target, ids, draft, **options, backend="triton")
            assert not have.status.any()
        want = verify(target, ids, draft, **options, backend="reference")
        assert (have.output_token_ids == want.output_token_ids).float().mean() > 0.999  # the tie band apart
        torch.testing.assert_close(have.tv_distance, want.tv_distance, rtol=0, atol=2e-6)
