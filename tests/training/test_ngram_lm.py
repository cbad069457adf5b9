"""n-gram LMs on disk: what was counted is what drafts; files that are not ours are refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from toys import toy_target

from metasd.core import MetaSDError, UsageError
from metasd.drafters.ngram_lm import FORMAT, NgramLMDrafter, read_ngram_lm, write_ngram_lm
from metasd.training.answers import Answer
from metasd.training.job import Job
from metasd.training.ngram_lm import count_ngrams, held_out_acceptance, train

TEXT = [5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 7, 8]


def counts(path: Path, vocab_size: int = 320) -> Path:
    write_ngram_lm(path, count_ngrams([([], TEXT)]), vocab_size, {"data": "here"})
    return path


def test_written_and_read_are_the_same(tmp_path: Path) -> None:
    levels, size = read_ngram_lm(counts(tmp_path / "a.safetensors"), 320)
    made = count_ngrams([([], TEXT)])
    assert size == sum(part.nbytes for level in made for part in level)
    for own, other in zip(levels, made, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(own, other, strict=True))
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o644


def rewritten(path: Path, **changes: Any) -> Path:
    tensors = load_file(counts(path))
    for name, value in changes.items():
        if value is None:
            del tensors[name.replace("_", ".")]
        else:
            tensors[name.replace("_", ".")] = value
    save_file(tensors, path, {"format": FORMAT, "vocab_size": "320"})
    return path


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    path, target = tmp_path / "a.safetensors", toy_target()

    def refused(match: str) -> None:
        with pytest.raises(MetaSDError, match=match) as caught:
            NgramLMDrafter(target, str(path))
        assert "a.safetensors" in str(caught.value)

    refused("no file")
    counts(path)
    path.write_bytes(path.read_bytes()[:-9])
    refused("damaged or incomplete")
    counts(path, vocab_size=300)
    refused("made for a vocabulary of 300, the target has 320")
    save_file({"keys.0": torch.zeros(1)}, path, {"format": "pt"})
    refused("expected a file of `metasd train ngram-lm`")
    rewritten(path, ids_1=None)
    refused("lacks the tensor ids.1")
    rewritten(path, ids_1=torch.zeros(2, dtype=torch.int64))
    refused("ids.1: expected one dimension of torch.int32")
    rewritten(path, ids_0=torch.full((5,), 320, dtype=torch.int32))
    refused("ids.0: expected token ids below 320, got 320")
    rewritten(path, starts_1=torch.zeros(5, dtype=torch.uint32))
    refused("level 1: expected")


def answers(num: int) -> list[Answer]:
    return [Answer("d", "", 0.0, (1, 2, i), tuple(TEXT)) for i in range(num)]


def test_training_measures_on_answers_it_never_saw(tmp_path: Path) -> None:
    job = Job(toy_target(), answers(200), tmp_path / "a.safetensors", tmp_path, {"data_licence": "MIT"})
    facts = train(job)
    assert facts["num_answers"] + facts["num_held_out"] == 200
    assert 0 < facts["num_held_out"] < 40
    levels, _ = read_ngram_lm(job.output, 320)
    assert facts["held_out_acceptance"] == pytest.approx(held_out_acceptance(levels, answers(3)), abs=1e-4)
    assert facts["held_out_acceptance"][0] > 0.6


def test_a_budget_is_kept(tmp_path: Path) -> None:
    target = toy_target()
    whole = train(Job(target, answers(100), tmp_path / "a.safetensors", tmp_path))
    small = train(Job(target, answers(100), tmp_path / "b.safetensors", tmp_path), max_bytes=whole["bytes"] - 1)
    assert small["bytes"] < whole["bytes"]
    with pytest.raises(UsageError, match="--max-bytes: expected at least"):
        train(Job(target, answers(100), tmp_path / "c.safetensors", tmp_path), max_bytes=10)
