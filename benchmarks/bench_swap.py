"""How long a swap takes beside a copy of as many bytes from one flat buffer to another.

    pytest benchmarks/bench_swap.py -q -s --benchmark-json OUT.json

The cache of a small Llama (30 layers, 3 heads of 64, fp32: 45 KiB a token). On a CPU both sides are in host memory; on
a GPU the slot is there, the pages are pinned, and the flat copy goes over the same bus. Copies take turns within one
run, and each pair of buffers is used again only after 1 GiB of others: nothing is in a cache when its turn comes.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from metasd_kernels import activate, park

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_PLANES, SIZE = 30 * 2 * 3, 64
TOKEN = NUM_PLANES * SIZE * 4
GOAL = 0.8  # of the bandwidth of the flat copy, from 1 MiB and 16 tokens a page on
MIB = 1 << 20


class Caches:
    """So many slots of n tokens with their pages, in turn."""

    def __init__(self, num_bytes: int, page_size: int) -> None:
        self.num_tokens = -(-num_bytes // TOKEN)
        count = max(2, min(400, (1 << 30) // (2 * num_bytes)))
        num_pages = -(-self.num_tokens // page_size)
        self.slots = [torch.rand(NUM_PLANES, self.num_tokens + 9, SIZE, device=DEVICE) for _ in range(count)]
        self.pages = [pinned(torch.rand(num_pages, NUM_PLANES, page_size, SIZE)) for _ in range(count)]
        self.page_ids = torch.randperm(num_pages, generator=torch.Generator().manual_seed(0)).tolist()
        self.num_bytes = self.num_tokens * TOKEN

    def swap(self, function: Callable[..., None], turn: int) -> None:
        at = turn % len(self.slots)
        function(self.slots[at], self.pages[at], self.page_ids, 0, self.num_tokens)

    def copy(self, turn: int, is_parking: bool) -> None:
        """The flat copy: the same number of bytes, between the same buffers."""
        at = turn % len(self.slots)
        num_words = self.num_bytes // 4
        inside, outside = self.slots[at].view(-1)[:num_words], self.pages[at].view(-1)[:num_words]
        if is_parking:
            outside.copy_(inside, non_blocking=True)
        else:
            inside.copy_(outside, non_blocking=True)


def pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if DEVICE == "cuda" else tensor


def seconds(call: Callable[[], object]) -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


@pytest.mark.parametrize("mib", [1, 4, 32, 128])
@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("function", [park, activate], ids=["park", "activate"])
def test_swap(benchmark: Any, goals: list[str], function: Callable[..., None], page_size: int, mib: int) -> None:
    caches = Caches(mib * MIB, page_size)
    times: dict[str, list[float]] = {"swap": [], "copy": []}
    num_turns = max(12, 1200 // mib // 4)
    for turn in range(2 * len(caches.slots) if mib < 32 else 4):  # the first touch of memory is dearer
        caches.swap(function, turn)
    for turn in range(num_turns):
        times["swap"].append(seconds(lambda turn=turn: caches.swap(function, 2 * turn)))
        times["copy"].append(seconds(lambda turn=turn: caches.copy(2 * turn + 1, function is park)))
    swap, copy = (statistics.median(times[name]) for name in ("swap", "copy"))
    benchmark.extra_info.update(num_bytes=caches.num_bytes, copy_seconds=copy, swap_seconds=swap, ratio=copy / swap)
    turns = iter(range(1 << 30))
    benchmark.pedantic(lambda: caches.swap(function, next(turns)), rounds=5, iterations=1)
    goals.append(
        f"{function.__name__} {mib} MiB, pages of {page_size}: {caches.num_bytes / swap / 1e9:.1f} GB/s, "
        f"{copy / swap:.2f} of a flat copy ({GOAL})"
    )
    assert copy / swap >= GOAL
