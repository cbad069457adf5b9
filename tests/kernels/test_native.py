"""The native backend's own promises: the same bits for any number of threads and instruction set, and its threads."""

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from cases import Case, assert_same, make_case

from metasd_kernels import _C, VerifyOutput, logit_cutoff, native, sample, verify
from metasd_kernels.inputs import CutoffInputs, PerRow

SETS = ["portable", "avx2", "avx512"]
AVAILABLE = SETS[: SETS.index(_C.instruction_set()) + 1]
THREADS = [1, 2, 3, 5]
INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param not in AVAILABLE:
        pytest.skip(f"this processor lacks {request.param}")
    monkeypatch.setattr(native, "_INSTRUCTION_SET", request.param)
    return request.param


def run(case: Case, **options: object) -> VerifyOutput:
    return verify(*case.arguments, **case.options | options, backend="native")


def same_bits(have: VerifyOutput, want: VerifyOutput) -> bool:
    return all(torch.equal(left, right) for left, right in zip(have, want, strict=True))


# More target logits than a single thread takes alone; rows that divide evenly among threads, and rows that do not.
SHAPES = {"many rows": (5, 3, 5000), "few rows": (1, 1, 40_000), "one row": (1, 0, 151_936)}


KINDS = ("point", "dense", "wider", "reduced", "sparse")
# Without drafts there is nothing to map.
SHAPED = [(shape, kind) for shape in SHAPES for kind in (KINDS if SHAPES[shape][1] else KINDS[:3])]


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(("shape", "kind"), SHAPED)
def test_same_bits_for_any_number_of_threads(shape: str, rule: str, kind: str) -> None:
    """Catches sums in an order that depends on who computes them, and parts of a row that are lost or counted twice."""
    batch_size, num_draft_tokens, vocab_size = SHAPES[shape]
    for seed in range(4):
        case = make_case(
            seed, rule=rule, kind=kind, batch_size=batch_size, num_draft_tokens=num_draft_tokens, vocab_size=vocab_size,
            use_cutoffs=seed % 2 == 1 and num_draft_tokens > 0, dtypes=(torch.float32, torch.bfloat16),
        )  # fmt: skip
        case.options["num_draft_tokens"].fill_(num_draft_tokens)
        case.options["temperature"].fill_(0.7)
        case.options["draft_temperature"].fill_(1.1)
        for compute_tv in (True, False):
            torch.set_num_threads(1)
            want = run(case, compute_tv=compute_tv)
            for threads in THREADS[1:]:
                torch.set_num_threads(threads)
                assert same_bits(run(case, compute_tv=compute_tv), want), (seed, threads)


@pytest.mark.parametrize("kind", ["point", "dense", "narrower", "sparse"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_same_bits_for_any_instruction_set(instruction_set: str, rule: str, kind: str) -> None:
    """Catches sums over as many lanes as a register has, and products that one compiler fuses and another does not."""
    for seed, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):
        case = make_case(seed, rule=rule, kind=kind, dtypes=(dtype, dtype), use_cutoffs=seed == 1, vocab_size=3001)
        for threads in THREADS:
            torch.set_num_threads(threads)
            have = run(case)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(native, "_INSTRUCTION_SET", AVAILABLE[-1])
                assert same_bits(have, run(case)), (seed, threads)


def test_sample_and_cutoff_for_any_threads_and_instruction_set(instruction_set: str) -> None:
    """The same for the other two ops."""
    for rows, vocab_size, dtype in ((1, 151_936, torch.bfloat16), (7, 9001, torch.float32)):
        logits = (3 * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(rows))).to(dtype)
        found = set()
        for threads in THREADS:
            torch.set_num_threads(threads)
            cutoff = logit_cutoff(logits, temperature=0.8, top_k=3000, top_p=0.9, backend="native")
            kept = (logits >= cutoff.unsqueeze(-1)).sum(-1)
            assert ((kept > 0) & (kept < 3000)).all()
            tokens = [
                sample(logits, temperature=0.8, cutoff=c, seed=torch.arange(rows), offset=o, backend="native")
                for o in range(10)
                for c in (None, cutoff)
            ]
            found.add((tuple(cutoff.tolist()), tuple(torch.cat(tokens).tolist())))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "_INSTRUCTION_SET", AVAILABLE[-1])
            assert torch.equal(cutoff, logit_cutoff(logits, temperature=0.8, top_k=3000, top_p=0.9, backend="native"))
        assert len(found) == 1


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 0.01, 1.0, 1e4])
def test_tiles_whose_first_block_misleads(instruction_set: str, temperature: float) -> None:
    """The exponentials of a tile are scaled by its first logits. Catches overflow where these are low or masked, where
    the cutoff lies far above them, where a NaN or +inf hides in a masked place, and where logits are huge."""
    target = torch.randn(40, 2, 3000, generator=torch.Generator().manual_seed(1))
    target[:, :, 1000] += torch.linspace(0, 40, 40).unsqueeze(-1)
    target[5:10, :, :2100] = -INF
    target[10:15, :, :40] -= 1000
    target[15:20] *= 1e6
    target[20:23, 0, 2500], target[23:25, 1, 7] = NAN, INF
    target[25:30] += 1e5
    draft = target[:, :1] + 0.3 * torch.randn(40, 1, 3000, generator=torch.Generator().manual_seed(2))
    ids = draft.nan_to_num(nan=-INF, posinf=-INF).argmax(-1)
    options = {"temperature": temperature, "draft_temperature": 1.5 * temperature, "seed": torch.arange(40)}
    cutoff = target.nan_to_num(nan=-INF, posinf=-INF).sort(-1).values[..., -5]
    for extra in ({}, {"target_cutoff": cutoff, "draft_cutoff": cutoff[:, :1] - 1}):
        have, want = (verify(target, ids, draft, **options, **extra, backend=name) for name in ("native", "reference"))
        assert torch.equal(have.status, want.status)
        assert_same(have, want)


