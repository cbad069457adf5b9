"""The README's recipe for Vicuna-7B with 68M drafters and EAGLE heads, on tiny models of the same shape.

Float16 weights, a tokenizer without a chat template, a causal drafter, an EAGLE-1 head as a pickled file, another
fetched from the hub.
"""

import copy
import logging
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from made_drafters import FOLDER, eagle
from safetensors.torch import load_file
from toys import toy_llama, toy_target, toy_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from metasd import MetaSD, SamplingParams
from metasd.core import MetaSDError
from metasd.drafters import memory
from metasd.target import Target

TEMPLATE = (
    "{% for message in messages %}{{ 'USER: ' if message['role'] == 'user' else 'ASSISTANT: ' }}"
    "{{ message['content'] }} {% endfor %}ASSISTANT:"
)
PARAMS = SamplingParams(max_new_tokens=12)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Target and drafter in float16 with their tokenizer, and a head as its trainer's `.bin`."""
    root = tmp_path_factory.mktemp("vicuna")
    places = {name: root / name for name in ("target", "drafter-68m", "eagle-head")}
    for name, seed in (("target", 5), ("drafter-68m", 6)):
        copy.deepcopy(toy_llama(seed)).to(torch.float16).save_pretrained(places[name])
        toy_tokenizer().save_pretrained(places[name])
    eagle(toy_target(), draft_ids=range(0, 320, 2))
    saved = FOLDER / "head0-320-160"
    places["eagle-head"].mkdir()
    torch.save(load_file(saved / "model.safetensors"), places["eagle-head"] / "pytorch_model.bin")
    (places["eagle-head"] / "config.json").write_text((saved / "config.json").read_text())
    return places


@pytest.mark.filterwarnings("ignore:drafter 'eagle-head' guesses")
def test_the_recipe(folders: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    """Every kind is told apart by its path, says what it takes before it is loaded, and the answer stays plain's."""
    caplog.set_level(logging.INFO, "metasd")
    drafters = [str(folders["drafter-68m"]), str(folders["eagle-head"])]
    engine = MetaSD.from_pretrained(str(folders["target"]), drafters=drafters, dtype="float32", num_draft_tokens=3)
    assert [type(arm).__name__ for arm in engine.pool.drafters.values()] == ["LMDrafter", "EagleDrafter", "NullDrafter"]
    assert [line for line in caplog.messages if "MB of weights" in line and "68m" in line]
    assert [line for line in caplog.messages if "MB of weights" in line and "eagle-head" in line]
    messages = [{"role": "user", "content": "the cat sat"}]
    with pytest.raises(MetaSDError, match="no chat template"):
        engine.generate(messages, PARAMS)
    engine.tokenizer.chat_template = TEMPLATE
    assert engine.generate(messages, PARAMS).token_ids == engine.generate_plain(messages, PARAMS).token_ids
    half = MetaSD.from_pretrained(str(folders["target"]), drafters=drafters, num_draft_tokens=3)
    assert half.target.model.dtype == torch.float16
    assert len(half.generate("the cat", PARAMS).token_ids) == 12


def test_a_target_that_was_placed_by_the_user(folders: dict[str, Path]) -> None:
    """As with `device_map="auto"` over several GPUs: a ready model in a Target."""
    model = AutoModelForCausalLM.from_pretrained(folders["target"], dtype=torch.float32)
    target = Target(model.eval(), AutoTokenizer.from_pretrained(folders["target"]))
    engine = MetaSD.from_pretrained(target, drafters=[str(folders["drafter-68m"])])
    assert engine.generate("the cat", PARAMS).token_ids == engine.generate_plain("the cat", PARAMS).token_ids


@pytest.mark.filterwarnings("ignore:drafter '.*' guesses")
def test_a_head_from_the_hub(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(repository: str, **options: Any) -> str:
        asked.append(repository)
        if repository != "somebody/EAGLE-Vicuna":
            raise OSError("404: not found")
        return str(folders["eagle-head"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    engine = MetaSD.from_pretrained(toy_target(), drafters=["eagle:path=somebody/EAGLE-Vicuna"])
    assert engine.pool.arms == ("EAGLE-Vicuna", "null")
    with pytest.raises(MetaSDError, match="'somebody/else', and the hub gives no repository of that name: 404"):
        MetaSD.from_pretrained(toy_target(), drafters=["eagle:path=somebody/else"])
    assert asked == ["somebody/EAGLE-Vicuna", "somebody/else"]


def test_what_cannot_fit_is_refused_before_it_is_loaded(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10_000)
    with pytest.raises(MetaSDError, match=r"68m' needs 0.00 GB for its weights on cpu, where 0.00 GB are free"):
        MetaSD.from_pretrained(toy_target(), drafters=[str(folders["drafter-68m"])])


def test_free_memory_is_what_the_system_says() -> None:
    free = memory.free_bytes(torch.device("cpu"))
    assert free is None or 10**8 < free < 10**14
