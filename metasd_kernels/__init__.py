"""The fused verify op for speculative decoding, useful without the rest of the project.

    from metasd_kernels import verify, sample, logit_cutoff

One call goes from logits to tokens: softmax, total variation distance, accept or reject, residual draw.
"""

from metasd_kernels.backends import available_backends
from metasd_kernels.ops import activate, logit_cutoff, park, sample, verify
from metasd_kernels.outputs import Status, VerifyOutput, Workspace, make_workspace

__all__ = [
    "Status",
    "VerifyOutput",
    "Workspace",
    "activate",
    "available_backends",
    "logit_cutoff",
    "make_workspace",
    "park",
    "sample",
    "verify",
]
