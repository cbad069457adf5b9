"""`metasd train lm`, and the command line over all kinds: what it makes is what `drafters=` takes."""

import contextlib
import json
from pathlib import Path

import pytest
from toys import PROMPT, engine_of, toy_target
from typer.testing import CliRunner

from metasd import SamplingParams
from metasd.cli import app
from metasd.core import UsageError
from metasd.training.answers import Answer
from metasd.training.job import Job
from metasd.training.lm import train


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    return [Answer("", "", 0.0, (i,), (5, 6, 7, 8, 9, 10) * 3) for i in range(60)]


def test_a_model_is_trained_that_drafts(answers: list[Answer], tmp_path: Path) -> None:
    target = toy_target()
    short = train(Job(target, answers, tmp_path / "a", tmp_path), epochs=1, num_layers=1, hidden_size=64)
    facts = train(Job(target, answers, tmp_path / "b", tmp_path), epochs=12, num_layers=1, hidden_size=64)
    assert facts["held_out_acceptance"] > short["held_out_acceptance"] + 0.05
    engine = engine_of(target, [str(tmp_path / "b")], bandit="fixed:arm=b", num_draft_tokens=3)
    plain = engine.generate_plain(PROMPT, SamplingParams(max_new_tokens=12)).token_ids
    assert engine.generate(PROMPT, SamplingParams(max_new_tokens=12)).token_ids == plain
    again = train(
        Job(target, answers, tmp_path / "c", tmp_path), epochs=1, learning_rate=1e-6, start_from=tmp_path / "b"
    )
    assert again["held_out_acceptance"] == pytest.approx(facts["held_out_acceptance"], abs=0.02)


def test_sizes_that_make_no_model(answers: list[Answer], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--hidden-size: expected a multiple of 64, got 65"):
        train(Job(toy_target(), answers, tmp_path / "a", tmp_path), hidden_size=65)


@pytest.mark.parametrize(
    ("kind", "output", "options"),
    [
        ("ngram-lm", "counts.safetensors", ["--max-context", "2"]),
        ("eagle", "head", ["--epochs", "1", "--draft-vocab", "100"]),
        ("lm", "model", ["--epochs", "1", "--num-layers", "1", "--hidden-size", "64"]),
    ],
)
def test_from_prompts_to_a_drafter(
    toy_folder: Path, tmp_path: Path, kind: str, output: str, options: list[str]
) -> None:
    """The command answers the prompts, trains, and writes what the engine loads by its path alone."""
    prompts, made, facts = tmp_path / "p.jsonl", tmp_path / output, tmp_path / "facts.json"
    prompts.write_text("".join(json.dumps({"prompt": f"the cat sat {i}", "domain": "d"}) + "\n" for i in range(32)))
    command = ["train", kind, str(prompts), "-o", str(made), "--target", str(toy_folder), "--max-new-tokens", "12"]
    result = CliRunner().invoke(app, [*command, *options, "--licence", "MIT", "--json", str(facts)])
    assert result.exit_code == 0, result.output
    assert json.loads(facts.read_text())["data_licence"] == "MIT"
    assert "held_out_acceptance" in result.output
    target = toy_target()
    with pytest.warns(RuntimeWarning, match="head for another target") if kind == "eagle" else contextlib.nullcontext():
        engine = engine_of(target, [str(made)], num_draft_tokens=2)
    answer = engine.generate(PROMPT, SamplingParams(max_new_tokens=8))
    assert answer.token_ids == engine.generate_plain(PROMPT, SamplingParams(max_new_tokens=8)).token_ids


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["nothing"], "kind: expected one of ngram-lm, eagle, lm, router, got 'nothing'"),
        (["ngram-lm", "--epochs", "3"], "--epochs: expected none for ngram-lm, got 3"),
        (["eagle", "--max-context", "3"], "--max-context: expected none for eagle"),
    ],
)
def test_options_of_another_kind(tmp_path: Path, arguments: list[str], match: str) -> None:
    data = tmp_path / "p.jsonl"
    data.write_text('{"prompt": "x"}\n')
    command = ["train", arguments[0], str(data), "-o", str(tmp_path / "x"), *arguments[1:]]
    with pytest.raises(UsageError, match=match):
        CliRunner().invoke(app, command, standalone_mode=False, catch_exceptions=False)
