"""The ops in C++ for the CPU: one pass over the logits, vectorised, over threads. Bound by `metasd_kernels._C`.

The binding reads the input tuples itself: a verification of a small vocabulary takes two microseconds, and forty
addresses and sizes gathered in Python would take longer.
"""

import torch
from torch import Tensor

from metasd_kernels import _C
from metasd_kernels.inputs import CutoffInputs, SampleInputs, VerifyInputs
from metasd_kernels.outputs import VerifyOutput

_INSTRUCTION_SET = ""  # the best of this processor; tests set another


def verify(inputs: VerifyInputs, out: VerifyOutput) -> None:
    """Fill `out`; see `metasd_kernels.verify` for the contract."""
    _C.verify(inputs, out, torch.get_num_threads(), _INSTRUCTION_SET)


def sample(inputs: SampleInputs, out: Tensor) -> None:
    """Fill `out` `[B]`; see `metasd_kernels.sample`."""
    _C.sample(inputs, out, torch.get_num_threads(), _INSTRUCTION_SET)


def logit_cutoff(inputs: CutoffInputs, out: Tensor) -> None:
    """Fill `out` `[R]`; see `metasd_kernels.logit_cutoff`."""
    _C.logit_cutoff(inputs, out, torch.get_num_threads(), _INSTRUCTION_SET)
