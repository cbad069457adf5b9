"""EAGLE heads from every layout: they compute what the formulas say, and every flag counts."""

import json
import pathlib
from typing import Any

import pytest
import torch
from eagle_checkpoints import (
    DRAFT_IDS,
    DRAFT_VOCAB,
    HIDDEN,
    TARGET,
    VOCAB,
    Checkpoint,
    eagle1,
    eagle3,
    speculators,
    straight_line,
    tensor,
)
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from metasd import MetaSDError
from metasd.core import UsageError
from metasd.drafters.eagle.checkpoint import LoadedHead, estimate_bytes, is_eagle_folder, load_head, save_head
from metasd.drafters.eagle.head import EagleHead, HeadCache

NUM_PAIRS, NUM_STEPS = 5, 3
BIASED = {"midlayer__self_attn__o_proj__bias": tensor("o.bias", HIDDEN)} | {
    f"midlayer__self_attn__{part}_proj__bias": tensor(f"{part}.bias", size)
    for part, size in zip("qkv", (32, 16, 16), strict=True)
}
CASES = {
    "eagle-1": eagle1(),
    "eagle-1 without fc bias": eagle1(fc_bias=False),
    "eagle-1 of a Qwen2 target": eagle1(qkv_bias=True),
    "eagle-1 with a draft vocabulary": eagle1(draft=True),
    "eagle-3": eagle3(),
    "eagle-3 with the whole vocabulary": eagle3(draft=False),
    "eagle-3 of a wider target": eagle3(feature_size=40),
    "eagle-3 with biases": eagle3().with_config(attention_bias=True).with_tensors(**BIASED),
    "eagle-3 of NVIDIA": eagle3().with_config(
        eagle_config={"norm_before_fc": True, "use_aux_hidden_state": True, "use_last_layernorm": True}
    ).with_tensors(input_norm__weight=tensor("input_norm", 3 * HIDDEN)),
    "eagle-3.1": eagle3().with_config(norm_output=True),
    "speculators": speculators(),
    "speculators, norm_before_residual": speculators(norm_before_residual=True),
    "speculators, norm_before_fc": speculators(norm_before_fc=True),
    "speculators, fc_norm": speculators(fc_norm=True),
    "speculators, norm_output": speculators(norm_output=True),
    "speculators, all flags": speculators(norm_before_residual=True, fc_norm=True, norm_output=True),
    "speculators of Qwen3": speculators(kind="qwen3", head_dim=8),
    "speculators, four depths": speculators(layers=(0, 3, 5, 7)),
}  # fmt: skip


def load(folder: pathlib.Path, **target: Any) -> LoadedHead:
    config = LlamaConfig(**TARGET.to_dict() | target)
    return load_head(folder, config, dtype=torch.float64, device="cpu")


def target_of(checkpoint: Checkpoint) -> dict[str, Any]:
    size = checkpoint.config.get("target_hidden_size")
    return {"hidden_size": size} if size else {}


def inputs(head: EagleHead) -> tuple[Tensor, Tensor]:
    """Embeddings of the pairs and of what is drafted behind them, and the target's features of the pairs."""
    config = head.config
    features = tensor("features", NUM_PAIRS, config.num_features * config.feature_size) * 2
    return tensor("embedded", NUM_PAIRS + NUM_STEPS, HIDDEN).double(), features.double()


