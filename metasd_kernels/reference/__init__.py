"""Plain torch: the definition of every op. Any device, any float dtype up to float64; clarity before speed."""

from metasd_kernels.reference.cutoff import logit_cutoff
from metasd_kernels.reference.sample import sample
from metasd_kernels.reference.verify import verify

__all__ = ["logit_cutoff", "sample", "verify"]
