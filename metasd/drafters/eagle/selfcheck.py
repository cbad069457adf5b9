"""Does a head belong to its target? A wrong target or a wrong flag only lowers acceptance: a short text shows it."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metasd.features import FeatureTap

if TYPE_CHECKING:
    from metasd.target import Target

THRESHOLD = 0.1
"""Share of matching first tokens on its best text below which a head is doubted: chance gives a few per cent."""
TEXTS = (
    "The river rises in the hills north of the town and runs south for about forty miles before it reaches the sea. In "
    "the spring, when the snow melts, the water is high and fast, and the people of the valley stay away from it.",
    "def count_words(text):\n    counts = {}\n    for word in text.split():\n        if word in counts:\n"
    "            counts[word] += 1\n        else:\n            counts[word] = 1\n    return counts\n",
    "Tom has 12 apples. He gives 5 apples to Ann and buys 8 more. To find how many apples Tom has now, subtract 5 from "
    "12, which gives 7, and then add 8 to 7, which gives 15. So Tom has 15 apples now.",
)
"""Prose, a program and arithmetic, written for this purpose: a specialist knows one of them."""


def probes(target: "Target", layers: tuple[int, ...]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Token ids `[1, M]`, features `[1, M, F]` and the target's choice behind each token `[1, M]`, for each text."""
    known = target.probes.get(layers)
    if known is None:
        tap, known = FeatureTap(target.model, layers), []
        for text in TEXTS:
            ids = torch.tensor([list(target.tokenizer(text)["input_ids"])], device=target.device)
            tap.is_on = True
            logits = target.model(input_ids=ids, use_cache=False).logits
            tap.is_on = False
            features = tap.take()
            known.append((ids, torch.cat([features[layer] for layer in layers], dim=-1), logits.argmax(-1)))
        target.probes[layers] = known
    return known
