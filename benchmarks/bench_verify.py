"""How long `verify` takes, beside peers, against the time of reading its bytes once.

    pytest benchmarks/bench_verify.py --benchmark-json OUT.json

On a CPU: rows with cold logits (copies over 1 GiB take turns) and hot ones (one copy again and again). On a GPU: rows
with replayed graphs, cold and hot, and rows that include the host. The contract tests of the op run first; a red one
stops the benchmark. The goals are tests that compare within one run, since a machine changes its pace. The table at the
end, with the passport of the run, is that of conftest.py.
"""

import statistics
import time
import timeit
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from peers import PEERS, Peer
from workloads import ACCEPTANCES, SHAPES, Shape, Workload

from metasd_kernels import VerifyOutput, logit_cutoff, make_workspace, verify

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHANCE = ACCEPTANCES[-1]
MODES = ["graph", "graph hot", "host"] if DEVICE == "cuda" else ["cold", "hot"]
SECONDS = 0.15 if DEVICE == "cuda" else 0.25  # for a row, roughly
COMPILED = 50_000  # the largest vocabulary for which torch.compile is worth the wait
OURS = Peer("verify", lambda *given: None, has_tv=True), Peer("verify, no TV", lambda *given: None, has_tv=False)
Call = Callable[[int], Any]


def cases() -> list[Any]:
    """Shape, acceptance, mode and peer of each row: ours and eager torch for every acceptance, others for one."""
    rows = []
    for shape, acceptance in product(SHAPES, ACCEPTANCES):
        peers = [OURS[0], PEERS["torch eager"]]
        modes = MODES if acceptance == CHANCE or DEVICE == "cpu" else MODES[:1]
        if acceptance == CHANCE:
            peers += [OURS[1], *(peer for name, peer in PEERS.items() if name != "torch eager")]
        for mode, peer in product(modes, peers):
            is_possible = peer.obstacle(shape.batch_size, DEVICE) is None and (DEVICE == "cuda" or not shape.is_for_gpu)
            is_possible &= peer.is_capturable or not mode.startswith("graph")
            is_possible &= peer.name != "torch.compile" or shape.vocab_size <= COMPILED
            if is_possible:
                name = f"{shape.name}-{acceptance}-{mode}-{peer.name}"
                rows.append(pytest.param(shape, acceptance, mode, peer, id=name))
    return rows


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


def time_to_read(workload: Workload) -> float:
    """Microseconds to read a copy's bytes; on a GPU its share of reading all copies at once, without launches."""
    if DEVICE == "cpu":
        return median_us(read_once(workload), 60)

    def read_all(turn: int) -> None:
        workload.raw.sum()
        torch.cuda.synchronize()

    return median_us(read_all, 10) / len(workload)


def captured(call: Call, num_calls: int) -> tuple[Call, int]:
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
    if shape.name not in read_us:
        read_us[shape.name] = time_to_read(workload)
    steady, calls_a_round, num_launches = call_of(peer, workload), 1, 1 if peer in OURS else None
    call = (lambda turn: steady(0)) if mode.endswith("hot") else steady
    if mode.startswith("graph"):
        calls_a_round = max(len(workload), 8)
        call, num_launches = captured(call, calls_a_round)
    elif mode == "host":
        call = lambda turn: (steady(turn), torch.cuda.synchronize())  # noqa: E731
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
    time.sleep(0.1)  # let other threads, which share the core, go to sleep
    best = 1e6 * min(timeit.repeat(lambda: verify(target, ids, draft), repeat=40, number=250)) / 250
    goals.append(f"B1 K5 V64: {best:.1f} us a call")
    assert best <= 25, goals[-1]
