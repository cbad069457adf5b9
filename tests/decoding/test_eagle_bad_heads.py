"""EAGLE heads that cannot be used: the error names the file and the key or tensor."""

import json
import pathlib
from typing import Any

import pytest
import torch
from eagle_checkpoints import DRAFT_VOCAB, HIDDEN, TARGET, VOCAB, Checkpoint, eagle1, eagle3, speculators, tensor
from transformers import LlamaConfig, LlamaForCausalLM

from metasd import MetaSDError
from metasd.drafters.eagle.checkpoint import is_eagle_folder, load_head


def load(folder: pathlib.Path, target: Any = TARGET) -> None:
    load_head(folder, target, dtype=torch.float32, device="cpu")


def layer(**changes: Any) -> Checkpoint:
    config = speculators().config
    return speculators().with_config(transformer_layer_config=config["transformer_layer_config"] | changes)


def refuses(checkpoint: Checkpoint, message: str, folder: pathlib.Path) -> None:
    with pytest.raises(MetaSDError, match=message) as caught:
        load(checkpoint.save(folder))
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (eagle3().with_tensors(norm__weight=None), "norm.weight is missing"),
        (eagle3().with_tensors(midlayer__hidden_norm__weight=None), "midlayer.hidden_norm.weight is missing"),
        (eagle3().with_tensors(d2t=None), "d2t is missing"),
        (eagle1(draft=True).with_tensors(d2t=None), "d2t is missing"),
        (eagle3(feature_size=40).with_config(target_hidden_size=None), "fc.weight: expected shape .32, 96."),
        (eagle1().with_config(bias=True).with_tensors(fc__bias=None), "fc.bias is missing"),
        (eagle1(qkv_bias=True).with_tensors(layers__0__self_attn__k_proj__bias=None), "k_proj.bias is missing"),
        (eagle1().with_config(mlp_bias=True), "mlp.down_proj.bias is missing"),
        (speculators(norm_before_fc=True).with_tensors(input_norm__weight=None), "input_norm.weight is missing"),
        (speculators(fc_norm=True).with_tensors(fc_norm__1__weight=None), "fc_norm.1.weight is missing"),
        (layer(model_type="qwen3"), "k_norm.weight is missing"),
    ],
)
def test_missing_tensors(checkpoint: Checkpoint, message: str, tmp_path: pathlib.Path) -> None:
    refuses(checkpoint, message, tmp_path)


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        (
            eagle1().with_tensors(layers__0__input_layernorm__weight=torch.ones(HIDDEN)),
            "layers.0.input_layernorm.weight",
        ),
        (eagle1().with_tensors(norm__weight=torch.ones(HIDDEN)), "norm.weight"),
        (eagle1().with_tensors(layers__1__mlp__up_proj__weight=torch.ones(HIDDEN)), "layers.1.mlp.up_proj.weight"),
        (eagle1().with_config(bias=False), "fc.bias"),
        (eagle1(qkv_bias=True).with_config(qkv_bias=False), "layers.0.self_attn.k_proj.bias"),
        (eagle3().with_tensors(mask_hidden=torch.ones(96)), "mask_hidden"),
        (eagle3().with_tensors(midlayer__self_attn__q_norm__weight=torch.ones(8)), "midlayer.self_attn.q_norm.weight"),
        (speculators(norm_before_fc=True).with_config(norm_before_fc=False), "input_norm.weight"),
        (speculators(fc_norm=True).with_config(fc_norm=False), "fc_norm.0.weight"),
    ],
)
def test_superfluous_tensors(checkpoint: Checkpoint, name: str, tmp_path: pathlib.Path) -> None:
    refuses(checkpoint, f"{name} belongs to no", tmp_path)


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (eagle1().with_config(intermediate_size=40), r"gate_proj.weight: expected shape .40, 32.*got .48, 32."),
        (eagle1().with_config(head_dim=4), r"self_attn.q_proj.weight: expected shape .16, 32."),
        (eagle1().with_config(hidden_size=16), "hidden_size: expected the target's hidden size 32, got 16"),
        (
            eagle3().with_config(target_hidden_size=40),
            "target_hidden_size: expected the target's hidden size 32, got 40",
        ),
        (eagle1().with_config(vocab_size=65), "vocab_size: expected the target's 64, got 65"),
        (eagle3().with_config(draft_vocab_size=65), "draft_vocab_size: expected at most the target's 64"),
        (eagle3().with_config(draft_vocab_size=23), r"lm_head.weight: expected shape .23, 32."),
        (eagle3().with_config(draft_vocab_size=None), r"lm_head.weight: expected shape .64, 32."),
        (eagle1().with_tensors(embed_tokens__weight=tensor("embed", 65, HIDDEN)), r"embed_tokens.weight: .* .64, 32."),
        (eagle3().with_config(eagle_aux_hidden_state_layer_ids=[2, 3]), r"fc.weight: expected shape .32, 64."),
        (eagle3().with_config(num_key_value_heads=3), "num_key_value_heads: expected a divisor of .* 4, got 3"),
        (
            eagle1().with_config(head_dim=None, num_attention_heads=5, num_key_value_heads=5),
            "head_dim: expected a size",
        ),
    ],
)
def test_sizes_that_do_not_fit(checkpoint: Checkpoint, message: str, tmp_path: pathlib.Path) -> None:
    refuses(checkpoint, message, tmp_path)


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (eagle1().with_config(residual_norm="yes"), "residual_norm: expected no such key"),
        (eagle3().with_config(eagle_config={"attention_sinks": True}), "attention_sinks: expected no such key"),
        (layer(query_scale=3.0), "query_scale: expected no such key"),
        (eagle1().with_config(norm_output=True), "norm_output: expected False"),
        (eagle3().with_config(num_hidden_layers=2), "num_hidden_layers: expected 1"),
        (eagle3().with_config(logit_scale=0.5), "logit_scale: expected 1"),
        (eagle3().with_config(eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state: expected True"),
        (eagle3().with_config(quantization_config={"bits": 4}), "quantization_config: expected None"),
        (layer(layer_types=["sliding_attention"]), "layer_types: expected full_attention"),
        (layer(model_type="gemma3"), "transformer_layer_config.model_type: expected llama or qwen3"),
        (speculators(norm_before_fc=True, fc_norm=True), "fc_norm: expected false where norm_before_fc is true"),
        (speculators().with_config(norm_output="yes"), "norm_output: expected true or false"),
        (
            eagle3().with_config(norm_output=True, eagle_config={"norm_output": False}),
            "norm_output: expected one value",
        ),
        (eagle1().with_config(hidden_act="unheard"), "hidden_act: expected an activation"),
        (eagle1().with_config(hidden_size=None), "hidden_size: expected a positive integer, got none"),
        (eagle1().with_config(intermediate_size="48"), "intermediate_size: expected a positive integer, got '48'"),
        (eagle1().with_config(rms_norm_eps=0), "rms_norm_eps: expected a positive number"),
        (eagle1().with_config(rope_scaling={"type": "mrope"}), "rope_parameters: expected one rotary embedding"),
        (eagle1().with_config(rope_scaling={"type": "yarn"}), "rope_parameters: expected settings"),
        (layer(rope_parameters={"full_attention": {"rope_theta": 1.0}}), "rope_parameters: expected one rotary"),
        (layer(rope_parameters={"partial_rotary_factor": 0.5}), "rope_parameters: expected one rotary embedding"),
        (eagle3().with_config(eagle_aux_hidden_state_layer_ids=[2, 3, 8]), r"layer_ids: .*in \[0, 8\)"),
        (eagle3().with_config(eagle_aux_hidden_state_layer_ids=[2, 2, 3]), "layer_ids: expected different"),
        (eagle3().with_config(eagle_aux_hidden_state_layer_ids="2"), "layer_ids: expected a list"),
        (speculators().with_config(transformer_layer_config=None), "transformer_layer_config: expected an object"),
    ],
)
def test_flags_that_are_not_supported(checkpoint: Checkpoint, message: str, tmp_path: pathlib.Path) -> None:
    refuses(checkpoint, message, tmp_path)


