"""The ops as Triton kernels: one launch each on a GPU; in Triton's interpreter where TRITON_INTERPRET is set."""

from metasd_kernels.triton.cutoff import logit_cutoff
from metasd_kernels.triton.sample import sample
from metasd_kernels.triton.verify import verify

__all__ = ["logit_cutoff", "sample", "verify"]
