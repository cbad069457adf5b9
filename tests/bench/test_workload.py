"""Prompt files: our own, Spec-Bench's, and those that ship."""

import json
from pathlib import Path

import pytest

from metasd.bench.workload import SHIPPED, choose, read_workload, shipped
from metasd.core import MetaSDError, UsageError


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_is_ours_and_licensed(name: str) -> None:
    rows = [json.loads(line) for line in shipped(name).read_text().splitlines()]
    assert all(set(row) == {"id", "domain", "source", "licence", "turns"} for row in rows)
    assert {row["licence"] for row in rows} == {"CC0-1.0"}
    assert {row["source"] for row in rows} == {"metasd"}
    assert len(read_workload(shipped(name))) == len({row["turns"][0] for row in rows}) == len(rows)


def test_the_short_set_has_five_prompts_of_each_domain() -> None:
    domains = [prompt.domain for prompt in read_workload(shipped("short"))]
    assert {domain: domains.count(domain) for domain in domains} == dict.fromkeys(
        ("code", "math", "qa", "summarization", "translation-ende"), 5
    )


def test_spec_benchs_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text(
        '{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}\n\n{"prompt": "Count."}\n'
    )
    first, second = read_workload(path)
    assert (first.id, first.domain, first.text) == ("81", "writing", "Write.")
    assert (second.id, second.domain, second.text) == ("2", "all", "Count.")


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": 1, "turns": ["a"]}\n{"id": 2, "domain": "code"}\n')
    with pytest.raises(MetaSDError, match=r"line 2: expected an object with .turns"):
        read_workload(path)
    path.write_text('{"id": 1, "turns": ["a"]}\n{"id": 1, "turns": ["b"]}\n')
    with pytest.raises(UsageError, match=r"different ids in 'prompts.jsonl', got '1' twice"):
        read_workload(path)
    with pytest.raises(UsageError, match="one of short, mixed, got 'long'"):
        shipped("long")


def test_domains_take_turns_and_rows_are_spread() -> None:
    prompts = read_workload(shipped("short"))
    chosen = choose(prompts, ["math", "code"], 2)
    assert [prompt.id for prompt in chosen] == ["math-1", "code-1", "math-3", "code-3"]
    assert len(choose(prompts)) == 25
    with pytest.raises(UsageError, match=r"--domains: expected domains among code, .*got 'poetry'"):
        choose(prompts, ["poetry"])
