"""`sample`: a token from a row of logits, with coins that `verify` never uses."""

from typing import Any

import torch
from torch import Tensor

from metasd_kernels import backends, checks
from metasd_kernels.inputs import PerRow, SampleInputs
from metasd_kernels.ops.forms import Forms, any_int64, form_of
from metasd_kernels.ops.library import register


def sample(
    logits: Tensor,
    *,
    temperature: float | Tensor,
    cutoff: Tensor | None = None,
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    position: int | Tensor = 0,
    uniform_samples: Tensor | None = None,
    backend: str = "auto",
    out: Tensor | None = None,
) -> Tensor:
    """Draw one token for each row from softmax(logits / temperature) over the logits at or above the cutoff.

    A drafter that draws with this function, and hands the same logits, temperature and cutoff to `verify`, is verified
    against the very law that it drew from.

    Args:
        logits: `[B, V]` bf16 | fp16 | fp32 (fp64: reference only), last stride 1.
        temperature: 0 or more, or `[B]`; 0: the lowest id among the largest logits.
        cutoff: `[B]`, the smallest raw logit that is kept, from `logit_cutoff`.
        seed, offset: as in `verify`.
        position: k, the position in the draft block, in [0, 2**32), or int64 `[1]` or `[B]` of these.
        uniform_samples: `[B, 2]` fp32 in [0, 1): injected coins, for the tile and for the id.
        backend: "auto" or a name of `available_backends()`.
        out: contiguous `[B]` int64 to write into.

    Returns:
        int64 `[B]`. A row without support gives 0.

    Raises:
        ValueError: as in `verify`.

    Example:
        >>> sample(torch.tensor([[0.0, 9.0, 1.0]]), temperature=0.0)
        tensor([1])
    """
    given = logits, temperature, cutoff, position, uniform_samples, backend, out, seed, offset
    form = form_of((*given[:-2], any_int64(seed), any_int64(offset)))
    kernels = _KNOWN.get(form) if form else None
    if kernels is None:
        _check(*given)
        if form:
            kernels = _KNOWN[form] = backends.resolve(backend, logits)
    warmth, key, nonce = checks.as_temperature(temperature), checks.as_per_row(seed), checks.as_per_row(offset)
    place = checks.as_per_row(position)
    if kernels:  # nobody traces: the dispatcher would only cost time
        result = _sample_fake(logits) if out is None else out
        kernels.sample(SampleInputs(logits, warmth, cutoff, key, nonce, place, uniform_samples), result)
        return result
    arguments = (
        checks.detached(logits), float(warmth.value), warmth.rows, cutoff, int(key.value), key.rows, int(nonce.value),
        nonce.rows, int(place.value), place.rows, uniform_samples, backend,
    )  # fmt: skip
    if out is None:
        token_ids: Tensor = torch.ops.metasd.sample(*arguments)
        return token_ids
    torch.ops.metasd.sample_out(*arguments, out)
    return out


_KNOWN = Forms[backends.Kernels]()


def _check(
    logits: Tensor, temperature: object, cutoff: Tensor | None, position: object, uniform_samples: Tensor | None,
    backend: str, out: Tensor | None, seed: object, offset: object,
) -> None:  # fmt: skip
    logits = checks.logits("logits", logits, ["B", "V"])
    batch_size, device = logits.shape[0], logits.device
    warmth = checks.temperature("temperature", temperature, batch_size, device)
    backends.check_name(backend)
    if cutoff is not None:
        checks.tensor("cutoff", cutoff, [batch_size], checks.FLOATS, device)
    checks.position(position, batch_size, device)
    checks.coins("uniform_samples", uniform_samples, batch_size, 2, device)
    checks.seed(seed, batch_size, device, is_used=uniform_samples is None and not warmth.always(0))
    checks.offset(offset, batch_size, device)
    if out is not None:
        checks.output("out", out, [batch_size], torch.int64, device)


def _sample_out(
    logits: Tensor, temperature: float, temperature_rows: Tensor | None, cutoff: Tensor | None, seed: int,
    seed_rows: Tensor | None, offset: int, offset_rows: Tensor | None, position: int, position_rows: Tensor | None,
    uniform_samples: Tensor | None, backend: str, out: Tensor,
) -> None:  # fmt: skip
    inputs = SampleInputs(
        logits, PerRow(temperature, temperature_rows), cutoff, PerRow(seed, seed_rows), PerRow(offset, offset_rows),
        PerRow(position, position_rows), uniform_samples,
    )  # fmt: skip
    backends.resolve(backend, logits).sample(inputs, out)


def _sample(logits: Tensor, *rest: Any) -> Tensor:
    out = _sample_fake(logits)
    _sample_out(logits, *(*rest, out))
    return out


def _sample_fake(logits: Tensor, *rest: Any) -> Tensor:
    return torch.empty(logits.shape[:1], dtype=torch.int64, device=logits.device)


_SAMPLE_INPUTS = (
    "Tensor logits, float temperature, Tensor? temperature_rows, Tensor? cutoff, int seed, Tensor? seed_rows, "
    "int offset, Tensor? offset_rows, int position, Tensor? position_rows, Tensor? uniform_samples, str backend"
)
register("sample", f"({_SAMPLE_INPUTS}) -> Tensor", _sample, _sample_fake)
register("sample_out", f"({_SAMPLE_INPUTS}, Tensor(a!) out) -> ()", _sample_out, lambda *arguments: None)
