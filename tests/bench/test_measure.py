"""The measurement: turns that rotate, what is not run again, and who remembers what."""

import json
from pathlib import Path

import pytest
import torch
from bench_toys import PROMPTS, Told, row

from metasd.bench.answers import Answer
from metasd.bench.journal import Journal
from metasd.bench.measure import Plan, measure, order
from metasd.core import MetaSDError, UsageError

GIVEN = [(prompt, [index + 1]) for index, prompt in enumerate(PROMPTS)]
FACTS = {"target": "toy", "max_new_tokens": 8}
Log = list[tuple[str, tuple[int, ...]]]


def told(*names: str) -> tuple[dict[str, Told], Log]:
    log: Log = []
    return {name: Told(name, log) for name in names}, log


def test_everybody_comes_first_equally_often() -> None:
    assert order(["a", "b", "c"], 0, 0) == ["a", "b", "c"]
    assert order(["a", "b", "c"], 1, 1) == ["c", "a", "b"]
    assert [order(["a", "b", "c"], index, 0)[0] for index in range(6)] == list("abcabc")


def test_systems_take_turns_on_each_prompt_after_a_warm_up() -> None:
    systems, log = told("x", "y")
    measure(systems, GIVEN, Plan(), Journal(None, {}))
    assert [name for name, _ in log] == ["x", "y", *"xy", *"yx", *"xy", *"yx"]
    assert [ids for _, ids in log[2:]] == [(k,) for k in (1, 1, 2, 2, 3, 3, 4, 4)]


def test_the_warm_up_teaches_nothing_and_each_repetition_begins_anew() -> None:
    systems, _ = told("x")
    rows = measure(systems, GIVEN, Plan(repetitions=2), Journal(None, {}))
    assert [each.answer.text for each in rows] == [f"seen {k}" for k in (1, 2, 3, 4)] * 2


def test_a_resumed_run_measures_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole, log = told("x", "y")
    expected = measure(whole, GIVEN, Plan(), Journal(path, FACTS))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:6]) + lines[6][:20])  # killed while it wrote the sixth answer
    again, log = told("x", "y")
    rows = measure(again, GIVEN, Plan(), Journal(path, FACTS, is_resumed=True))
    # five are there: x y, y x, x; what both had learned by then is remembered
    assert [name for name, _ in log] == ["x", "y", "y", "y", "x"]
    assert [each.answer for each in rows] == [each.answer for each in expected]
    assert path.read_text().splitlines() == [line.rstrip("\n") for line in lines]
    done, log = told("x", "y")
    measure(done, GIVEN, Plan(), Journal(path, FACTS, is_resumed=True))
    assert log == []


def test_a_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, FACTS).add(row("x", "p", 3, 1.0), None)
    with pytest.raises(UsageError, match=r"--journal: expected .* or --resume"):
        Journal(path, FACTS)
    with pytest.raises(UsageError, match=r"--resume, max_new_tokens: expected 8 as in 'journal.jsonl', got 9"):
        Journal(path, {**FACTS, "max_new_tokens": 9}, is_resumed=True)
    path.write_text("[]\n")
    with pytest.raises(UsageError, match="a file that `metasd bench` wrote"):
        Journal(path, FACTS, is_resumed=True)
    with pytest.raises(MetaSDError, match="--journal: cannot open"):
        Journal(tmp_path / "none" / "journal.jsonl", FACTS)


def test_an_answer_survives_the_journal() -> None:
    from bench_toys import record

    rounds = (record("x", 3, 2, 0, bd=0.25, draft_seconds=0.5), record("null", 0, 0, 1, switched=True))
    answer = Answer((5, 6, 7), 2, 1.5, 0.25, (1, 2), rounds, "text")
    assert Answer.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_each_answer_is_drawn_from_a_seed_of_its_own_the_same_for_all_systems() -> None:
    seen: dict[tuple[str, int], list[float]] = {}

    class Drawing(Told):
        def decode(self, prompt_ids: list[int], params: object) -> Answer:
            seen.setdefault((self.name, prompt_ids[0]), []).append(float(torch.rand(())))
            return super().decode(prompt_ids, params)

    systems = {name: Drawing(name, []) for name in "xy"}
    plan = Plan(temperature=1.0, seeds=(0, 1), repetitions=2)
    rows = measure(systems, GIVEN[1:], plan, Journal(None, {}))
    assert len(rows) == 2 * 3 * 2 * 2
    for prompt in (3, 4):
        assert seen["x", prompt] == seen["y", prompt]
        assert len(set(seen["x", prompt])) == 4


@pytest.mark.parametrize("wrong", [{"repetitions": 0}, {"seeds": ()}, {"seeds": (1, 1)}])
def test_a_plan_is_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"--repetitions|--seeds"):
        Plan(**wrong)
