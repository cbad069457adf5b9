"""The growing cache against one forward pass over the text: at every size of a step, across growth, behind rewinds."""

import random

import pytest
import torch
from toys import toy_llama

from metasd.cache import ModelCache


@pytest.mark.parametrize("seed", range(4))
def test_any_walk_of_feeds_and_rewinds_equals_one_forward_pass(seed: int) -> None:
    """Catches a buffer that grows without its contents or one position late, and views of what was rewound."""
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
    assert len(text) > 256  # so the buffer grew
    assert cache.memory_bytes() >= len(text) * 2 * 2 * 2 * 12 * 4


@pytest.mark.parametrize("start", [318, 319, 320, 321])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_growth_at_the_edge_of_the_buffer(start: int, size: int) -> None:
    """A first step of 64 positions reserves 320."""
    model = toy_llama()
    text = torch.randint(2, 300, (1, start + size + 1), generator=torch.Generator().manual_seed(1))
    cache = ModelCache(model, "toy")
    with torch.inference_mode():
        for k in range(0, start, 64):
            cache.feed(text[:, k : min(k + 64, start)], 1)
        cache.feed(text[:, start : start + size], 1)
        last = cache.feed(text[:, -1:], 1)[:, -1]
        torch.testing.assert_close(last, model(text).logits[:, -1], atol=2e-4, rtol=1e-4)


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
