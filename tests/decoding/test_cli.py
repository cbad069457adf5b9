"""The command line as a user meets it: what it prints, its exit codes, and that no traceback gets out."""

import functools
import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from toys import TableDrafter, TableTarget, engine_of, toy_llama, toy_tokenizer

from metasd import cli
from metasd.check import LawOutcome, chi_square_limit
from metasd.core import Coins, Draft, MetaSDError
from metasd_kernels import sample

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy target on the disk."""
    path = tmp_path_factory.mktemp("toy")
    toy_llama(context_length=256).save_pretrained(path)
    toy_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process; returns exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(cli, "out", Console(width=160))
        monkeypatch.setattr(cli, "err", Console(width=160, stderr=True))
        monkeypatch.setattr("sys.argv", ["metasd", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        code = exit_info.value.code
        return int(code or 0), captured.out, captured.err

    return call


def test_what_the_policy_learned_outlives_the_process(run: Run, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "bandit.json"
    command = [
        "generate",
        "a b a b a b",
        "--target",
        folder,
        "--drafters",
        "ngram,suffix",
        "--raw",
        "--max-new-tokens",
        16,
    ]
    assert run(*command, "--bandit-state", file)[0] == 0
    once = json.loads(file.read_text())
    assert run(*command, "--bandit-state", file)[0] == 0
    twice = json.loads(file.read_text())
    assert sum(twice["num_rounds"].values()) > 1.3 * sum(once["num_rounds"].values())
    code, _, err = run(*command[:4], "--drafters", "ngram", "--raw", "--bandit-state", file)
    assert code == 2
    assert "bandit state: expected the arms" in err
    file.write_text("[")
    assert "bandit state: expected JSON" in run(*command, "--bandit-state", file)[2]
    file.write_text("[]")
    assert "bandit state: expected a JSON object" in run(*command, "--bandit-state", file)[2]
    gone = tmp_path / "none" / "bandit.json"
    assert "bandit state: cannot write" in run(*command, "--bandit-state", gone)[2]


def test_generate_prints_text_arms_and_comparison(run: Run, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    code, out, _ = run(
        "generate", "the cat sat on the mat. the cat", "--target", folder, "--raw", "--max-new-tokens", 24,
        "--compare-plain", "--profile", "--json", file,
    )  # fmt: skip
    assert code == 0
    assert "text identical to plain decoding" in out
    assert "acceptance length" in out
    assert "milliseconds a round" in out
    facts = json.loads(file.read_text())
    assert facts["result"]["token_ids"] == facts["plain"]["token_ids"]
    assert facts["result"]["text"] in out
    assert sum(record["num_output_tokens"] for record in facts["result"]["rounds"]) == len(facts["result"]["token_ids"])


def test_streaming_shows_the_same_text(run: Run, folder: Path) -> None:
    arguments = ("generate", "the cat sat", "--target", folder, "--raw", "--max-new-tokens", 16)
    streamed, whole = run(*arguments), run(*arguments, "--no-stream")
    assert streamed[1].split("(length)")[0] == whole[1].split("(length)")[0]


def test_check_passes_on_a_good_pool(run: Run, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"turns": ["the cat sat on the mat. the cat sat"]}, {"prompt": "the dog sat on the log. the dog sat"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    code, out, _ = run(
        "check", "--target", folder, "--drafters", f"ngram,suffix,{folder}", "--prompts", file, "--num", 2,
        "--max-new-tokens", 12, "--num-draws", 256,
    )  # fmt: skip
    assert code == 0, out
    assert "lossless: every check passed" in out
    assert folder.name in out  # the language model as a drafter was tested too


def test_check_fails_on_a_wrong_law(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a verify that always accepts must fail the test of the law, and the exit code must say so."""
    from metasd import check

    honest = check.verify

    def accept_all(logits: Any, token_ids: Any, *rest: Any, **options: Any) -> Any:
        output = honest(logits, token_ids, *rest, **options)
        output.output_token_ids[:, 0] = token_ids[:, 0]
        return output

    monkeypatch.setattr(check, "verify", accept_all)
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": string.printable * 2}))  # whatever comes next has come before
    code, out, _ = run(
        "check", "--target", folder, "--drafters", "ngram", "--num", 1, "--max-new-tokens", 8, "--num-draws", 256,
        "--prompts", file,
    )  # fmt: skip
    assert code == 1
    assert "NOT lossless" in out


