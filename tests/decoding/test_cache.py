"""The cache in a slot, where the host decides where it writes and where the device does: against one forward pass over
the text, and against transformers' own cache."""

import random
from typing import Any

import pytest
import torch
from capture_watch import Watch
from toys import toy_llama
from transformers import (
    DynamicCache,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from metasd.cache import ModelCache, Window
from metasd.core import MetaSDError
from metasd.slots import Slot

_SIZES: dict[str, Any] = {
    "vocab_size": 200, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 0,
    "pad_token_id": 0,
}  # fmt: skip
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**_SIZES)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**_SIZES)),
    "gemma": (GemmaForCausalLM, GemmaConfig(**{**_SIZES, "head_dim": 16, "num_key_value_heads": 1})),
    "gpt2": (GPT2LMHeadModel, GPT2Config(
        vocab_size=200, n_embd=32, n_layer=3, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=0
    )),
}  # fmt: skip


def family(name: str) -> Any:
    torch.manual_seed(3)
    kind, config = FAMILIES[name]
    model = kind(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.3)
    return model


@pytest.mark.parametrize("seed", range(4))
def test_any_walk_of_feeds_and_rewinds_equals_one_forward_pass(seed: int) -> None:
    """Catches a step that writes one position late, and views of what was rewound."""
    generator = random.Random(seed)
    model = toy_llama(context_length=4096)
    cache, text = ModelCache(model, "toy"), []
    with torch.inference_mode():
        for _ in range(60):
            step = [generator.randrange(2, 300) for _ in range(generator.choice([1, 1, 2, 5, 9, 40]))]
            num_logits = generator.randrange(1, len(step) + 1)
            row = cache.feed(torch.tensor([step]), num_logits)
            text += step
            assert cache.num_tokens == len(text)
            whole = model(torch.tensor([text])).logits[:, -num_logits:]
            torch.testing.assert_close(row, whole, atol=2e-4, rtol=1e-4)
            back = min(generator.choice([0, 0, 1, 2, 4, 7]), len(text) - 1)
            cache.rewind(back)
            del text[len(text) - back :]
    assert cache.memory_bytes() >= len(text) * 2 * 2 * 2 * 12 * 4


@pytest.mark.parametrize("name", FAMILIES)
def test_token_for_token_as_with_the_dynamic_cache(name: str) -> None:
    """Greedy, float32: a prompt at once, blocks of any length with rejections behind them."""
    model = family(name)
    cache, own, generator = ModelCache(model, name), [3, 4, 5, 6, 3, 4], random.Random(1)
    argument = cache._argument
    with torch.inference_mode():
        plain, theirs = DynamicCache(config=model.config), list(own)
        logits = model(torch.tensor([theirs]), use_cache=True, **{argument: plain}).logits
        for _ in range(120):
            theirs.append(int(logits[0, -1].argmax()))
            logits = model(torch.tensor([theirs[-1:]]), use_cache=True, **{argument: plain}).logits
        row = cache.feed(torch.tensor([own]), 1)
        while len(own) < len(theirs):
            own.append(int(row[0, -1].argmax()))
            wrong = [generator.randrange(1, 200) for _ in range(generator.randrange(4))]
            row = cache.feed(torch.tensor([[own[-1], *wrong]]), 1 + len(wrong))[:, :1]
            cache.rewind(len(wrong))
    assert own == theirs
    assert len(set(own)) > 10


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", [1, 5])
def test_where_the_device_decides_the_rows_are_the_same(name: str, size: int) -> None:
    """`feed_window` writes at positions and reads a bucket that only tensors tell; what lies behind is masked."""
    model = family(name)
    text = torch.randint(1, 200, (1, 40 + size), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = model(text).logits[:, 40:]
        for bucket in (48, 64, 128):
            cache = ModelCache(model, name)
            cache.move(Slot(cache.shape, 128), None)
            assert cache.slot is not None
            cache.slot.planes.fill_(7.0)
            cache.feed(text[:, :40], 1)
            window = Window(torch.arange(40, 40 + size), bucket)
            row = cache.feed_window(text[:, 40:], window, size)
            torch.testing.assert_close(row, wanted, atol=2e-4, rtol=1e-4)
            some = cache.feed_window(text[:, 40:], window, torch.tensor([size - 1]))
            torch.testing.assert_close(some, wanted[:, -1:], atol=2e-4, rtol=1e-4)
            assert cache.num_tokens == 40


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", [1, 5])
def test_nothing_is_read_from_the_device(name: str, size: int) -> None:
    """At one and at K + 1 positions: transformers' static cache reads the device at the latter."""
    model = family(name)
    cache = ModelCache(model, name)
    cache.ready(1)
    ids, window = torch.ones((1, size), dtype=torch.int64), Window(torch.arange(40, 40 + size), 64)
    with torch.inference_mode():
        cache.feed_window(ids, window, size)
        with Watch():
            cache.feed_window(ids, window, size)
            cache.feed_window(ids, window, torch.tensor([size - 1]))


def test_the_watch_sees_a_read() -> None:
    """The negative control."""
    with Watch(), pytest.raises(AssertionError):
        torch.ones(3).sum().item()
    with Watch(), pytest.raises(AssertionError):
        torch.ones(3)[torch.ones(3) > 0]


def test_a_model_whose_config_lies_is_refused() -> None:
    model = family("llama")
    cache = ModelCache(model, "odd")
    cache.shape = cache.shape.__class__(3, 4, 8, torch.float32, torch.device("cpu"))
    with (
        torch.inference_mode(),
        pytest.raises(MetaSDError, match=r"odd: expected torch\.float32 keys of 4 heads of 8"),
    ):
        cache.feed(torch.ones((1, 2), dtype=torch.int64), 1)


def test_clear_forgets() -> None:
    model = toy_llama()
    cache = ModelCache(model, "toy")
    text = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        first = cache.feed(text, 3)
        cache.feed(text, 1)
        cache.clear()
        assert cache.num_tokens == 0
        assert torch.equal(cache.feed(text, 3), first)
        cache.rewind(3)
        assert torch.equal(cache.feed(text, 3), first)
