"""What the adapters share: laws that come as probabilities, and the refusal of what `verify` does not do."""

from collections.abc import Sequence

import torch
from torch import Tensor

from metasd_kernels import checks


def logits_of(name: str, probs: object, shape: Sequence[int | str], device: torch.device | None = None) -> Tensor:
    """Logits of laws that come as probabilities: their logarithm, at least in fp32; probability 0 becomes -inf.

    The softmax in `verify` gives the law back, scaled to a sum of 1. A negative or NaN probability becomes NaN, which
    `verify` treats as it does any unfit row.
    """
    law = checks.tensor(name, probs, shape, checks.FLOATS, device)
    return law.to(torch.promote_types(law.dtype, torch.float32)).log()


def require(name: str, value: object, *accepted: object) -> None:
    """Refuse a value unless it means what `verify` does anyway."""
    if isinstance(value, Tensor) or value not in accepted:
        checks.refuse(name, " or ".join(map(repr, accepted)), checks.describe(value))
