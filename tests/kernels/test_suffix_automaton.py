"""The suffix automaton against a definition of the same law that reads the whole text for each question."""

import array
import time
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metasd_kernels._C import SuffixAutomaton

MAX_COUNTED = 256  # contexts counted at each position, as the stub promises


class NaiveText:
    """Quadratic oracle: no automaton, no incremental counts."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def occurs_before_end(self, context: list[int]) -> bool:
        return any(self.tokens[i : i + len(context)] == context for i in range(len(self.tokens) - len(context)))

    def match(self) -> list[int]:
        n = len(self.tokens)
        return next(s for s in (self.tokens[i:] for i in range(min(1, n), n + 1)) if not s or self.occurs_before_end(s))

    def ranked(self, context: list[int]) -> list[tuple[int, int]]:
        """(token, count) after the context; most frequent first, then most recent."""
        ends = range(len(context), len(self.tokens))
        places = [i for i in ends if self.tokens[i - len(context) : i] == context]
        counts = Counter(self.tokens[i] for i in places)
        latest = {self.tokens[i]: i for i in places}
        return sorted(counts.items(), key=lambda item: (-item[1], -latest[item[0]]))

    def continuations(self, max_context: int) -> list[tuple[int, int]]:
        match = self.match()
        return self.ranked(match[max(0, len(match) - max_context) :])

    def draft(self, max_tokens: int, min_match: int) -> tuple[list[int], list[float], int]:
        match = self.match()
        context, token_ids, probabilities = list(match), [], []
        while len(match) >= min_match and len(token_ids) < max_tokens:
            while not (ranked := self.ranked(context)):  # nothing follows at the text's end
                context = context[1:]
            if len(context) < min_match:
                break
            token_ids.append(ranked[0][0])
            probabilities.append(ranked[0][1] / sum(count for _, count in ranked))
            context.append(ranked[0][0])
        return token_ids, probabilities, len(match)


def build(tokens: object) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(tokens)
    return automaton


def chunked_texts(alphabet: int, max_chunk: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, alphabet - 1), max_size=max_chunk), max_size=8)


@settings(max_examples=200, deadline=None)
@given(chunks=st.one_of(chunked_texts(2, 20), chunked_texts(3, 20), chunked_texts(12, 12)))
def test_agrees_with_the_oracle_after_every_append(chunks: list[list[int]]) -> None:
    """Catches a clone that loses its count, ties broken the wrong way, and the text's end counted as a continuation."""
    automaton, oracle = SuffixAutomaton(), NaiveText()
    for chunk in chunks:
        automaton.extend(chunk)
        oracle.tokens += chunk
        assert automaton.size() == len(oracle.tokens)
        assert automaton.num_states() <= max(1, 2 * automaton.size())
        assert automaton.match_length() == len(oracle.match())
        for max_context in (0, 1, 2, 5, 1000):
            assert automaton.continuations(max_context) == oracle.continuations(max_context)
        for max_tokens, min_match in ((0, 1), (1, 1), (8, 1), (8, 3), (1000, 1)):
            assert automaton.draft(max_tokens, min_match) == oracle.draft(max_tokens, min_match)


def test_periodic_text_drafts_its_period_again_and_again() -> None:
    assert build([5, 6, 7] * 4).draft(8)[0] == [5, 6, 7, 5, 6, 7, 5, 6]
    assert build([4] * 10).draft(5)[0] == [4] * 5


def test_worked_example() -> None:
    """The stub's docstring, and the two rules of the draft by hand: frequency first, recency for ties."""
    automaton = build([1, 2, 3, 1, 2, 4, 1, 2, 3, 9, 1, 2])
    assert automaton.match_length() == 2
    assert automaton.continuations(2) == [(3, 2), (4, 1)]
    assert automaton.draft(2) == ([3, 9], [2 / 3, 1 / 2], 2)  # after 1 2 3 came 1, then 9: the recent one wins
    assert automaton.draft(2, min_match=3) == ([], [], 2)


def test_empty_and_unrepeated_text() -> None:
    for tokens in ([], [5], [5, 6, 7]):
        automaton = build(tokens)
        assert automaton.match_length() == 0
        assert automaton.draft(4) == ([], [], 0)
        assert automaton.continuations(3) == [(token, 1) for token in reversed(tokens)]


def test_large_alphabet() -> None:
    """Catches transitions lost while the index grows, and ids cut to fewer than 31 bits."""
    rng = np.random.default_rng(0)
    vocabulary = np.unique(np.append(rng.integers(0, 2**31, size=3000), [0, 2**31 - 1]))
    tokens = [int(token) for token in rng.choice(vocabulary, size=6000)]
    automaton, oracle = build(tokens), NaiveText()
    oracle.tokens = tokens
    assert automaton.continuations(0) == oracle.ranked([])
    for token in tokens[:20]:  # each occurred before, so a context of one is its own
        automaton.extend([token])
        oracle.tokens.append(token)
        assert automaton.continuations(1) == oracle.ranked([token])


