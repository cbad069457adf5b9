"""How long `verify` takes, beside peers, against the time of reading its bytes once.

    pytest benchmarks/bench_verify.py --benchmark-json OUT.json

On a CPU: rows with cold logits (copies over 1 GiB take turns) and hot ones (one copy again and again). On a GPU: rows
with replayed graphs and rows that include the host, cold. The contract tests of the op run first; a red one stops the
benchmark. The goals are tests that interleave what they compare, so that a busy machine slows both alike. The table at
the end, with the passport of the run, is that of conftest.py.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peers import PEERS, Peer
from workloads import ACCEPTANCES, SHAPES, Shape, Workload

from metasd_kernels import VerifyOutput, logit_cutoff, make_workspace, verify

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHANCE = ACCEPTANCES[-1]
HERE = [shape for shape in SHAPES if DEVICE == "cuda" or not shape.is_for_gpu]
MODES = ["graph", "host"] if DEVICE == "cuda" else ["cold", "hot"]
COMPILED = (1, 8)  # batch sizes of the smaller shapes, for which torch.compile is worth the wait on a CPU
SECONDS = 0.25  # for a row, roughly
OURS = Peer("verify", lambda *given: None, has_tv=True), Peer("verify, no TV", lambda *given: None, has_tv=False)
Call = Callable[[int], Any]


def cases() -> list[Any]:
    """Shape, acceptance, mode and peer of each row: ours and eager torch for every acceptance, others for one."""
    rows = []
    for shape in HERE:
        for acceptance in ACCEPTANCES:
            for mode in MODES:
                peers = [OURS[0], PEERS["torch eager"]]
                if acceptance == CHANCE:
                    peers += [OURS[1], *(peer for name, peer in PEERS.items() if name != "torch eager")]
                for peer in peers:
                    reason = peer.obstacle(shape.batch_size, DEVICE)
                    if reason or (peer.name == "torch.compile" and is_slow_to_compile(shape)):
                        continue
                    name = f"{shape.name}-{acceptance}-{mode}-{peer.name}"
                    rows.append(pytest.param(shape, acceptance, mode, peer, id=name))
    return rows


def is_slow_to_compile(shape: Shape) -> bool:
    return DEVICE == "cpu" and shape.vocab_size > 50_000


def ours(workload: Workload, compute_tv: bool) -> Call:
    """`verify` with a new nonce each turn; on a GPU with outputs and workspace of its own, as in a captured graph."""
    shape = workload.shape
    seed = torch.arange(shape.batch_size, device=DEVICE)
    if DEVICE == "cpu":
        return lambda turn: verify(*workload.at(turn), seed=seed, offset=turn, compute_tv=compute_tv)
    sizes = shape.batch_size, shape.num_draft_tokens, shape.vocab_size
    workspace, nonce = make_workspace(*sizes, device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    options: dict[str, Any] = {"seed": seed, "offset": nonce, "compute_tv": compute_tv, "workspace": workspace}
    out: VerifyOutput = verify(*workload.at(0), **options)
    return lambda turn: verify(*workload.at(turn), **options, out=out)


def call_of(peer: Peer, workload: Workload) -> Call:
    if peer in OURS:
        return ours(workload, peer.has_tv)
    return lambda turn: peer.call(*workload.at(turn))


def median_us(call: Callable[[int], Any], rounds: int, first: int = 0) -> float:
    times = []
    for turn in range(first, first + rounds):
        begin = time.perf_counter()
        call(turn)
        times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times)


def rounds_for(call: Call) -> int:
    """How many calls fit into the time of a row, at least a few; warms up as well."""
    for turn in range(3):
        call(turn)
    return min(max(int(SECONDS / (median_us(call, 5) * 1e-6)), 7), 400)


def read_once(workload: Workload) -> Call:
    """Reads a copy's bytes with all threads and does next to nothing with them."""
    return lambda turn: workload.raw[turn % len(workload)].sum()


