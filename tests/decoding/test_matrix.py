"""The acceptance matrix: means over tokens, a paired bootstrap, the ceiling, and the command."""

import json
from pathlib import Path

import pytest
from toys import toy_target
from typer.testing import CliRunner

from metasd.cli import app
from metasd.core import TokenScores
from metasd.drafters.ngram_lm import write_ngram_lm
from metasd.matrix import TokenRecord, ceiling, matrix
from metasd.training.ngram_lm import count_ngrams


def record(arm: str, domain: str, overlap: list[float]) -> TokenRecord:
    return TokenRecord(arm, domain, 0.0, TokenScores(tuple(overlap), tuple(overlap)))


def records() -> list[TokenRecord]:
    """On "a" arm x is better in every answer, though answers differ more than arms; on "b" nobody can tell."""
    made = []
    for i in range(30):
        base = i / 30
        made += [record("x", "a", [0.9 * base + 0.1] * 4), record("y", "a", [0.9 * base] * 4)]
        made += [record("x", "b", [0.5 + 0.1 * (i % 2)]), record("y", "b", [0.6 - 0.1 * (i % 2)])]
    return made


def test_means_are_over_tokens() -> None:
    made = [record("x", "a", [1.0]), record("x", "a", [0.0, 0.0, 0.0])]
    assert matrix(made, {"x": "f"})["a"]["x"].mean == pytest.approx(0.25)


def test_the_bootstrap_is_paired() -> None:
    """The same answers for both arms: what they have in common does not widen the interval."""
    table = matrix(records(), {"x": "f", "y": "f"})
    assert table["a"]["x"].behind_best == (0.0, 0.0)
    assert table["a"]["y"].behind_best == pytest.approx((0.1, 0.1))
    low, high = table["b"]["y"].behind_best
    assert low < 0 < high


def test_families_are_compared_within_themselves() -> None:
    table = matrix(records(), {"x": "f", "y": "g"})
    assert all(cell.behind_best == (0.0, 0.0) for row in table.values() for cell in row.values())


def test_ceiling_by_hand() -> None:
    made = [record(arm, domain, [value]) for domain, arm, value in [
        ("a", "x", 0.8), ("a", "y", 0.2), ("a", "all", 0.5), ("b", "x", 0.2), ("b", "y", 0.6), ("b", "all", 0.5),
    ]]  # fmt: skip
    found = ceiling(matrix(made, dict.fromkeys(["x", "y", "all"], "f")), ["x", "y", "all"], "all")
    assert found.oracle == pytest.approx(0.7)
    assert found.over_generalist == pytest.approx(1.4)
    assert found.over_best_fixed == pytest.approx(1.4)
    assert found.best_fixed in ("all", "x")


def test_the_command_from_prompts(toy_folder: Path, tmp_path: Path) -> None:
    """Two specialists, each counted on the answers to one of two prompts: each is the best on its own."""
    prompts = tmp_path / "p.jsonl"
    rows = [{"domain": "cats-a", "prompt": "the cat sat"}, {"domain": "dogs", "prompt": "naive cafe"}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    command = ["matrix", str(prompts), "--target", str(toy_folder), "--work", str(tmp_path), "--max-new-tokens", "24"]
    options = ["--domain", "cats", "--domain", "dogs"]
    first = CliRunner().invoke(app, [*command, *options, "--drafters", "ngram,suffix"])
    assert first.exit_code == 0, first.output
    answers = [json.loads(line) for line in (tmp_path / "p-answers.jsonl").read_text().splitlines()]
    assert len(answers) == 12
    arms = []
    for name in ("cats", "dogs"):
        texts = [(row["prompt_ids"], row["output_ids"]) for row in answers if row["domain"].startswith(name)]
        write_ngram_lm(tmp_path / f"{name}.safetensors", count_ngrams(texts), toy_target().vocab_size, {})
        arms.append(str(tmp_path / f"{name}.safetensors"))
    facts, log = tmp_path / "facts.json", tmp_path / "log.jsonl"
    options += ["--drafters", ",".join(arms), "--json", str(facts), "--log", str(log)]
    second = CliRunner().invoke(app, [*command, *options])
    assert second.exit_code == 0, second.output
    assert "NgramLM: an oracle that knows the domain accepts" in second.output.replace("\n", " ")
    found = json.loads(facts.read_text())
    for own, other in (("cats", "dogs"), ("dogs", "cats")):
        assert found["matrix"][own][own]["mean"] > found["matrix"][own][other]["mean"] + 0.2
    assert found["ceilings"]["NgramLM"]["over_best_fixed"] > 1.1
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(logged) == 24
    assert all(len(row["ratio"]) == len(row["overlap"]) > 0 for row in logged)
