"""Answers: read with errors that name the line, held out by prompt, made by the target itself."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from toys import toy_llama, toy_target

from metasd.core import MetaSDError, UsageError
from metasd.training.answers import Answer, read_answers, split_answers
from metasd.training.distill import distill, is_prompt_file

ROW = {"domain": "math", "prompt_ids": [1, 2], "output_ids": [3]}


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_domains_include_their_parts(tmp_path: Path) -> None:
    names = ["translation", "translation-fren", "translations", "math"]
    path = write(tmp_path / "a.jsonl", [{**ROW, "domain": name} for name in names])
    assert [answer.domain for answer in read_answers(path, 10, ["translation"])] == ["translation", "translation-fren"]
    assert len(read_answers(path, 10)) == 4
    with pytest.raises(UsageError, match=r"domains: expected some of math, translation, .*got law"):
        read_answers(path, 10, ["law"])


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (["{"], "line 1: expected a JSON object"),
        ([ROW, "[]"], "line 2: expected a JSON object"),
        ([ROW, {"domain": "math", "prompt_ids": [1]}], "line 2: expected output_ids as a list of token ids below 10"),
        ([{**ROW, "prompt_ids": [10]}], "line 1: expected prompt_ids"),
        ([{**ROW, "prompt_ids": [True]}], "line 1: expected prompt_ids"),
    ],
)
def test_bad_rows(tmp_path: Path, rows: list[object], match: str) -> None:
    with pytest.raises(MetaSDError, match=match):
        read_answers(write(tmp_path / "a.jsonl", rows), 10)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(MetaSDError, match="cannot read"):
        read_answers(tmp_path / "none.jsonl", 10)
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(ROW).encode() * 50)[:-12])
    with pytest.raises(MetaSDError, match=r"cut\.jsonl\.gz"):
        read_answers(path, 10)
    for rows, match in (([], "holds no rows"), ([{"text": "x"}], 'expected "prompt"')):
        with pytest.raises(MetaSDError, match=match):
            is_prompt_file(write(tmp_path / "b.jsonl", list(rows)))


def test_what_is_held_out_hangs_on_the_prompt_alone() -> None:
    answers = [Answer("", "", t, (i,), (1,)) for i in range(400) for t in (0.0, 0.7)]
    train, held_out = split_answers(answers)
    assert len(train) + len(held_out) == 800
    assert 20 <= len(held_out) <= 70
    assert not {a.prompt_ids for a in train} & {a.prompt_ids for a in held_out}
    some = split_answers(answers[:300])[1]
    assert {a.prompt_ids for a in some} == {a.prompt_ids for a in held_out} & {a.prompt_ids for a in answers[:300]}


def test_the_target_answers_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Half greedily; the greedy answers are those of plain decoding, though prompts of other lengths stand beside."""
    prompts = write(tmp_path / "p.jsonl", [{"domain": "d", "prompt": "the cat " * (1 + i % 3)} for i in range(80)])
    assert is_prompt_file(prompts)
    target, path = toy_target(), tmp_path / "a.jsonl"
    heard: list[tuple[int, int]] = []

    def advance(stage: str, done: int, total: int, note: str) -> None:
        heard.append((done, total))

    torch.manual_seed(0)
    distill(target, prompts, path, max_new_tokens=10, advance=advance)
    answers = read_answers(path, 320)
    assert [answer.temperature for answer in answers] == [0.0] * 32 + [0.7] * 32 + [0.0] * 16
    assert heard == [(32, 80), (64, 80), (80, 80)]
    for answer in (answers[0], answers[31], answers[79]):
        ids = torch.tensor([answer.prompt_ids])
        plain = toy_llama().generate(ids, do_sample=False, max_new_tokens=10, eos_token_id=None, pad_token_id=0)
        assert answer.output_ids == tuple(plain[0, ids.shape[1] :].tolist())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:70]))
    distill(target, prompts, path, max_new_tokens=10, advance=advance)
    assert path.read_text() == "".join(lines)


def test_each_prompt_at_both_temperatures(tmp_path: Path) -> None:
    prompts = write(tmp_path / "p.jsonl", [{"domain": "d", "turns": ["the cat"]} for _ in range(36)])
    path = tmp_path / "a.jsonl"
    distill(toy_target(), prompts, path, max_new_tokens=8, both=True, advance=lambda *heard: None)
    assert [answer.temperature for answer in read_answers(path, 320)] == [0.0] * 32 + [0.7] * 32 + [0.0] * 4 + [0.7] * 4
