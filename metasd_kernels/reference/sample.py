"""Draw from logits: what a drafter does, and what plain decoding does."""

from torch import Tensor

from metasd_kernels.inputs import SampleInputs
from metasd_kernels.reference.laws import draw, law
from metasd_kernels.rng import draft_coins


def sample(inputs: SampleInputs, out: Tensor) -> None:
    """Fill `out` `[B]`. A greedy row needs no coin: its law is a point mass."""
    logits = inputs.logits
    batch_size, device = logits.shape[0], logits.device
    log_prob = law(logits, inputs.temperature, inputs.cutoff).log_prob
    if inputs.temperature.always(0):
        out.copy_(log_prob.argmax(-1))
        return
    coins = inputs.uniform_samples
    if coins is None:
        seed, offset = (value.tensor(batch_size, out.dtype, device) for value in (inputs.seed, inputs.offset))
        coins = draft_coins(seed, offset, inputs.position.tensor(batch_size, out.dtype, device))
    out.copy_(draw(log_prob.exp(), coins))
