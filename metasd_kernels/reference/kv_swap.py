"""Copies between a cache slot and pages, page by page."""

from collections.abc import Sequence

from torch import Tensor


def copy_tokens(
    slot: Tensor, pages: Tensor, page_ids: Sequence[int], begin: int, end: int, *, is_parking: bool
) -> None:
    """Copy tokens [begin, end); see `metasd_kernels.park` and `activate`."""
    page_size = pages.shape[2]
    while begin < end:
        page, row = divmod(begin, page_size)
        until = min(end, (page + 1) * page_size)
        in_slot, in_page = slot[:, begin:until], pages[page_ids[page], :, row : row + until - begin]
        if is_parking:
            in_page.copy_(in_slot, non_blocking=True)
        else:
            in_slot.copy_(in_page, non_blocking=True)
        begin = until
