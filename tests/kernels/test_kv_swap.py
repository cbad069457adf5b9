"""Copies between slots and pages: byte-equal to the reference, at every offset, and through a stand-in CUDA runtime."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from metasd_kernels import activate, park

BACKENDS = ("native", "reference")


def random_bytes(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Any bit pattern, NaNs among them: a copy must not look at values."""
    size = torch.empty((), dtype=dtype).element_size()
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8).view(dtype)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_round_trip_at_every_offset(backend: str, page_size: int) -> None:
    """Catches a page that is copied whole where a part of it is meant, and rows of another page."""
    torch.manual_seed(page_size)
    num_planes, capacity, size = 6, 2 * page_size + 3, 8
    num_pages = -(-capacity // page_size)
    page_ids = (torch.randperm(num_pages) * 2).tolist()  # out of order, with holes
    for begin in range(capacity):
        for end in {begin, begin + 1, (begin + capacity) // 2, capacity}:
            slot, pages = (
                random_bytes(num_planes, capacity, size),
                random_bytes(2 * num_pages, num_planes, page_size, size),
            )
            before = pages.clone()
            park(slot, pages, page_ids, begin, end, backend=backend)
            for page, own in enumerate(page_ids):
                for row in range(page_size):
                    token = page * page_size + row
                    wanted = slot[:, token] if begin <= token < end else before[own, :, row]
                    assert same_bytes(pages[own, :, row], wanted)
            other = [page for page in range(2 * num_pages) if page not in page_ids]
            assert same_bytes(pages[other], before[other])
            back = random_bytes(num_planes, capacity, size)
            wanted = back.clone()
            wanted[:, begin:end] = slot[:, begin:end]
            activate(back, pages, page_ids, begin, end, backend=backend)
            assert same_bytes(back, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_long_copies(dtype: torch.dtype, num_threads: int) -> None:
    """Catches tasks that overlap or leave a gap, and the tail of a copy that goes past the caches (from 512 KiB on)."""
    torch.set_num_threads(num_threads)
    torch.manual_seed(0)
    for planes, capacity, size, page_size in ((180, 700, 64, 16), (7, 3001, 130, 64), (2, 40000, 67, 1)):
        whole = random_bytes(planes, capacity + 5, size, dtype=dtype)
        slot = whole[:, :capacity]  # planes that do not touch
        num_pages = -(-capacity // page_size)
        pages = torch.zeros(num_pages, planes, page_size, size, dtype=dtype)
        page_ids = torch.randperm(num_pages).tolist()
        park(slot, pages, page_ids, 1, capacity - 1, backend="native")
        wanted = torch.zeros_like(pages)
        park(slot, wanted, page_ids, 1, capacity - 1, backend="reference")
        assert same_bytes(pages, wanted)
        back = torch.zeros_like(whole)
        activate(back[:, :capacity], pages, page_ids, 1, capacity - 1, backend="native")
        assert same_bytes(back[:, 1 : capacity - 1], whole[:, 1 : capacity - 1])
        assert not back[:, 0].any()
        assert not back[:, capacity - 1 :].any()


FAKE_RUNTIME = """
    #include <cstring>
    #include <cstddef>
    static int num_calls = 0;
    extern "C" {
    int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                          int kind, void* stream) {
        if (kind != 4 || stream != (void*)77 || width > to_pitch || width > from_pitch) return 1;
        ++num_calls;
        for (size_t i = 0; i < height; ++i) memcpy((char*)to + i * to_pitch, (const char*)from + i * from_pitch, width);
        return 0;
    }
    const char* cudaGetErrorString(int) { return "invalid argument"; }
    int count_calls() { return num_calls; }
    }
"""


def test_through_a_stand_in_for_the_cuda_runtime(tmp_path: Path) -> None:
    """Catches wrong pitches, widths, heights, streams, and an error of the runtime that goes unheard; the
    runtime's copy is replaced by one of the host's memory."""
    source, library = tmp_path / "runtime.cpp", tmp_path / "libcudart.so"
    source.write_text(textwrap.dedent(FAKE_RUNTIME))
    subprocess.run(
        ["c++", "-shared", "-fPIC", "-Wl,-soname,libcudart.so", "-o", library, source], check=True, timeout=120
    )
    script = f"""
        import ctypes, numpy, torch
        from metasd_kernels import _C, park
        slot, ids = torch.rand(6, 50, 8), numpy.array([4, 0, 2, 3])
        have, want = torch.zeros(5, 6, 16, 8), torch.zeros(5, 6, 16, 8)
        assert not _C.copy_tokens(slot, have, ids, 3, 50, True, 1, 77) and not have.any()
        library = ctypes.CDLL({str(library)!r})
    """
    rest = """
        park(slot, want, ids.tolist(), 3, 50)
        assert _C.copy_tokens(slot, have, ids, 3, 50, True, 1, 77)
        assert torch.equal(have, want) and library.count_calls() == 4
        back = torch.zeros_like(slot)
        assert _C.copy_tokens(back, have, ids, 3, 50, False, 1, 77)
        assert torch.equal(back[:, 3:], slot[:, 3:]) and not back[:, :3].any()
        try:
            _C.copy_tokens(slot, have, ids, 0, 50, True, 1, 78)
        except RuntimeError as error:
            assert str(error) == "copying a page of a key-value cache: invalid argument"
        else:
            raise AssertionError
    """
    for known in (False, True):  # what a first call does not find, a second one in the same process does not look for
        parts = script if not known else script.replace("assert not _C", "0 and _C") + rest
        subprocess.run([sys.executable, "-c", textwrap.dedent(parts)], check=True, timeout=120)


def refused(change: Callable[[dict[str, Any]], object]) -> str:
    arguments: dict[str, Any] = {
        "slot": torch.zeros(2, 10, 4), "pages": torch.zeros(3, 2, 4, 4), "page_ids": [0, 2, 1], "begin": 0, "end": 10,
    }  # fmt: skip
    change(arguments)
    with pytest.raises(ValueError, match=": expected ") as caught:
        park(**arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("slot", torch.zeros(2, 10), "slot: expected a tensor [P, C, D] with contiguous planes, got float32 [2, 10]"),
        ("slot", torch.zeros(2, 4, 10).mT, "slot: expected a tensor [P, C, D] with contiguous planes"),
        ("pages", torch.zeros(3, 2, 4, 5), "pages: expected a float32 tensor of shape [N, 2, S, 4]"),
        ("pages", torch.zeros(3, 2, 4, 4, dtype=torch.float16), "pages: expected a float32 tensor"),
        ("pages", torch.zeros(3, 2, 4, 8)[..., :4], "pages: expected a contiguous tensor"),
        ("pages", torch.zeros(3, 2, 0, 4), "pages: expected a contiguous tensor [N, P, S, D] with at least one token"),
        ("begin", -1, "begin, end: expected 0 <= begin <= end <= 10, the capacity of the slot, got -1, 10"),
        ("begin", 11, "begin, end: expected 0 <= begin <= end <= 10"),
        ("end", 11, "begin, end: expected 0 <= begin <= end <= 10"),
        ("page_ids", [0, 1], "page_ids: expected at least 3 pages for 10 tokens, got 2"),
        ("page_ids", [0, 3, 1], "page_ids: expected ids in [0, 3), got 3"),
        ("page_ids", [0, -1, 1], "page_ids: expected ids in [0, 3), got -1"),
        ("page_ids", [0, 1, 0], "page_ids: expected each page once, got [0, 1, 0]"),
        ("backend", "triton", "backend: expected one of ['auto', 'native', 'reference'], got 'triton'"),
    ],
)
def test_bad_input(name: str, value: object, message: str) -> None:
    assert refused(lambda arguments: arguments.update({name: value})).startswith(message)


def test_no_tokens_need_no_pages() -> None:
    park(torch.zeros(2, 10, 4), torch.zeros(0, 2, 4, 4), [], 0, 0)