def captured(call: Call, num_calls: int) -> tuple[Callable[[int], None], int]:
    """A graph of that many calls, which take turns, and how many kernels one call launches."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for turn in range(3):
            call(turn)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call(0)
        torch.cuda.synchronize()
    num_launches = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for turn in range(num_calls):
            call(turn)

    def replay(turn: int) -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay, num_launches


@pytest.mark.parametrize(("shape", "acceptance", "mode", "peer"), cases())
def test_speed(
    benchmark: Any, rows: list[dict[str, Any]], workload_of: Any, read_us: dict[str, float],
    shape: Shape, acceptance: str, mode: str, peer: Peer,
) -> None:  # fmt: skip
    """One row. On a GPU a graph holds as many calls as there are copies, and the time is that of one of them."""
    workload: Workload = workload_of(shape, acceptance)
    call, calls_a_round, num_launches = call_of(peer, workload), 1, 1 if peer in OURS else None
    if mode == "hot":
        steady = call
        call = lambda turn: steady(0)  # noqa: E731 - the nonce does not matter here
    if mode == "host":
        asynchronous = call

        def call(turn: int) -> None:
            asynchronous(turn)
            torch.cuda.synchronize()

    if mode == "graph":
        calls_a_round = len(workload)
        try:
            call, num_launches = captured(call, calls_a_round)
        except RuntimeError as error:
            torch.cuda.synchronize()
            pytest.skip(f"{peer.name} cannot be captured: {str(error).splitlines()[0]}")
    if shape.name not in read_us:
        read = read_once(workload)
        read_us[shape.name] = median_us(lambda turn: (read(turn), DEVICE == "cuda" and torch.cuda.synchronize()), 60)
    num_rounds, turns = rounds_for(call), iter(range(1 << 30))
    benchmark.pedantic(call, setup=lambda: ((next(turns),), {}), rounds=num_rounds)
    microseconds = 1e6 * benchmark.stats.stats.median / calls_a_round
    facts = {
        "shape": shape.name,
        "acceptance": acceptance,
        "mode": mode,
        "peer": peer.name,
        "has_tv": peer.has_tv,
        "us": round(microseconds, 2),
        "bytes": shape.num_bytes,
        "read_us": round(read_us[shape.name], 2),
        "share_of_bandwidth": round(read_us[shape.name] / microseconds, 3),
        "launches": num_launches,
    }
    benchmark.extra_info.update(facts)
    rows.append(facts)


def interleaved(calls: dict[str, Call], blocks: int = 11, calls_a_block: int = 24) -> dict[str, float]:
    """Median microseconds of the first call, and how many times as long the others take. They take turns in blocks, of
    which the first third does not count, and each block is compared with its neighbours: a machine changes its pace."""
    ours, ratios, turn = [], [], 0
    for _ in range(blocks):
        times = {}
        for name, call in calls.items():
            median_us(call, calls_a_block // 3, turn)
            times[name] = median_us(call, calls_a_block - calls_a_block // 3, turn + calls_a_block // 3)
            turn += calls_a_block
        mine = next(iter(times.values()))
        ours.append(mine)
        ratios.append([value / mine for value in times.values()])
    medians = map(statistics.median, zip(*ratios, strict=True))
    return dict(zip(calls, medians, strict=True)) | {next(iter(calls)): statistics.median(ours)}


cpu_only = pytest.mark.skipif(DEVICE != "cpu", reason="a goal of the CPU")


@cpu_only
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=lambda shape: shape.name)
def test_goals_on_the_cpu(workload_of: Any, goals: list[str], shape: Shape) -> None:
    """Cold, with TV: 8 times as fast as eager torch and transformers, 3 times the time of reading the bytes once."""
    workload: Workload = workload_of(shape, CHANCE)
    calls = {"verify": ours(workload, True), "read": read_once(workload)}
    for name in ("torch eager", "transformers"):
        if PEERS[name].obstacle(shape.batch_size, DEVICE) is None:
            calls[name] = call_of(PEERS[name], workload)
    ratios = interleaved(calls)
    mine = ratios.pop("verify")
    goals.append(
        f"{shape.name}: {mine:.0f} us; " + ", ".join(f"{name} {ratio:.2f} x" for name, ratio in ratios.items())
    )
    assert ratios.pop("read") >= 1 / 3, goals[-1]
    assert min(ratios.values()) >= 8, goals[-1]


@cpu_only
def test_goals_of_logit_cutoff(goals: list[str]) -> None:
    """Six rows of 49152 logits, top-p: 8 times as fast as the sort that others begin with."""
    logits = 3.0 * torch.randn(6, 49152, generator=torch.Generator().manual_seed(0))
    calls = {
        "logit_cutoff": lambda turn: logit_cutoff(logits, temperature=0.8, top_p=0.9),
        "sort": lambda turn: logits.sort(-1, descending=True),
    }
    found = interleaved(calls, blocks=5)
    goals.append(f"logit_cutoff {found['logit_cutoff']:.0f} us; sort alone {found['sort']:.2f} x")
    assert found["sort"] >= 8, goals[-1]


@cpu_only
def test_goal_of_the_host(goals: list[str]) -> None:
    """V = 64, B = 1, K = 5: at most 25 microseconds a call, all of it overhead."""
    target, draft, ids = torch.randn(1, 6, 64), torch.randn(1, 5, 64), torch.randint(0, 64, (1, 5))
    best = min(median_us(lambda turn: verify(target, ids, draft, offset=turn), 500) for _ in range(10))
    goals.append(f"B1 K5 V64: {best:.1f} us a call")
    assert best <= 25, goals[-1]
