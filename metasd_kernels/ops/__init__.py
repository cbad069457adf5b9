"""The public functions: check the arguments, then dispatch. One op a file; schema, implementation and fake together."""

from metasd_kernels.ops.cutoff import logit_cutoff
from metasd_kernels.ops.kv_swap import activate, park
from metasd_kernels.ops.sample import sample
from metasd_kernels.ops.verify import verify

__all__ = ["activate", "logit_cutoff", "park", "sample", "verify"]
