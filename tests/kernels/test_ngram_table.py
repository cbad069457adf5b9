"""The n-gram table's law against a straight-line one over plain counts, and what it refuses."""

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from metasd.training.ngram_lm import count_ngrams
from metasd_kernels._C import NgramTable

Level = tuple[Any, Any, Any, Any]


def oracle(text: list[int], context: list[int], max_context: int) -> dict[int, float]:
    """p_n(x) = (count(x) + d p_{n-1}(x)) / (c + d), from the text itself, for each token that any context lists."""
    law: dict[int, float] = {}
    for n in range(max_context + 1):
        if n > len(context):
            break
        tail = context[len(context) - n :]
        follows = Counter(text[i] for i in range(n, len(text)) if text[i - n : i] == tail)
        if not follows:
            break
        total, kinds = sum(follows.values()), len(follows) if n else 0
        tokens = set(law) | set(follows)
        law = {x: (follows[x] + kinds * law.get(x, 0.0)) / (total + kinds) for x in tokens}
    return law


def table_of(text: list[int], max_context: int) -> NgramTable:
    return NgramTable(count_ngrams([([], text)], max_context, min_counts=(1,), max_continuations=1000))


def law_of(table: NgramTable, context: list[int], width: int) -> tuple[dict[int, float], tuple[int, int]]:
    ids, logits = np.empty(width, np.int64), np.empty(width, np.float32)
    facts = table.law(context, ids, logits)
    used = ids >= 0
    assert np.all(np.isneginf(logits[~used]))
    assert np.all(np.diff(logits[used]) <= 0)
    assert len(set(ids[used].tolist())) == used.sum() == facts[0]
    return dict(zip(ids[used].tolist(), np.exp(logits[used].astype(np.float64)).tolist(), strict=True)), facts


@pytest.mark.parametrize("max_context", [0, 1, 3, 5])
def test_law_equals_the_straight_line_one(max_context: int) -> None:
    text = random.Random(1).choices(range(9), k=300)
    table = table_of(text, max_context)
    for start in range(0, 200, 7):
        context = text[start : start + 6] if start % 2 else [text[start], 8 - text[start + 1], text[start + 2]]
        expected = oracle(text, context, max_context)
        found, _ = law_of(table, context, 16)
        assert found.keys() == expected.keys()
        assert all(math.isclose(found[x], expected[x], rel_tol=1e-5) for x in expected)


def test_a_narrow_list_keeps_the_longest_contexts_and_is_renormalised() -> None:
    text = [1, 2, 3, 1, 2, 4, 5, 5, 5, 5, 1, 2, 3]
    table = table_of(text, 2)
    whole, (_, match_length) = law_of(table, [1, 2], 16)
    few, _ = law_of(table, [1, 2], 2)
    assert match_length == 2
    assert few.keys() == {3, 4}  # not 5, the most frequent of all
    assert sum(few.values()) == pytest.approx(1.0)
    assert few[3] / few[4] == pytest.approx(whole[3] / whole[4], rel=1e-5)


def test_unknown_contexts_back_off() -> None:
    table = table_of([1, 2, 3, 1, 2], 3)
    assert law_of(table, [9, 9, 1], 8)[1][1] == 1
    assert law_of(table, [9], 8)[1][1] == 0
    assert law_of(table, [], 8)[0] == pytest.approx({1: 0.4, 2: 0.4, 3: 0.2})


def test_what_comes_before_is_context_only() -> None:
    levels = count_ngrams([([7, 8], [1, 2])], 2, min_counts=(1,))
    assert levels[0][2].tolist() == [1, 2]
    assert law_of(NgramTable(levels), [7, 8], 8)[1][1] == 2


def test_rare_contexts_and_continuations_go() -> None:
    text = [1, 2, 1, 3, 1, 4, 5, 6, 5, 6]
    levels = count_ngrams([([], text)], 1, min_counts=(1, 3), max_continuations=2)
    assert levels[0][2].tolist() == [1, 5]  # the most frequent, then the lowest
    assert len(levels[1][0]) == 1  # behind 1 alone there were three
    assert levels[1][2].tolist() == [2, 3]


def good() -> list[Level]:
    return list(count_ngrams([([], [1, 2, 3, 1, 2, 3, 1, 4])], 2, min_counts=(1,)))


def change(levels: list[Level], n: int, part: int, value: Any) -> list[Level]:
    level = list(levels[n])
    level[part] = value
    return [*levels[:n], tuple(level), *levels[n + 1 :]]


@pytest.mark.parametrize(
    ("levels", "match"),
    [
        ([], "expected 1 to 16 levels"),
        ([good()[0]] * 17, "expected 1 to 16 levels"),
        ([good()[0][:3]], r"expected \(keys, starts, ids, counts\)"),
        (change(good(), 1, 0, good()[1][0][::-1].copy()), "level 1: expected ascending keys"),
        (change(good(), 1, 1, good()[1][1][:-1].copy()), "level 1: expected one start more than keys"),
        (change(good(), 1, 1, good()[1][1] + np.uint32(1)), "level 1: expected starts from 0"),
        (change(good(), 1, 2, good()[1][2][:-1].copy()), "level 1: expected as many counts as ids"),
        (change(good(), 0, 2, -good()[0][2]), "level 0: expected ids of at least 0"),
        (change(good(), 0, 3, good()[0][3] * np.uint16(0)), "level 0: expected counts of at least 1"),
        (change(good(), 0, 3, good()[0][3].astype(np.int64)), "expected contiguous arrays"),
        (change(good(), 0, 2, np.zeros((2, 2), np.int32)), "arrays of one dimension"),
        ([good()[1]], "level 0: expected one context"),
    ],
)
def test_bad_tables(levels: list[Level], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        NgramTable(levels)


def test_laws_of_a_text_are_those_of_its_tokens() -> None:
    text = random.Random(3).choices(range(9), k=300)
    table, before, behind = table_of(text, 3), text[:2], [*text[2:7], 8]
    ids, logits = np.empty((6, 12), np.int64), np.empty((6, 12), np.float32)
    lengths = table.laws(before, behind, ids, logits)
    for i in range(6):
        own_ids, own_logits = np.empty(12, np.int64), np.empty(12, np.float32)
        _, length = table.law([*before, *behind[:i]], own_ids, own_logits)
        assert length == lengths[i]
        assert np.array_equal(own_ids, ids[i])
        assert np.array_equal(own_logits, logits[i])


def test_bad_outputs() -> None:
    table, narrow = NgramTable(good()), np.empty(3, np.int32)
    with pytest.raises(ValueError, match="same length"):
        table.law([1], np.empty(3, np.int64), np.empty(4, np.float32))
    with pytest.raises(TypeError):
        table.law([1], narrow, np.empty(3, np.float32))
    with pytest.raises(ValueError, match="a row for each token"):
        table.laws([1], [2, 3], np.empty((1, 4), np.int64), np.empty((1, 4), np.float32))
    with pytest.raises(ValueError, match="same shape"):
        table.laws([1], [2], np.empty((1, 4), np.int64), np.empty((1, 5), np.float32))


def test_a_law_takes_microseconds() -> None:
    """Ten thousand laws behind contexts of a text of 50,000 tokens; a bound that only a wrong algorithm breaks."""
    import time

    text = random.Random(2).choices(range(3000), k=50_000)
    table = table_of(text, 4)
    ids, logits = np.empty(48, np.int64), np.empty(48, np.float32)
    begin = time.perf_counter()
    for start in range(10_000):
        table.law(text[start : start + 4], ids, logits)
    assert time.perf_counter() - begin < 2.0
