"""`park` and `activate`: a cache's valid prefix between a slot, where a model computes, and pages, where it waits.

Not registered with torch: a swap happens between captured graphs, never inside one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from metasd_kernels import _C, checks
from metasd_kernels.reference import kv_swap as reference

_BACKENDS = ("auto", "native", "reference")


def park(slot: Tensor, pages: Tensor, page_ids: Sequence[int], begin: int, end: int, *, backend: str = "auto") -> None:
    """Copy tokens [begin, end) of a slot into pages. Tokens of a page that lie outside keep what is there.

    On the CPU threads copy, and the call returns when all is copied. Where a side is on a GPU, the copies are queued on
    the current stream, and host pages must be pinned for them to be asynchronous.

    Args:
        slot: `[P, C, D]`, rows of C tokens in each of P planes (keys or values of a head of a layer); the last two
            dimensions are contiguous.
        pages: contiguous `[N, P, S, D]` of the same dtype: N pages of S tokens.
        page_ids: the page of tokens [0, S), of tokens [S, 2S), and so on, up to token `end - 1` at least.
        begin: the first token to copy.
        end: the first token not to copy, at most C.
        backend: "auto", "native" (threads, or the CUDA runtime) or "reference" (torch).

    Raises:
        ValueError: an argument is not of that form; the message names it.
        RuntimeError: the CUDA runtime refuses a copy.

    Example:
        >>> slot, pages = torch.arange(8.0).view(2, 4, 1), torch.zeros(3, 2, 2, 1)
        >>> park(slot, pages, [2, 0], 0, 3)
        >>> pages.flatten().tolist()
        [2.0, 0.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 4.0, 5.0]
    """
    _copy(slot, pages, page_ids, begin, end, backend, is_parking=True)


def activate(
    slot: Tensor, pages: Tensor, page_ids: Sequence[int], begin: int, end: int, *, backend: str = "auto"
) -> None:
    """Copy tokens [begin, end) of a parked cache back into a slot; arguments and errors as in `park`."""
    _copy(slot, pages, page_ids, begin, end, backend, is_parking=False)


def _copy(
    slot: Tensor, pages: Tensor, page_ids: Sequence[int], begin: int, end: int, backend: str, *, is_parking: bool
) -> None:
    _check(slot, pages, page_ids, begin, end, backend)
    if backend != "reference":
        on_gpu = slot.is_cuda or pages.is_cuda
        stream = (
            torch.cuda.current_stream(slot.device if slot.is_cuda else pages.device).cuda_stream if on_gpu else None
        )
        ids = np.asarray(page_ids, dtype=np.int64)
        if _C.copy_tokens(slot, pages, ids, begin, end, is_parking, torch.get_num_threads(), stream):
            return
        if backend == "native":
            raise ValueError("backend: 'native' needs a CUDA runtime for a slot on a GPU, and none is loaded")
    reference.copy_tokens(slot, pages, page_ids, begin, end, is_parking=is_parking)


def _check(slot: Tensor, pages: Tensor, page_ids: Sequence[int], begin: int, end: int, backend: str) -> None:
    if backend not in _BACKENDS:
        checks.refuse("backend", f"one of {list(_BACKENDS)}", repr(backend))
    if not isinstance(slot, Tensor) or slot.dim() != 3 or slot.stride()[1:] != (slot.shape[2], 1):
        checks.refuse("slot", "a tensor [P, C, D] with contiguous planes", checks.describe(slot))
    num_planes, capacity, size = slot.shape
    checks.tensor("pages", pages, ["N", num_planes, "S", size], [slot.dtype])
    if not pages.is_contiguous() or pages.shape[2] < 1:
        checks.refuse(
            "pages", "a contiguous tensor [N, P, S, D] with at least one token a page", checks.describe(pages)
        )
    if not 0 <= begin <= end <= capacity:
        checks.refuse("begin, end", f"0 <= begin <= end <= {capacity}, the capacity of the slot", f"{begin}, {end}")
    num_needed = -(-end // pages.shape[2])
    if len(page_ids) < num_needed:
        checks.refuse("page_ids", f"at least {num_needed} pages for {end} tokens", len(page_ids))
    used = list(page_ids[begin // pages.shape[2] : num_needed]) if begin < end else []
    wrong = next((page for page in used if not 0 <= page < len(pages)), None)
    if wrong is not None:
        checks.refuse("page_ids", f"ids in [0, {len(pages)})", wrong)
    if len(set(used)) < len(used):
        checks.refuse("page_ids", "each page once", list(page_ids))