@pytest.mark.parametrize("checkpoint", [eagle1(draft=True), eagle3(), speculators()])
def test_vocabulary_maps(checkpoint: Checkpoint, tmp_path: pathlib.Path) -> None:
    good = checkpoint.tensors["d2t"]
    far, twice, floating = good.clone(), good.clone(), good.float()
    far[0] = VOCAB
    twice[1] = twice[0] - 1
    refuses(checkpoint.with_tensors(d2t=far), "d2t: expected offsets to ids in .*, got the id 64", tmp_path)
    refuses(checkpoint.with_tensors(d2t=twice), "d2t: expected offsets to different ids", tmp_path)
    refuses(checkpoint.with_tensors(d2t=floating), "d2t: expected int64 offsets, got torch.float32", tmp_path)
    refuses(checkpoint.with_tensors(d2t=good[1:]), rf"d2t: expected shape .{DRAFT_VOCAB}.", tmp_path)
    is_drafted = torch.zeros(VOCAB, dtype=torch.bool)
    refuses(checkpoint.with_tensors(t2d=is_drafted), "t2d: expected true exactly at d2t's ids", tmp_path)


def test_a_map_of_the_whole_vocabulary_must_be_the_identity(tmp_path: pathlib.Path) -> None:
    swapped = torch.zeros(VOCAB, dtype=torch.int64)
    swapped[0], swapped[1] = 1, -1
    refuses(eagle3(draft=False).with_tensors(d2t=swapped), "d2t: expected zeros", tmp_path)


