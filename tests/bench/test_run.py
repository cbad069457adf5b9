"""A whole run on toy models: what it finds, and that a system that changes a token fails it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_toys import PROMPTS, toy_bench
from rich.console import Console

from metasd import cli, cli_bench
from metasd.bench.measure import Plan
from metasd.bench.specbench import read_answers, write_answers
from metasd.bench.statistics import OVERALL
from metasd.bench.systems import SYSTEMS
from metasd.core import MetaSDError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS._entries, "liar", "bench_toys:Liar")


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"id": prompt.id, "domain": prompt.domain, "turns": [prompt.text]} for prompt in PROMPTS]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], toy_folder: Path) -> Run:
    """`metasd bench` on the toy target; returns exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(cli_bench, "out", Console(width=160))
        words = ["metasd", "bench", *arguments, "--target", toy_folder, "--drafters", "ngram,suffix"]
        monkeypatch.setattr("sys.argv", [*map(str, words), "--max-new-tokens", "12"])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        return int(exit_info.value.code or 0), captured.out, captured.err

    return call


def test_a_run_finds_everything(run: Run, prompt_file: Path, tmp_path: Path, toy_folder: Path) -> None:
    file, folder = tmp_path / "out.json", tmp_path / "answers"
    code, out, err = run(
        prompt_file, "--systems", "singles,random,router,prompt-lookup", "--repetitions", 2, "--json", file,
        "--spec-bench", folder, "--journal", tmp_path / "journal.jsonl",
    )  # fmt: skip
    assert code == 0, err
    assert "lossless: all 40 answers equal plain decoding's, token for token" in out
    assert "not run: router: it needs --router FILE" in out
    facts = json.loads(file.read_text())
    assert set(facts["table"]) == {"a", "b", OVERALL}
    assert list(facts["table"][OVERALL]) == ["plain", "arm:ngram", "arm:suffix", "random", "prompt-lookup", "oracle"]
    assert facts["table"][OVERALL]["plain"]["speed_up"]["value"] == 1
    assert facts["table"][OVERALL]["prompt-lookup"]["acceptance_rate"] is None
    assert len(facts["rows"]) == 5 * 4 * 2
    assert set(facts["oracle"]["system_by_prompt"]) == {prompt.id for prompt in PROMPTS}
    passport = facts["passport"]
    assert passport["command"].startswith("metasd bench prompts.jsonl --systems singles,random,router")
    assert str(tmp_path) not in file.read_text()
    assert facts["settings"]["target"] == toy_folder.name
    assert {"torch", "transformers", "metasd"} <= set(passport["versions"])
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{name}.jsonl" for name in ("plain", "arm-ngram", "arm-suffix", "random", "prompt-lookup")
    )


def test_a_stopped_run_goes_on(run: Run, prompt_file: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    arguments = (prompt_file, "--systems", "auto", "--journal", journal)
    assert run(*arguments)[0] == 0
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-3]))
    code, _, err = run(*arguments)
    assert code == 2
    assert "or --resume" in err
    assert run(*arguments, "--resume")[0] == 0
    assert journal.read_text().splitlines(keepends=True)[:-3] == lines[:-3]
    assert len(journal.read_text().splitlines()) == len(lines)


def test_a_system_that_changes_a_token_fails_the_run(run: Run, prompt_file: Path, tmp_path: Path, liar: None) -> None:
    file = tmp_path / "out.json"
    code, out, _ = run(prompt_file, "--systems", "auto,liar", "--json", file)
    assert code == 1
    assert "NOT lossless: 4 of 12 answers differ" in out
    assert out.count("DIFFERENT: liar, prompt") == 4
    verdict = json.loads(file.read_text())["verdict"]
    assert not verdict["is_passed"]
    assert {each["system"] for each in verdict["mismatches"]} == {"liar"}
    assert {each["position"] for each in verdict["mismatches"]} == {11}