@pytest.mark.parametrize(
    "convert",
    [
        tuple,
        lambda ids: np.array(ids, dtype=np.int32),
        lambda ids: np.array(ids, dtype=np.int64),
        lambda ids: np.repeat(np.array(ids), 3)[::3],
        lambda ids: np.array(ids[::-1])[::-1],
        lambda ids: array.array("i", ids),
        lambda ids: list(np.array(ids)),
        torch.tensor,
    ],
    ids=["tuple", "int32", "int64", "strided", "reversed", "array", "numpy-scalars", "tensor"],
)
@pytest.mark.parametrize("length", [10, 2000])  # the longer one runs without the interpreter lock
def test_every_input_kind_appends_the_same_text(convert, length: int) -> None:
    ids = np.random.default_rng(length).integers(0, 4, size=length).tolist()
    expected, automaton = build(ids), build(convert(ids))
    assert automaton.size() == length
    assert automaton.draft(20) == expected.draft(20)
    assert automaton.continuations(0) == expected.continuations(0)


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ([1, 2, -3], ValueError, "got -3 at index 2"),
        (np.array([1, -7]), ValueError, "got -7 at index 1"),
        (np.array([-8, 1], dtype=np.int32), ValueError, "got -8 at index 0"),
        ([2**31], ValueError, "got 2147483648 at index 0"),
        ([1, 2**70], ValueError, f"got {2**70} at index 1"),
        (np.array([1, 2**40]), ValueError, f"got {2**40} at index 1"),
        (np.zeros((2, 2), dtype=np.int64), ValueError, "one-dimensional, got 2"),
        (np.array([1.0, 2.0]), TypeError, "int32 or int64"),
        (b"text", TypeError, "int32 or int64"),
        ([1, 2.5], TypeError, "float"),
        (["1"], TypeError, "str"),
        (7, TypeError, "sequence of ints"),
    ],
)
def test_unusable_tokens_are_named_and_leave_the_text_unchanged(tokens, error: type[Exception], message: str) -> None:
    automaton = build([1, 2, 1])
    with pytest.raises(error, match=message):
        automaton.extend(tokens)
    assert automaton.size() == 3
    assert automaton.draft(2) == ([2, 1], [1.0, 1.0], 1)


def test_arguments_below_their_minimum() -> None:
    automaton = build([1, 2, 1])
    with pytest.raises(ValueError, match="max_tokens must be >= 0, got -1"):
        automaton.draft(-1)
    with pytest.raises(ValueError, match="min_match must be >= 1, got 0"):
        automaton.draft(4, min_match=0)
    with pytest.raises(ValueError, match="max_context must be >= 0, got -2"):
        automaton.continuations(-2)


def test_clear_forgets_the_text_and_keeps_its_memory() -> None:
    automaton = build(list(range(500)) * 2)
    held = automaton.memory_bytes()
    automaton.clear()
    assert (automaton.size(), automaton.num_states(), automaton.match_length()) == (0, 1, 0)
    assert automaton.memory_bytes() == held
    automaton.extend([1, 2, 1])
    assert automaton.continuations(1) == [(2, 1)]  # nothing of the first text is left


def test_degenerate_text_counts_long_contexts_right_and_short_ones_up_to_the_cap() -> None:
    n = 1000
    automaton = build([4] * n)
    assert automaton.draft(5) == ([4] * 5, [1.0] * 5, n - 1)
    for context in (n - 1, n - 2, n - MAX_COUNTED):  # seen once, twice, ...: counted in full
        assert automaton.continuations(context) == [(4, n - context)]
    for context in (n - MAX_COUNTED - 1, 1, 0):
        assert automaton.continuations(context) == [(4, MAX_COUNTED)]


def test_degenerate_text_stays_linear() -> None:
    """Without the cap these tokens take seconds, with it some 50 ms. In processor time: a busy machine is no matter."""
    start = time.process_time()
    automaton = build([4] * 50_000)
    assert time.process_time() - start < 1.0
    assert automaton.match_length() == 49_999


def test_appending_and_drafting_is_cheap_in_ordinary_text() -> None:
    """A bound some 50 times above what it takes, to catch a quadratic step and nothing finer."""
    rng = np.random.default_rng(1)
    tokens = (rng.zipf(1.3, size=6000) % 4000).tolist()
    automaton = build(tokens[:2000])
    start = time.process_time()
    for token in tokens[2000:]:
        automaton.extend([token])
        automaton.draft(8, 1)
    assert (time.process_time() - start) / 4000 < 200e-6
