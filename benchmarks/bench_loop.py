"""What the loop costs beside the models, on the demo target.

    pytest benchmarks/bench_loop.py -q -s

Three goals, each within one run: a round's time without forward passes and verify op; a switch after a gap against one
forward pass over as many tokens; a forward pass over M positions in units of one over a single position, against the
same for the model's matrices alone.
"""

import statistics
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from metasd import MetaSD, SamplingParams
from metasd.config import EngineConfig
from metasd.core import NULL_ARM
from metasd.drafters import Drafter, load_drafters
from metasd.drafters.lm import LMDrafter
from metasd.target import Target

PROMPT = [{"role": "user", "content": "Explain in a few sentences how a bicycle stays upright."}]
OVERHEAD_MS = 2.0
SWITCH = 1.15  # times the forward pass: the clock itself, and what is read of it
LINEARS = 1.1


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load("demo", dtype="float32")


@pytest.mark.parametrize(
    "bandit", ["auto", "fixed:arm=eagle-generalist", "fixed:arm=ngram-lm-generalist", "fixed:arm=null"]
)
def test_engine_overhead(target: Target, goals: list[str], bandit: str) -> None:
    """Of a round: all but forward passes of target and drafters, and the verify op."""
    engine = MetaSD(target, load_drafters("demo", target), EngineConfig.build(bandit=bandit))
    params = SamplingParams(max_new_tokens=96, ignore_eos=True)
    engine.generate(PROMPT, params)
    rounds = engine.generate(PROMPT, params).rounds[1:]
    timed = [record.engine_seconds for record in rounds if record.engine_seconds is not None]
    assert len(timed) == len(rounds)
    overhead = 1000 * statistics.median(timed)
    goals.append(f"engine overhead, {bandit}: {overhead:.2f} ms a round ({OVERHEAD_MS:.0f})")
    assert overhead <= OVERHEAD_MS


@pytest.mark.parametrize("gap", [4, 16, 64])
def test_a_switch_costs_one_forward_pass_over_the_gap(target: Target, goals: list[str], gap: int) -> None:
    """The drafter is the target's own model, whose forward pass is dear enough to be measured."""
    drafter = LMDrafter(target, "twin", model=target.model)
    arms: dict[str, Drafter] = {"twin": drafter, NULL_ARM: load_drafters(["null"], target)[NULL_ARM]}
    engine = MetaSD(target, arms, EngineConfig.build(bandit="fixed", num_draft_tokens=1))
    prompt = target.encode(PROMPT)
    with torch.inference_mode():
        engine.generate(prompt, SamplingParams(max_new_tokens=2))
        pool, text = engine.pool, iter(range(10, 10**6))

        def fall_behind() -> None:
            pool.activate(NULL_ARM)
            pool.commit(NULL_ARM, [next(text) % 40000 for _ in range(gap)], 0)

        def forward_alone() -> Tensor:
            return drafter.cache.feed(torch.full((1, gap), 9), 1)

        pool.activate("twin")
        alone, switch = [], []
        for _ in range(12):  # in turn: a machine changes its pace
            fall_behind()
            begin = time.perf_counter()
            pool.activate("twin")
            switch.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            forward_alone()
            alone.append(time.perf_counter() - begin)
            drafter.cache.rewind(gap)
    ratio = statistics.median(switch[2:]) / statistics.median(alone[2:])
    goals.append(
        f"a switch after {gap} tokens: {1000 * statistics.median(switch[2:]):.1f} ms, "
        f"{ratio:.2f} forward passes ({SWITCH})"
    )
    assert ratio <= SWITCH


def linears(model: nn.Module) -> Iterator[nn.Linear]:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield module


@pytest.mark.parametrize("num_positions", [3, 5])
def test_positions_cost_what_the_matrices_allow(target: Target, goals: list[str], num_positions: int) -> None:
    """A cache or a mask that costs more the more positions there are shows here."""
    with torch.inference_mode():
        target.start(target.encode(PROMPT))
        matrices = [module.weight for module in linears(target.model)]

        def alone(count: int) -> None:
            for weight in matrices:
                nn.functional.linear(inputs[count, weight.shape[1]], weight)

        counts = (1, num_positions)
        inputs = {(n, w.shape[1]): torch.randn(n, w.shape[1]) for w in matrices for n in counts}
        blocks = {n: torch.full((1, n), 9) for n in counts}
        times: dict[str, list[float]] = {f"{kind} {n}": [] for kind in ("engine", "linears") for n in counts}
        for _ in range(25):
            for n in counts:
                begin = time.perf_counter()
                target.score(blocks[n])
                times[f"engine {n}"].append(time.perf_counter() - begin)
                target.rewind(n)
                begin = time.perf_counter()
                alone(n)
                times[f"linears {n}"].append(time.perf_counter() - begin)
    middle = {name: statistics.median(values) for name, values in times.items()}
    engine = middle[f"engine {num_positions}"] / middle["engine 1"]
    allowed = middle[f"linears {num_positions}"] / middle["linears 1"]
    goals.append(
        f"{num_positions} positions: {engine:.2f} times one (matrices alone: {allowed:.2f}); "
        f"{1000 * middle['engine 1']:.1f} ms for one, matrices {1000 * middle['linears 1']:.1f} ms"
    )
    assert engine <= LINEARS * allowed
