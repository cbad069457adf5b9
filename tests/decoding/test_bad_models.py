"""Models that cannot be used: missing or damaged files, the wrong kind of model, another tokenizer."""

import pathlib
import shutil

import pytest
from safetensors.torch import load_file, save_file
from toys import PROMPT, lm, plain_greedy, toy_llama, toy_target, toy_tokenizer
from transformers import BartConfig, BartForConditionalGeneration, MistralConfig, MistralForCausalLM

from metasd import MetaSD, MetaSDError, SamplingParams
from metasd.drafters import load_drafters
from metasd.drafters.lm import LMDrafter
from metasd.target import Target


@pytest.fixture
def copied(toy_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(toy_folder, tmp_path / "copy"))


def test_a_good_folder_loads(toy_folder: pathlib.Path) -> None:
    engine = MetaSD.from_pretrained(str(toy_folder), drafters=["ngram", f"lm:path={toy_folder}"], device="cpu")
    engine.target.eos_token_ids = frozenset()
    answer = engine.generate(PROMPT, SamplingParams(max_new_tokens=12)).token_ids
    assert answer == plain_greedy(toy_llama(), PROMPT, 12)
    assert engine.pool.arms == ("ngram", toy_folder.name, "null")


def test_missing_folders() -> None:
    with pytest.raises(MetaSDError, match=r"target: no folder '\./nowhere/at/all'"):
        MetaSD.from_pretrained("./nowhere/at/all", drafters=["ngram"])
    with pytest.raises(MetaSDError, match=r"drafter '\./nowhere': no folder"):
        load_drafters(["./nowhere"], toy_target())


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("damage", ["cut", "lost"])
def test_damaged_files_are_named(copied: pathlib.Path, name: str, damage: str) -> None:
    path = copied / name
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(MetaSDError, match=name if damage == "cut" or name != "tokenizer.json" else "token"):
        MetaSD.from_pretrained(str(copied), drafters=["ngram"])


def test_a_checkpoint_that_lacks_a_weight_is_refused(copied: pathlib.Path) -> None:
    """transformers fills the gap with random numbers and goes on."""
    weights = load_file(copied / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MetaSDError, match=r"lacks 1 weights .*model\.layers\.1\.mlp\.up_proj\.weight"):
        MetaSD.from_pretrained(str(copied), drafters=["ngram"])


def test_encoder_decoder_model(tmp_path: pathlib.Path) -> None:
    """Its decoder alone would load, with random embeddings."""
    small = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    config = BartConfig(vocab_size=320, encoder_attention_heads=2, decoder_attention_heads=2, **small)
    model = BartForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(MetaSDError, match=r"expected a .*causal \(decoder-only\) model"):
        MetaSD.from_pretrained(str(tmp_path), drafters=["ngram"])
    with pytest.raises(MetaSDError, match="an encoder-decoder model"):
        Target(model, toy_tokenizer())


def test_sliding_window_model() -> None:
    config = MistralConfig(
        vocab_size=320, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=8,
    )  # fmt: skip
    model = MistralForCausalLM(config)
    with pytest.raises(MetaSDError, match="target: its cache cannot be rewound after a rejection"):
        Target(model, toy_tokenizer())
    with pytest.raises(MetaSDError, match="drafter 'window': its cache cannot be rewound"):
        lm(toy_target(), model, "window")


def test_drafter_with_another_tokenizer() -> None:
    other = toy_tokenizer().__class__(tokenizer_object=toy_tokenizer().backend_tokenizer, eos_token="<end>")
    with pytest.raises(MetaSDError, match="drafter 'other': its tokenizer is not the target's: token '<end>'"):
        LMDrafter(toy_target(), "other", model=toy_llama(), tokenizer=other)
    LMDrafter(toy_target(), "same", model=toy_llama(), tokenizer=toy_tokenizer())
