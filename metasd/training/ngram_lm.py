"""`metasd train ngram-lm`: counts of an n-gram language model, from token ids, in a second or two."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metasd.core import refuse
from metasd.drafters.ngram_lm import MAX_LISTED, Level, write_ngram_lm
from metasd.training.answers import Answer, split_answers
from metasd.training.job import Job
from metasd_kernels._C import NgramTable

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
MAX_CONTEXT = 4
MIN_COUNTS = (1, 1, 1, 2, 2)
"""How often a context of n tokens must have occurred; the last stands for all longer ones."""
MAX_CONTINUATIONS = 32
_MAX_COUNT = np.iinfo(np.uint16).max


_MEASURED_DEPTH = 4


def train(job: Job, *, max_context: int = MAX_CONTEXT, max_bytes: int | None = None) -> dict[str, Any]:
    """Count the answers' n-grams; what stands before an answer is context only.

    Args:
        job: answers, and the file for the counts.
        max_context: tokens of the longest context.
        max_bytes: rarer contexts are left out until the counts fit.

    Returns:
        facts of the run, `held_out_acceptance` (greedy, by depth) among them.

    Raises:
        UsageError: the counts do not fit into `max_bytes` at all.
    """
    train_answers, held_out = split_answers(job.answers)
    texts = [(answer.prompt_ids, answer.output_ids) for answer in train_answers]
    job.advance("counting", 0, len(texts), "")
    rarity = 0
    while True:
        min_counts = tuple(max(least + rarity, 1) if n else 1 for n, least in enumerate(MIN_COUNTS))
        levels = count_ngrams(texts, max_context, min_counts, MAX_CONTINUATIONS)
        size = sum(part.nbytes for level in levels for part in level)
        if max_bytes is None or size <= max_bytes:
            break
        if rarity == 64:
            raise refuse("--max-bytes", f"at least {size}, for contexts that occurred {rarity} times", max_bytes)
        rarity += 1
    job.advance("counting", len(texts), len(texts), f"{size / 1e6:.1f} MB")
    acceptance = held_out_acceptance(levels, held_out)
    facts = {
        "kind": "ngram-lm",
        "max_context": max_context,
        "min_counts": min_counts,
        "num_answers": len(train_answers),
        "num_tokens": sum(len(output) for _, output in texts),
        "num_held_out": len(held_out),
        "bytes": size,
        "held_out_acceptance": [round(share, 4) for share in acceptance],
        "mean_acceptance_length": round(1 + sum(acceptance), 3),
        **job.metadata,
    }
    write_ngram_lm(job.output, levels, job.target.vocab_size, {name: str(value) for name, value in facts.items()})
    return facts


def held_out_acceptance(levels: Sequence[Level], answers: Sequence[Answer]) -> list[float]:
    """At each depth, the share of answer tokens at which this and all shallower greedy drafts match the answer's."""
    table, context_size = NgramTable(levels), len(levels) - 1
    ids, logits = np.empty(MAX_LISTED, np.int64), np.empty(MAX_LISTED, np.float32)
    hits, count = np.zeros(_MEASURED_DEPTH), 0
    for answer in answers:
        text = [*answer.prompt_ids, *answer.output_ids]
        for start in range(len(answer.prompt_ids), len(text)):
            count += 1
            for k, token in enumerate(text[start : start + _MEASURED_DEPTH]):
                table.law(text[max(start + k - context_size, 0) : start + k], ids, logits)
                if ids[0] != token:
                    break
                hits[k] += 1
    return [float(share) for share in hits / max(count, 1)]


def count_ngrams(
    texts: Iterable[tuple[Sequence[int], Sequence[int]]],
    max_context: int = MAX_CONTEXT,
    min_counts: Sequence[int] = MIN_COUNTS,
    max_continuations: int = MAX_CONTINUATIONS,
) -> list[Level]:
    """Count which tokens follow which contexts.

    Args:
        texts: pairs of what comes before (read as context only) and the tokens that are counted.
        max_context: tokens of the longest context.
        min_counts: how often a context of n tokens must have occurred to be kept.
        max_continuations: of each context, the most frequent first.

    Returns:
        (keys, starts, ids, counts) for contexts of 0 to `max_context` tokens, as `metasd_kernels._C.NgramTable` takes
        them.
    """
    rows = []  # token and its context, the nearest first; -1 where the text has not begun
    for before, counted in texts:
        padded = np.array([*([-1] * max_context), *before[-max_context:], *counted], dtype=np.int64)
        first = len(padded) - len(counted)
        rows.append(np.stack([padded[first - n : len(padded) - n] for n in range(max_context + 1)], axis=1))
    table = np.concatenate(rows) if rows else np.empty((0, max_context + 1), dtype=np.int64)
    state, is_known = np.zeros(len(table), dtype=np.uint64), np.ones(len(table), dtype=bool)
    levels = []
    for n in range(max_context + 1):
        if n:
            is_known &= table[:, n] >= 0
            with np.errstate(over="ignore"):
                state = (state ^ (table[:, n] + 1).astype(np.uint64)) * _MULTIPLIER
            state ^= state >> np.uint64(29)
        least = min_counts[min(n, len(min_counts) - 1)]
        levels.append(_level(state[is_known] >> np.uint64(32), table[is_known, 0], least, max_continuations))
    return levels


def _level(keys: NDArray[np.uint64], tokens: NDArray[np.int64], least: int, most: int) -> Level:
    pairs, counts = np.unique((keys << np.uint64(32)) | tokens.astype(np.uint64), return_counts=True)
    pair_keys = (pairs >> np.uint64(32)).astype(np.uint32)
    order = np.lexsort((-counts, pair_keys))  # within a context the most frequent first, then the lowest id
    pair_keys, counts = pair_keys[order], counts[order]
    ids = (pairs[order] & np.uint64(0xFFFFFFFF)).astype(np.int32)
    _, first, sizes = np.unique(pair_keys, return_index=True, return_counts=True)
    rank = np.arange(len(pair_keys)) - np.repeat(first, sizes)
    totals = np.add.reduceat(counts, first) if len(first) else counts
    is_kept = (np.repeat(totals, sizes) >= least) & (rank < most)
    kept_keys, kept_sizes = np.unique(pair_keys[is_kept], return_counts=True)
    starts = np.concatenate([[0], np.cumsum(kept_sizes)]).astype(np.uint32)
    return kept_keys, starts, ids[is_kept], np.minimum(counts[is_kept], _MAX_COUNT).astype(np.uint16)
