"""Toy models are faster on one thread, and two threads round differently from run to run on a busy machine."""

import pathlib
from collections.abc import Iterator

import pytest
import torch
from toys import toy_llama, toy_tokenizer


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The toy target as a checkpoint."""
    path = tmp_path_factory.mktemp("model")
    toy_llama().save_pretrained(path)
    toy_tokenizer().save_pretrained(path)
    return path
