"""The demo pool: what ships is what the manifest says, small enough, said to be licensed, and lossless all together."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from toys import PROMPT, engine_of, toy_target

from metasd import MetaSD, SamplingParams
from metasd.core import MetaSDError
from metasd.drafters import demo, load_drafters
from metasd.target import Target
from metasd.training.manifest import entry_of

DOMAINS = ("code", "translation", "summarization", "qa", "math")
MAX_BYTES = 64e6


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load("demo", dtype="float32")


def test_each_domain_has_its_counts_and_there_is_a_head() -> None:
    names = {entry.name for entry in demo.entries()}
    assert {f"ngram-lm-{name}" for name in (*DOMAINS, "generalist", "fren", "zhen", "jaen")} <= names
    assert {f"eagle-{name}" for name in ("code", "qa", "summarization", "math", "generalist")} <= names


def test_files_are_those_of_the_manifest() -> None:
    """Every byte that ships has its digest, and what an entry says can be read off its files again."""
    shipped = {path.relative_to(demo.FOLDER).as_posix() for path in demo.FOLDER.rglob("*") if path.is_file()}
    listed = {name for entry in demo.entries() for name in entry.sha256}
    assert shipped == listed | {"manifest.json"}
    for entry in demo.entries():
        assert entry == entry_of(demo.FOLDER / entry.path)
    assert sum(entry.num_bytes for entry in demo.entries()) <= MAX_BYTES


def test_each_entry_says_what_it_was_made_from() -> None:
    for entry in demo.entries():
        facts = entry.facts
        assert facts["data"]
        assert facts["command"].startswith("metasd train ")
        assert facts["data_licence"] not in ("", "unknown")
        assert facts["num_held_out"]


def test_another_target_gets_what_needs_no_weights() -> None:
    assert set(load_drafters("demo", toy_target())) == {"ngram", "suffix", "null"}
    engine = engine_of(toy_target(), ["demo"])
    params = SamplingParams(max_new_tokens=10)
    assert engine.generate(PROMPT, params).token_ids == engine.generate_plain(PROMPT, params).token_ids


def test_a_damaged_manifest_has_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "MANIFEST", tmp_path / "manifest.json")
    with pytest.raises(MetaSDError, match="reinstall metasd"):
        demo.entries()
    (tmp_path / "manifest.json").write_text(json.dumps({"drafters": [{"name": "x"}]}))
    with pytest.raises(MetaSDError, match="manifest of the demo pool"):
        demo.entries()


def test_a_damaged_head_is_named(tmp_path: Path, target: Target) -> None:
    entry = next(entry for entry in demo.entries() if entry.kind == "eagle")
    shutil.copytree(demo.FOLDER / entry.path, tmp_path / "head")
    weights = tmp_path / "head" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(MetaSDError, match=r"model\.safetensors"):
        load_drafters([f"eagle:path={tmp_path / 'head'}"], target)


def test_every_arm_in_turn_gives_the_plain_answer(target: Target) -> None:
    """A switch in nearly every round: caches and features are caught up over long gaps."""
    arms = load_drafters("demo", target)
    engine = MetaSD(target, arms, engine_of(target, [], bandit="round-robin", num_draft_tokens=3).config)
    question = [{"role": "user", "content": "Write a Python function that adds two numbers, and explain it."}]
    result = engine.generate(question, SamplingParams(max_new_tokens=72))
    assert result.token_ids == engine.generate_plain(question, SamplingParams(max_new_tokens=72)).token_ids
    assert len({record.arm for record in result.rounds}) > 10


def test_heads_fit_their_target(target: Target) -> None:
    with torch.inference_mode():
        doubts = [drafter.self_check() for drafter in load_drafters("demo", target).values()]
    assert not any(doubts)