@torch.no_grad()
def run(head: EagleHead, embedded: Tensor, features: Tensor, chunks: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The pairs in chunks, then one step after another."""
    cache, outs, fed_back = HeadCache(head), [], []
    for part in torch.arange(NUM_PAIRS).split(list(chunks)):
        out, back = head(embedded[part].unsqueeze(0), head.fuse(features[part].unsqueeze(0)), cache)
        outs.append(out[0])
        fed_back.append(back[0])
    for step in range(NUM_PAIRS, NUM_PAIRS + NUM_STEPS):
        out, back = head(embedded[step].view(1, 1, -1), fed_back[-1][-1:].unsqueeze(0), cache)
        outs.append(out[0])
        fed_back.append(back[0])
    return torch.cat(outs), torch.cat(fed_back)


@pytest.mark.parametrize("name", CASES)
def test_a_head_computes_what_the_formulas_say(name: str, tmp_path: pathlib.Path) -> None:
    checkpoint = CASES[name]
    loaded = load(checkpoint.save(tmp_path), **target_of(checkpoint))
    embedded, features = inputs(loaded.head)
    expected = straight_line(checkpoint, embedded, features)
    for chunks in ((NUM_PAIRS,), (2, 3), (1,) * NUM_PAIRS):
        for got, wanted in zip(run(loaded.head, embedded, features, chunks), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert name.startswith(loaded.layout)
    assert loaded.head.config.draft_vocab_size == (None if loaded.draft_to_target is None else DRAFT_VOCAB)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("speculators", "norm_before_residual", True),
        ("speculators", "norm_output", True),
        ("speculators, norm_before_residual", "norm_before_residual", False),
        ("speculators, norm_output", "norm_output", False),
        ("speculators, norm_before_fc", "norm_before_fc", False),
        ("speculators, fc_norm", "fc_norm", False),
        ("speculators", "rope_parameters", {"rope_type": "default", "rope_theta": 500.0}),
        ("speculators", "rope_parameters", {"rope_type": "linear", "rope_theta": 9.0, "factor": 2.0}),
        ("speculators", "rms_norm_eps", 0.3),
        ("speculators", "hidden_act", "relu"),
        ("eagle-1", "rope_theta", 9.0),
        ("eagle-1", "rope_scaling", {"type": "linear", "factor": 3.0}),
        ("eagle-3.1", "norm_output", None),
    ],
)
def test_every_flag_counts(name: str, key: str, value: Any, tmp_path: pathlib.Path) -> None:
    """Negative control: a flag that is read wrong cannot stay unseen in the test above."""
    checkpoint = CASES[name]
    layer = checkpoint.config.get("transformer_layer_config", {})
    flipped = (
        checkpoint.with_config(transformer_layer_config=layer | {key: value}) if key in layer
        else checkpoint.with_config(**{key: value})
    )  # fmt: skip
    if key in ("norm_before_fc", "fc_norm"):
        flipped = flipped.with_tensors(**dict.fromkeys(set(flipped.tensors) - set(CASES["speculators"].tensors)))
    head = load(flipped.save(tmp_path)).head
    embedded, features = inputs(head)
    difference = run(head, embedded, features, (NUM_PAIRS,))[1] - straight_line(checkpoint, embedded, features)[1]
    assert difference.abs().max() > 1e-2


def test_every_tensor_counts() -> None:
    """Negative control for the straight-line implementation: it uses all that is in a checkpoint."""
    unused = {"lm_head.weight", "d2t", "t2d", "embed_tokens.weight"}
    for checkpoint in (
        CASES["eagle-1 of a Qwen2 target"],
        CASES["speculators, all flags"],
        CASES["speculators of Qwen3"],
    ):
        num_features = 1 if "fc.bias" in checkpoint.tensors else 3
        features, embedded = tensor("features", 2, num_features * HIDDEN), tensor("embedded", 3, HIDDEN)
        whole = torch.cat(straight_line(checkpoint, embedded, features))
        for name in set(checkpoint.tensors) - unused:
            changed = checkpoint.with_tensors(**{name: checkpoint.tensors[name].flip(0) * 1.5})
            assert (torch.cat(straight_line(changed, embedded, features)) - whole).abs().max() > 1e-4, name


def test_the_vocabulary_of_each_layout(tmp_path: pathlib.Path) -> None:
    for i, checkpoint in enumerate((eagle1(draft=True), eagle3(), speculators())):
        loaded = load(checkpoint.save(tmp_path / str(i)))
        assert loaded.draft_to_target is not None
        assert loaded.draft_to_target.tolist() == DRAFT_IDS.tolist()
        assert (loaded.vocab_matrix is None) == (i == 0)
        assert loaded.embedding is None
    own = eagle3(draft=False).with_tensors(
        embed_tokens__weight=tensor("embed", VOCAB, HIDDEN), d2t=torch.zeros(VOCAB, dtype=torch.int64),
        t2d=torch.ones(VOCAB, dtype=torch.bool),
    )  # fmt: skip
    loaded = load(own.save(tmp_path / "own"))
    assert loaded.draft_to_target is None
    assert loaded.vocab_matrix is not None
    assert loaded.embedding is not None
    torch.testing.assert_close(loaded.vocab_matrix, own.tensors["lm_head.weight"].double())
    torch.testing.assert_close(loaded.embedding, own.tensors["embed_tokens.weight"].double())


@pytest.mark.parametrize("form", ["safetensors", "sharded", "bin", "old bin"])
def test_every_kind_of_file(form: str, tmp_path: pathlib.Path) -> None:
    checkpoint = eagle3()
    folder = checkpoint.save(tmp_path, form)
    loaded = load(folder)
    torch.testing.assert_close(loaded.head.fc.weight, torch.nn.Parameter(checkpoint.tensors["fc.weight"].double()))
    num_bytes = sum(each.numel() * each.element_size() for each in checkpoint.tensors.values())
    assert num_bytes <= estimate_bytes(folder) < num_bytes + 20_000
    assert is_eagle_folder(folder)


def test_names_with_a_prefix_and_leftovers_of_training(tmp_path: pathlib.Path) -> None:
    plain = eagle3().tensors
    prefixed = {name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{name}": t for name, t in plain.items()}
    leftovers = {
        "verifier_norm.weight": torch.ones(HIDDEN),
        "model.midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4),
    }
    folder = Checkpoint(eagle3().config, prefixed | leftovers).save(tmp_path)
    assert is_eagle_folder(folder)
    torch.testing.assert_close(load(folder).head.norm.weight.data, plain["norm.weight"].double())


def test_dtype_mode_and_randomness(tmp_path: pathlib.Path) -> None:
    folder = eagle3().save(tmp_path)
    before = torch.get_rng_state()
    loaded = load_head(folder, TARGET, dtype=torch.bfloat16, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert {parameter.dtype for parameter in loaded.head.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in loaded.head.buffers()} == {torch.float32}  # the rotary frequencies
    assert not loaded.head.training
    assert loaded.draft_to_target is not None
    assert loaded.draft_to_target.dtype == torch.int64


@pytest.mark.parametrize(
    ("checkpoint", "layers"),
    [
        (eagle1(), (-1,)),
        (eagle3(), (2, 4, 5)),
        (eagle3().with_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}), (2, 4, 7)),  # outputs
        (eagle3().with_config(eagle_aux_hidden_state_layer_ids=[2, 3, 6]), (2, 3, 6)),
        (speculators(layers=(1, 3, 6)), (1, 3, 6)),
    ],
)
def test_feature_layers(checkpoint: Checkpoint, layers: tuple[int, ...], tmp_path: pathlib.Path) -> None:
    loaded = load(checkpoint.save(tmp_path))
    assert loaded.head.config.feature_layers == layers
    is_ambiguous = layers not in ((-1,), (2, 4, 5))
    assert any("layer_ids" in sentence for sentence in loaded.assumptions) == is_ambiguous


def test_what_is_clear_needs_no_assumption(tmp_path: pathlib.Path) -> None:
    for i, checkpoint in enumerate((eagle1(), eagle1(draft=True, qkv_bias=True), eagle3(), speculators())):
        assert load(checkpoint.save(tmp_path / str(i))).assumptions == ()


@pytest.mark.parametrize(
    ("checkpoint", "sentence"),
    [
        (eagle1().with_tensors(fc__bias=None), "bias is not set"),
        (eagle1(qkv_bias=True).with_config(qkv_bias=None), "qkv_bias or attention_bias is not set"),
        (eagle1(qkv_bias=True).with_config(qkv_bias=None, attention_bias=True), "o_proj has no bias"),
        (eagle1().with_tensors(lm_head__weight=tensor("lm_head", VOCAB, HIDDEN)), "in place of the target's head"),
        (eagle3().with_tensors(lm_head__weight=None), "the target's head is used"),
        (eagle3().with_config(norm_output=False), "norm_output is false"),
        (speculators(norm_before_fc=True).with_config(norm_before_fc=None), "norm_before_fc is not set"),
        (speculators().with_config(norm_before_residual=None), "norm_before_residual is not set"),
    ],
)
def test_what_is_open_is_assumed_aloud(checkpoint: Checkpoint, sentence: str, tmp_path: pathlib.Path) -> None:
    assert [each for each in load(checkpoint.save(tmp_path)).assumptions if sentence in each]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "phi3", "mixtral", "qwen3_moe"])
def test_configs_copied_from_a_target_are_accepted(kind: str, tmp_path: pathlib.Path) -> None:
    sizes = {key: value for key, value in eagle1().config.items() if key not in ("transformers_version", "model_type")}
    copied = AutoConfig.for_model(kind, **sizes).to_dict()
    load(Checkpoint(copied | {"hidden_act": "silu"}, eagle1().tensors).save(tmp_path))


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_a_saved_head_comes_back(draft: bool, qkv_bias: bool, tmp_path: pathlib.Path) -> None:
    checkpoint = eagle1(draft=draft, qkv_bias=qkv_bias).with_config(rope_scaling={"type": "linear", "factor": 2.0})
    first = load(checkpoint.save(tmp_path / "foreign"))
    save_head(tmp_path / "new" / "own", first.head, first.draft_to_target, {"trained_on": "nothing"})
    second = load(tmp_path / "new" / "own")
    assert second.head.config == first.head.config
    assert second.assumptions == ()
    assert (second.draft_to_target is None) == (not draft)
    embedded, features = inputs(first.head)
    for got, wanted in zip(*(run(each.head, embedded, features, (2, 3)) for each in (second, first)), strict=True):
        assert torch.equal(got, wanted)
    with safe_open(tmp_path / "new" / "own" / "model.safetensors", framework="pt") as opened:
        assert set(opened.keys()) == set(checkpoint.tensors)
        assert opened.metadata()["trained_on"] == "nothing"
    assert sorted(path.name for path in (tmp_path / "new" / "own").iterdir()) == ["config.json", "model.safetensors"]


def test_heads_that_cannot_be_saved(tmp_path: pathlib.Path) -> None:
    third, first = load(eagle3().save(tmp_path / "3")).head, load(eagle1(draft=True).save(tmp_path / "1")).head
    with pytest.raises(UsageError, match="head: expected an EAGLE-1 head"):
        save_head(tmp_path / "out", third, None, {})
    with pytest.raises(UsageError, match="draft_to_target: expected 24 ids"):
        save_head(tmp_path / "out", first, None, {})
    with pytest.raises(UsageError, match=r"draft_to_target: expected .* different ids"):
        save_head(tmp_path / "out", first, torch.zeros(DRAFT_VOCAB, dtype=torch.int64), {})
    assert not (tmp_path / "out").exists()


def test_which_folders_hold_heads(tmp_path: pathlib.Path) -> None:
    for i, checkpoint in enumerate((eagle1(), eagle3(), speculators())):
        assert is_eagle_folder(checkpoint.save(tmp_path / str(i)))
    LlamaForCausalLM(TARGET).save_pretrained(tmp_path / "lm")
    assert not is_eagle_folder(tmp_path / "lm")
    assert not is_eagle_folder(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(MetaSDError, match="expected weights"):
        estimate_bytes(tmp_path / "bare")
    (tmp_path / "bare" / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    assert is_eagle_folder(tmp_path / "bare")
