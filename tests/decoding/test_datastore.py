"""The suffix drafter's datastore: found, grown with use, never crossed from one text into another, bounded."""

import json
from pathlib import Path

import pytest
import torch
from toys import PROMPT, engine_of, toy_target

from metasd import SamplingParams
from metasd.core import Coins, MetaSDError, Request, SamplingLaw, UsageError
from metasd.drafters.suffix import SuffixDrafter, read_datastore

SEED = torch.zeros(1, dtype=torch.int64)


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def begin(drafter: SuffixDrafter, prompt: list[int]) -> SuffixDrafter:
    drafter.reset(Request(prompt, SamplingLaw(), 1000))
    return drafter


def draft(drafter: SuffixDrafter, length: int) -> list[int]:
    offer = drafter.offer(length)
    made = drafter.draft(offer.max_num_draft_tokens, Coins(SEED, 0)) if offer else None
    return made.token_ids[0].tolist() if made else []


def test_a_text_of_the_datastore_is_followed(tmp_path: Path) -> None:
    store = write(tmp_path / "past.jsonl", [{"output_ids": [1, 2, 3, 4, 5]}, {"output_ids": [9, 8, 7]}])
    target = toy_target()
    assert draft(begin(SuffixDrafter(target), [50, 2, 3]), 4) == []
    assert draft(begin(SuffixDrafter(target, datastore=store), [50, 2, 3]), 2) == [4, 5]


def test_a_draft_ends_where_the_text_ends(tmp_path: Path) -> None:
    """Behind a text stands a separator that no model knows: it is never proposed, nor is the text behind it."""
    store = write(tmp_path / "past.jsonl", [{"output_ids": [1, 2, 3]}, {"output_ids": [9, 8, 7]}])
    drafter = begin(SuffixDrafter(toy_target(), datastore=store), [50, 1])
    assert draft(drafter, 8) == [2, 3]
    begin(drafter, [50, 3])
    assert draft(drafter, 8) == []


def test_it_grows_with_use(tmp_path: Path) -> None:
    """The second time it has seen the answer; without a datastore it has forgotten it."""
    target = toy_target()
    answers = []
    for drafter in (SuffixDrafter(target, datastore=write(tmp_path / "past.jsonl", [])), SuffixDrafter(target)):
        engine = engine_of(target, [drafter], bandit="fixed", num_draft_tokens=4)
        results = [engine.generate(PROMPT, SamplingParams(max_new_tokens=40)) for _ in range(2)]
        assert results[0].token_ids == results[1].token_ids
        answers.append([len(result.rounds) for result in results])
    assert answers[0][1] < 0.4 * answers[0][0]
    assert answers[1][1] == answers[1][0]


def test_its_size_is_bounded(tmp_path: Path) -> None:
    store = write(tmp_path / "past.jsonl", [{"output_ids": [1, 2, 3, 4, 5]}])
    drafter = SuffixDrafter(toy_target(), datastore=store, max_tokens=2000)
    for start in range(40):
        begin(drafter, [100 + start] * 300)
        assert drafter.memory_bytes()["index"] < 1_000_000
    assert draft(begin(drafter, [50, 2, 3]), 2) == [4, 5]


def test_plain_text_is_read_by_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "past.txt"
    path.write_text("the cat sat.\n\n\nthe dog sat.\n")
    target = toy_target()
    texts = [target.tokenizer.decode(text).strip() for text in read_datastore(path, target)]
    assert texts == ["the cat sat.", "the dog sat."]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "line 1: expected a JSON object"),
        ("[1]", "line 1: expected a JSON object"),
        ('{"output_ids": [1]}\n{"answer": 3}', 'line 2: expected "output_ids" below 320, or "text"'),
        ('{"output_ids": [320]}', "below 320"),
    ],
)
def test_bad_datastores(tmp_path: Path, content: str, match: str) -> None:
    path = tmp_path / "past.jsonl"
    path.write_text(content)
    with pytest.raises(MetaSDError, match=match):
        SuffixDrafter(toy_target(), datastore=str(path))


def test_a_missing_datastore_and_one_beyond_the_limit(tmp_path: Path) -> None:
    with pytest.raises(MetaSDError, match="cannot read"):
        SuffixDrafter(toy_target(), datastore=str(tmp_path / "none.jsonl"))
    store = write(tmp_path / "past.jsonl", [{"output_ids": [1, 2, 3]}])
    with pytest.raises(UsageError, match="max_tokens: expected at least the datastore's 3, got 2"):
        SuffixDrafter(toy_target(), datastore=store, max_tokens=2)
