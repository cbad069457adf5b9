"""Top-k, top-p and min-p as one number a row: the smallest raw logit that they keep."""

import torch
from torch import Tensor

from metasd_kernels.inputs import CutoffInputs
from metasd_kernels.reference.laws import compute_dtype, is_greedy


def logit_cutoff(inputs: CutoffInputs, out: Tensor) -> None:
    """Fill `out` `[R]`: top-k, then top-p over what is left, then min-p. The largest logit is always kept."""
    x = inputs.logits.to(compute_dtype(inputs.logits))
    x = x.masked_fill(x.isnan() | (x == torch.inf), -torch.inf).sort(-1, descending=True).values
    num_rows, vocab_size = x.shape

    def column(name: str) -> Tensor:
        value: Tensor = getattr(inputs, name).tensor(num_rows, x.dtype, x.device)
        return value.unsqueeze(-1)

    temperature, top_k, top_p, min_p = (column(name) for name in ("temperature", "top_k", "top_p", "min_p"))
    is_kept = x > -torch.inf

    last = torch.where((top_k < 1) | (top_k > vocab_size), vocab_size, top_k).long() - 1
    is_kept &= x >= x.gather(-1, last)

    takes_best = is_greedy(temperature)
    scaled = (x - x[:, :1].nan_to_num(neginf=0.0)) / temperature.masked_fill(takes_best, 1.0)
    weight = scaled.exp().masked_fill(~is_kept, 0.0)
    mass_before = weight.cumsum(-1) - weight
    is_kept &= (mass_before < top_p * weight.sum(-1, keepdim=True)) | (top_p >= 1)
    is_kept &= scaled >= min_p.log()
    is_kept &= ~takes_best | (x >= x[:, :1])
    is_kept[:, 0] = True
    # Ties at the cutoff are kept by whoever compares with it: they have the same logit.
    out.copy_(x.masked_fill(~is_kept, torch.inf).amin(-1))