def test_several_python_threads_at_once() -> None:
    """Catches calls that share scratch memory, and a pool that waits for itself."""
    torch.set_num_threads(2)
    cases = [make_case(seed, batch_size=4, vocab_size=6000) for seed in range(4)]
    want, failures = [run(case) for case in cases], []

    def repeat(index: int) -> None:
        for _ in range(40):
            if not same_bits(run(cases[index]), want[index]):
                failures.append(index)

    threads = [threading.Thread(target=repeat, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures


def test_after_a_fork() -> None:
    """Catches a child that waits for its parent's threads or for a lock that one of them held, and threads of our own,
    which a child has in place of OpenMP's, that give other results."""
    script = """
        import os, threading, torch
        from metasd_kernels import verify
        torch.set_num_threads(2)
        target, draft = torch.randn(4, 3, 20000), torch.randn(4, 2, 20000)
        ids, seed = torch.zeros(4, 2, dtype=torch.int64), torch.arange(4)
        def call():
            return [value.tolist() for value in verify(target, ids, draft, seed=seed, backend="native")]
        def is_right_with(threads):
            torch.set_num_threads(threads)
            return all(call() == want for _ in range(20))
        want, stop = call(), threading.Event()
        def keep_busy():
            while not stop.is_set():
                call()
        busy = threading.Thread(target=keep_busy)
        busy.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(map(is_right_with, (2, 3, 5, 1, 2))) else 1)
            failed = os.waitpid(child, 0)[1] != 0
            if failed:
                break
        stop.set()
        busy.join()  # torch aborts where the interpreter ends beside a call
        assert not failed
        assert call() == want
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], check=True, timeout=120)


def test_helpers_sleep_between_calls() -> None:
    """Catches threads that look out for the next call for long: they would burn a core between two rounds."""
    torch.set_num_threads(2)
    case = make_case(0, batch_size=4, vocab_size=20_000)
    spent = []
    for _ in range(5):  # torch's own threads may still be spinning the first time
        run(case)
        before = time.process_time()
        time.sleep(0.1)
        spent.append(time.process_time() - before)
    assert min(spent) < 0.02


def test_wrong_calls_of_the_core_are_refused() -> None:
    """Catches fields read from the wrong place where the binding and the input tuples get out of step."""
    logits, out = torch.zeros(2, 5), torch.zeros(2)
    one = PerRow(1.0)
    inputs = CutoffInputs(logits, one, PerRow(2), one, PerRow(0.0))
    _C.logit_cutoff(inputs, out, 1, "portable")
    with pytest.raises(TypeError, match="expected 5 inputs, got 4"):
        _C.logit_cutoff(inputs[:4], out, 1, "")
    with pytest.raises(TypeError, match="PerRow"):
        _C.logit_cutoff(inputs._replace(top_k=2), out, 1, "")
    with pytest.raises(TypeError):
        _C.logit_cutoff(inputs._replace(temperature=PerRow("warm")), out, 1, "")
    with pytest.raises(ValueError, match="instruction set"):
        _C.logit_cutoff(inputs, out, 1, "none")