def test_check_fails_on_a_different_answer(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: an engine that changes one token must be caught, with its margin."""
    from metasd.engine import MetaSD

    honest = MetaSD.generate

    def wrong(self: MetaSD, *arguments: Any) -> Any:
        result = honest(self, *arguments)
        result.token_ids[3] += 1
        return result

    monkeypatch.setattr(MetaSD, "generate", wrong)
    code, out, _ = run("check", "--target", folder, "--num", 1, "--max-new-tokens", 8, "--num-laws", 0)
    assert code == 1
    assert "DIFFERENT: token 3 against plain, margin" in out


def test_info_names_backends_and_folders(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("info", "--json", tmp_path / "info.json")
    assert code == 0
    facts = json.loads((tmp_path / "info.json").read_text())
    assert facts["backends"]["reference"] == "available"
    assert "cache folder" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["generate"], 2, "prompt: expected a PROMPT or --prompt-file, got neither"),
        (["generate", " "], 2, "empty prompt"),
        (["generate", "x", "--bandit", "nope"], 2, "expected one of auto, ucb, discounted-ucb, sliding-ucb"),
        (["generate", "x", "--reward", "nope"], 2, "reward: expected one of auto, be, bd, rb"),
        (["generate", "x", "--preset", "nope"], 2, "preset: expected one of metasd-paper"),
        (["generate", "x", "--drafters", "nope"], 2, "drafters: expected one of null, ngram, suffix, lm"),
        (["generate", "x", "--drafters", "ngram:size=3"], 2, "expected options among max_match, min_match"),
        (["generate", "x", "--temperature", "-1"], 2, "temperature: expected a number of at least 0, got -1.0"),
        (["generate", "x", "--temperature", "warm"], 2, "Invalid value for '--temperature'"),
        (["generate", "x", "--max-new-tokens", "0"], 2, "max_new_tokens: expected an integer of at least 1"),
        (["generate", "x", "--raw", "--max-new-tokens", "999"], 2, "max_new_tokens: expected at most"),
        (["generate", "x", "--num-draft-tokens", "many"], 2, "expected auto or an integer"),
        (["generate", "x", "--rule", "nope"], 2, "rule: expected one of token, block"),
        (["generate", "--prompt-file", "/no/such/file"], 1, "cannot read '/no/such/file'"),
        (["generate", "x" * 3000, "--raw"], 2, "the target's context"),
        (["check", "--prompts", "/no/such/file"], 1, "prompts: cannot read"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_bad_usage_is_one_clear_message(run: Run, folder: Path, arguments: list[str], code: int, message: str) -> None:
    extra = ["--target", folder] if arguments[0] in ("generate", "check") else []
    found, _, error = run(*arguments, *extra)
    assert message in error
    assert found == code
    assert "Traceback" not in error


def test_missing_target_and_broken_prompt_line(run: Run, folder: Path, tmp_path: Path) -> None:
    code, _, error = run("generate", "x", "--target", "/no/such/folder")
    assert (code, "no folder '/no/such/folder'" in error) == (1, True)
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n{"prompt": \n')
    code, _, error = run("check", "--target", folder, "--prompts", file)
    assert (code, "line 2: not JSON" in error) == (1, True)


def test_unexpected_errors_are_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(cli.report, "environment", explode)
    code, _, error = run("info")
    assert code == 1
    assert error.startswith("metasd: unexpected RuntimeError: boom")


def test_chi_square_limit_is_the_quantile() -> None:
    """Against scipy, at the error rate that the check states."""
    from scipy.stats import chi2

    for degrees in (1, 2, 5, 20, 100):
        assert chi_square_limit(degrees) == pytest.approx(chi2.isf(1e-9, degrees), rel=1e-6)
    assert not LawOutcome("x", "", 1, 3, chi2.isf(1e-11, 2), chi_square_limit(2), 0.0).is_passed


def test_check_catches_a_drafter_that_draws_from_another_law() -> None:
    """Negative control: tokens of one table, the law of another; the test of the op alone would not see it."""
    from metasd.check import check_law

    tables = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(3)) * 2
    target = TableTarget(tables[0])
    honest = engine_of(target, [TableDrafter(target, tables[1])])
    liar = engine_of(target, [TableDrafter(target, tables[1], claims=tables[1].flip(1))])
    # A drafter with coins of its own cannot be compared coin for coin, so an honest one here draws with `sample`.
    for engine in (honest, liar):
        drafter = engine.pool.drafters["table"]
        drafter.draft = functools.partial(drawn_with_sample, drafter)
    assert all(outcome.is_passed for outcome in check_law(honest, "abc", 256, False))
    with pytest.raises(MetaSDError, match="does not draw its tokens from the law that it hands over"):
        list(check_law(liar, "abc", 256, False))


def drawn_with_sample(drafter: TableDrafter, num_draft_tokens: int, coins: Coins) -> Draft:
    rows = [table[drafter._last].unsqueeze(0) for table in (drafter.table, drafter.claims)]
    temperature = drafter._law.temperature
    token = sample(rows[0], temperature=temperature, seed=coins.seed, offset=coins.nonce)
    return Draft(token.view(1, 1), rows[1].unsqueeze(0), temperature)
