"""How kernels are launched: data, with the reason for each number. `make aot` checks it against compiled code."""

from dataclasses import dataclass


@dataclass(frozen=True)
class VerifySettings:
    """One way to launch `verify`.

    Attributes:
        tile: ids a program, a multiple of 1024.
        num_warps: warps a program.
        maxnreg: limit of registers a thread; None: the compiler's choice.
        programs_per_processor: how many of its programs a multiprocessor holds at once, at the least: those that wait
            for each other must fit on the device together.
    """

    tile: int
    num_warps: int
    maxnreg: int | None
    programs_per_processor: int


SMALL = VerifySettings(tile=1024, num_warps=4, maxnreg=None, programs_per_processor=4)
LARGE = VerifySettings(tile=4096, num_warps=8, maxnreg=None, programs_per_processor=2)
VERIFY = {"small": SMALL, "large": LARGE}


def verify_settings(vocab_size: int, has_draft: bool) -> VerifySettings:
    """By the vocabulary alone: the same compiled kernel serves every batch size."""
    return SMALL if vocab_size <= 4096 else LARGE


CUTOFF_TILE, CUTOFF_WARPS = 4096, 16


def verify_floats_per_row(vocab_size: int) -> int:
    """Scratch floats that `verify` needs for one row, whatever settings a vocabulary of at most this size gets."""
    return max(-(-vocab_size // way.tile) * (8 + 2 * way.tile // 1024) for way in VERIFY.values())
