"""Native parts of metasd_kernels (C++, no torch). Built by CMakeLists.txt from csrc/."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from metasd_kernels.inputs import CutoffInputs, SampleInputs, VerifyInputs
from metasd_kernels.outputs import VerifyOutput

def verify(inputs: VerifyInputs, out: VerifyOutput, num_threads: int, instruction_set: str, /) -> None:
    """`metasd_kernels.verify` on checked inputs. `instruction_set`: as below, or "" for the best of this processor."""

def sample(inputs: SampleInputs, out: Tensor, num_threads: int, instruction_set: str, /) -> None:
    """`metasd_kernels.sample` on checked inputs."""

def logit_cutoff(inputs: CutoffInputs, out: Tensor, num_threads: int, instruction_set: str, /) -> None:
    """`metasd_kernels.logit_cutoff` on checked inputs."""

def copy_tokens(
    slot: Tensor,
    pages: Tensor,
    page_ids: NDArray[np.int64],
    begin: int,
    end: int,
    is_parking: bool,
    num_threads: int,
    stream: int | None,
    /,
) -> bool:
    """`metasd_kernels.park` and `activate` on checked arguments. `stream`: of the GPU that a side is on, as a handle;
    False where that takes a CUDA runtime and the process has loaded none."""

def instruction_set() -> str:
    """The vectorised loops that this processor gets: "portable", "avx2" or "avx512"."""

class SuffixAutomaton:
    """Every substring of a growing text of token ids, with how often it occurred and what followed.

    Appending is amortised O(1) a token; a token takes about 100 to 200 bytes. One object belongs to one thread at a
    time: `extend` lets other threads run during long appends, and nothing locks.

    Each append counts at most 256 contexts, the longest first. In natural text that is all there are to tell apart. In
    degenerate text ("aaaa...") the shorter ones are under-counted, so that appending stays linear.

    Source: Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985.

    >>> automaton = SuffixAutomaton()
    >>> automaton.extend([1, 2, 3, 1, 2, 4, 1, 2, 3, 9, 1, 2])
    >>> automaton.match_length()  # 1 2 occurred before
    2
    >>> automaton.draft(max_tokens=2)
    ([3, 9], [0.6666666666666666, 0.5], 2)
    """

    def __init__(self) -> None: ...
    def extend(self, tokens: Sequence[int] | NDArray[np.int32] | NDArray[np.int64]) -> None:
        """Append tokens to the text.

        Args:
            tokens: token ids in [0, 2**31): a sequence of ints, or a one-dimensional array or other buffer of int32 or
                int64, contiguous or not.

        Raises:
            ValueError: an id is out of range (the error names it), the buffer is not one-dimensional, or the text would
                exceed 2**29 tokens. The text is unchanged.
            TypeError: not integers.
        """

    def match_length(self) -> int:
        """Tokens in the longest suffix of the text that also occurs earlier (overlaps count); 0 if there is none."""

    def draft(self, max_tokens: int, min_match: int = 1) -> tuple[list[int], list[float], int]:
        """Guess the text's next tokens: what followed its longest repeated suffix, most frequent first.

        Each step takes the token that most often followed suffix plus drafted tokens (ties: the most recent). Where
        that context stands only at the text's end, the longest shorter one that has a continuation takes its place;
        the draft ends early where that is shorter than `min_match`.

        Args:
            max_tokens: limit of drafted tokens, >= 0.
            min_match: draft nothing if `match_length()` is below this, >= 1.

        Returns:
            token_ids: at most `max_tokens`, maybe none.
            probabilities: for each token, its share of the continuations seen at its place, in (0, 1]. A measure of
                confidence, not the law the token was drawn from: the draft is deterministic.
            match_length: as `match_length()`, also where nothing is drafted.

        Raises:
            ValueError: an argument is below its minimum.
        """

    def continuations(self, max_context: int) -> list[tuple[int, int]]:
        """Tokens that followed the longest repeated suffix, cut to its last `max_context` tokens, with their counts.

        Args:
            max_context: limit of the context's length, >= 0; with 0 the counts are those of all tokens of the text.

        Returns:
            (token, count) pairs, the most frequent first (ties: the most recent). Empty for an empty text.

        Raises:
            ValueError: `max_context` is negative.
        """

    def size(self) -> int:
        """Tokens in the text."""

    def num_states(self) -> int:
        """States of the automaton, the root included; at most twice the text's tokens, and at least 1."""

    def memory_bytes(self) -> int:
        """Bytes held, reserved space included; `clear` gives none back, so that the next text need not ask again."""

    def clear(self) -> None:
        """Forget the text."""

class NgramTable:
    """An n-gram language model's counts in flat arrays, which may be those of a mapped file, and its law.

    Interpolated from the shortest context to the longest: with c the count of a context and d the number of its
    different continuations, p_n(x) = (count(x) + d p_{n-1}(x)) / (c + d).

    Source: Witten and Bell, "The zero-frequency problem", 1991 (method C).
    """

    def __init__(
        self,
        levels: Sequence[tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.int32], NDArray[np.uint16]]],
    ) -> None:
        """Take the arrays as they are; they are kept alive.

        Args:
            levels: (keys, starts, ids, counts) of the contexts of 0, 1, ... tokens: `[C]` hashes, ascending; `[C+1]`,
                where each context's continuations begin; `[E]` their token ids and counts, the most frequent first.

        Raises:
            ValueError: an array has another type, or the arrays of a level do not fit together.
        """

    def law(self, context: Sequence[int], ids: NDArray[np.int64], logits: NDArray[np.float32]) -> tuple[int, int]:
        """Write the law behind `context` over the tokens listed for it, at most S, renormalised.

        Args:
            context: token ids; the last `max_context()` count.
            ids, logits: `[S]`, written: distinct ids, the most probable first, with log-probabilities; unused slots get
                -1 and -inf.

        Returns:
            the number of listed tokens, and of the tokens of the longest known context.

        Raises:
            ValueError: `ids` and `logits` do not have one dimension and the same length.
        """

    def laws(
        self,
        context: Sequence[int],
        token_ids: Sequence[int],
        ids: NDArray[np.int64],
        logits: NDArray[np.float32],
    ) -> list[int]:
        """Write the laws behind `context` and behind each of the tokens that follow it but the last.

        Args:
            context: token ids.
            token_ids: m of them, behind the context.
            ids, logits: `[m, S]`, written: row i as by `law` before `token_ids[i]`.

        Returns:
            of each law, the tokens of the longest known context.

        Raises:
            ValueError: `ids` and `logits` do not have m rows and the same shape.
        """

    def max_context(self) -> int:
        """Tokens of the longest contexts."""
