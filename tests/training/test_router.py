"""`metasd train router`: what is counted is what routes; files and data that cannot be used are refused."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from toys import toy_llama, toy_tokenizer
from typer.testing import CliRunner

from metasd.bandits.router import PromptClassifier
from metasd.cli import app
from metasd.core import MetaSDError, UsageError

WORDS = {"cats": "the cat sat on the mat {}", "sums": "what is {} plus {} times {}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    toy_llama(context_length=256).save_pretrained(tmp_path / "toy")
    toy_tokenizer().save_pretrained(tmp_path / "toy")
    rows = [{"domain": name, "prompt": text.format(*[i] * 3)} for i in range(60) for name, text in WORDS.items()]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(folder: Path, *more: str) -> Result:
    command = ["train", "router", str(folder / "prompts.jsonl"), "-o", str(folder / "out" / "router.json")]
    return CliRunner().invoke(app, [*command, "--target", str(folder / "toy"), *more])


def test_from_prompts_to_a_router(folder: Path) -> None:
    result = run(folder)
    assert result.exit_code == 0, result.output
    assert "held_out_accuracy: 1.0" in result.output
    assert "domains: cats, sums" in result.output
    assert "--bandit router:path=" in result.output
    assert not (folder / "out" / "training").exists()  # nothing was answered
    classifier = PromptClassifier.load(folder / "out" / "router.json")
    encode = toy_tokenizer().encode
    for name, text in WORDS.items():
        assert classifier.label_of(encode(text.format(777, 7, 77))) == name


def test_one_domain_is_nothing_to_choose_from(folder: Path) -> None:
    result = run(folder, "--domain", "cats")
    assert isinstance(result.exception, UsageError)
    assert "data: expected prompts of at least two domains, got cats" in str(result.exception)


def test_options_of_others_and_a_place_that_cannot_be_written(folder: Path) -> None:
    assert "--epochs: expected none for router" in str(run(folder, "--epochs", "2").exception)
    (folder / "out").write_text("")
    result = run(folder)
    assert isinstance(result.exception, MetaSDError)
    assert "--output: cannot write" in str(result.exception)