def test_a_near_tie_is_reported_and_does_not_fail(liar: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a margin below which everything is a tie, the same lie is one."""
    monkeypatch.setattr("metasd.check.NEAR_TIE", 1e6)
    outcome = toy_bench("liar", plan=Plan(max_new_tokens=6)).run()
    assert outcome.verdict.is_passed
    assert "but for 4 near-ties" in outcome.verdict.line()
    assert sum(note.startswith("near-tie: liar") for note in outcome.notes()) == 4


def test_sampled_answers_are_not_compared(liar: None) -> None:
    outcome = toy_bench("liar,transformers", plan=Plan(max_new_tokens=6, temperature=0.8, seeds=(1, 2))).run()
    assert outcome.verdict.is_passed
    assert "not compared" in outcome.verdict.line()
    assert len(outcome.rows) == 3 * 4 * 2


def test_spec_benchs_format_round_trip(tmp_path: Path) -> None:
    outcome = toy_bench("arm:suffix", plan=Plan(max_new_tokens=9, repetitions=2)).run()
    paths = write_answers(outcome.rows, tmp_path / "answers")
    assert [path.name for path in paths] == ["plain.jsonl", "arm-suffix.jsonl"]
    entries = read_answers(paths[1])
    assert [entry["question_id"] for entry in entries] == [0, 1, 2, 3]
    assert [entry["category"] for entry in entries] == ["a", "b", "a", "b"]
    for entry in entries:
        own = [row for row in outcome.rows_of("arm:suffix") if row.prompt_id == str(entry["question_id"])]
        assert [choice["index"] for choice in entry["choices"]] == [0, 1]
        for choice, row in zip(entry["choices"], own, strict=True):
            assert choice["turns"] == [row.answer.text]
            assert choice["new_tokens"] == [9]
            assert choice["decoding_steps"] == [len(row.answer.rounds)]
            assert choice["accept_lengths"] == [record.num_output_tokens for record in row.answer.rounds]
            assert sum(choice["accept_lengths"]) == 9
            assert choice["wall_time"] == [row.answer.prefill_seconds + row.answer.seconds]
    (tmp_path / "bad.jsonl").write_text('{"question_id": 1}\n')
    with pytest.raises(MetaSDError, match="expected Spec-Bench's answers"):
        read_answers(tmp_path / "bad.jsonl")


def test_only_rounds_of_this_engine_have_a_replayed_mark_to_set() -> None:
    """A row that was played on a log is marked in every table, and not compared."""
    from dataclasses import replace

    from metasd.bench.lossless import compare
    from metasd.bench.statistics import table
    from metasd.bench.tables import label

    bench = toy_bench("arm:suffix", plan=Plan(max_new_tokens=6))
    outcome = bench.run()
    rows: list[Any] = [
        replace(row, replayed=True, answer=replace(row.answer, token_ids=())) if row.system != "plain" else row
        for row in outcome.rows
    ]
    cell = table(rows)[OVERALL]["arm:suffix"]
    assert label("arm:suffix", cell) == "arm:suffix (replayed)"
    ids = {prompt.id: ids for prompt, ids in bench.prompts}
    assert compare(rows, ids, bench.shop.engine([])).num_answers == {"plain": 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--systems", "nonsense"], "--systems: expected names among plain"),
        (["--domains", "c"], "--domains: expected domains among a, b"),
        (["--seeds", "one"], "--seeds: expected integers"),
        (["--arm-of", "a"], "--arm-of: expected DOMAIN=ARM"),
        (["--arm-of", "a=lm"], "--arm-of a: expected one of ngram, suffix"),
        (["--num-draft-tokens", "many"], "--num-draft-tokens: expected auto or an integer"),
        (["--resume"], "--resume: expected --journal FILE beside it"),
        (["--rule", "none"], "rule: expected one of token, block"),
    ],
)
def test_wrong_requests_are_refused(run: Run, prompt_file: Path, arguments: list[str], message: str) -> None:
    code, _, err = run(prompt_file, *arguments)
    assert code == 2
    assert message in " ".join(err.split())
