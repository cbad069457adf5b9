"""How kernels are launched: data, with the reason for each number. `make aot` checks it against compiled code."""

from dataclasses import dataclass


@dataclass(frozen=True)
class VerifySettings:
    """One way to launch `verify`, and `sample`.

    Attributes:
        max_vocab_size: serves vocabularies up to here; the same compiled kernel then serves every batch size.
        is_heavy: serves what holds more in registers: the block rule (the laws of all rows before), sparse drafts.
        tile: ids a program, a multiple of 1024. Larger tiles spread a program's fixed work over more ids.
        num_warps: warps a program.
        maxnreg: limit of registers a thread at which nothing spills; it decides how many programs share a processor.
        programs_per_processor: how many of its programs a multiprocessor holds at once, at the least: those that wait
            for each other must fit on the device together.
    """

    max_vocab_size: int
    is_heavy: bool
    tile: int
    num_warps: int
    maxnreg: int
    programs_per_processor: int


_ANY = 1 << 40
VERIFY = (
    VerifySettings(4096, is_heavy=False, tile=1024, num_warps=4, maxnreg=128, programs_per_processor=4),
    VerifySettings(1 << 16, is_heavy=False, tile=4096, num_warps=8, maxnreg=96, programs_per_processor=2),
    VerifySettings(_ANY, is_heavy=False, tile=8192, num_warps=8, maxnreg=128, programs_per_processor=2),
    VerifySettings(4096, is_heavy=True, tile=1024, num_warps=4, maxnreg=128, programs_per_processor=4),
    VerifySettings(_ANY, is_heavy=True, tile=4096, num_warps=8, maxnreg=128, programs_per_processor=2),
)
CUTOFF_TILE, CUTOFF_WARPS = 4096, 16  # one program searches a row: many warps hide the latency of its passes


def verify_settings(vocab_size: int, is_heavy: bool = False) -> VerifySettings:
    """The settings for a target vocabulary: never by the batch size, so that one compiled kernel serves them all."""
    return next(way for way in VERIFY if vocab_size <= way.max_vocab_size and is_heavy == way.is_heavy)


def verify_floats_per_row(vocab_size: int) -> int:
    """Scratch floats that `verify` needs for one row, whatever settings a vocabulary of at most this size gets."""
    return max(-(-vocab_size // way.tile) * (8 + 2 * way.tile // 1024) for way in VERIFY)