def test_other_layouts_are_named(tmp_path: pathlib.Path) -> None:
    for kind in ("eagle", "peagle"):
        checkpoint = speculators().with_config(speculators_model_type=kind)
        refuses(checkpoint, f"speculators_model_type 'eagle3', got '{kind}'", tmp_path)
        assert is_eagle_folder(tmp_path)
    LlamaForCausalLM(TARGET).save_pretrained(tmp_path / "lm")
    with pytest.raises(MetaSDError, match=r"expected an EAGLE head.*got \d+ others: lm_head.weight"):
        load(tmp_path / "lm")


def test_missing_and_damaged_files(tmp_path: pathlib.Path) -> None:
    with pytest.raises(MetaSDError, match="no folder"):
        load(tmp_path / "nowhere")
    folder = eagle3().save(tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(MetaSDError, match=f"{weights} is damaged or incomplete"):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(MetaSDError, match=r"config\.json is damaged"):
        load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(MetaSDError, match=r"config\.json: expected a JSON object"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(MetaSDError, match=r"config\.json is missing"):
        load(folder)
    folder = eagle3().save(tmp_path / "shards", "sharded")
    (folder / "model-2-of-2.safetensors").unlink()
    with pytest.raises(MetaSDError, match=r"model-2-of-2\.safetensors is missing"):
        load(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(MetaSDError, match="expected a weight_map"):
        load(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(MetaSDError, match=r"expected weights in model.safetensors or pytorch_model.bin"):
        load(folder)


@pytest.mark.parametrize("form", ["bin", "old bin"])
def test_damaged_pickles(form: str, tmp_path: pathlib.Path) -> None:
    folder = eagle1().save(tmp_path, form)
    weights = folder / "pytorch_model.bin"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(MetaSDError, match=r"pytorch_model\.bin is damaged or incomplete"):
        load(folder)
    torch.save({"state": eagle1().tensors}, weights)
    with pytest.raises(MetaSDError, match="expected a dictionary of tensors"):
        load(folder)
    torch.save({"fc.weight": pathlib.PurePosixPath("code")}, weights)  # weights_only refuses to run what it holds
    with pytest.raises(MetaSDError, match="is damaged or incomplete"):
        load(folder)


def test_another_target(tmp_path: pathlib.Path) -> None:
    wide = LlamaConfig(**TARGET.to_dict() | {"hidden_size": 40})
    with pytest.raises(MetaSDError, match="hidden_size: expected the target's hidden size 40, got 32"):
        load(eagle1().save(tmp_path), wide)
    shallow = LlamaConfig(**TARGET.to_dict() | {"num_hidden_layers": 2})
    with pytest.raises(MetaSDError, match="layer_ids: expected different inputs of the target's layers"):
        load(eagle3().save(tmp_path), shallow)
