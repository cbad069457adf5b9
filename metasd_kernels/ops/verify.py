"""`verify`: a draft block and the target's logits in, tokens out."""

from typing import Any

import torch
from torch import Tensor

from metasd_kernels import backends, checks
from metasd_kernels.inputs import PerRow, VerifyInputs
from metasd_kernels.ops.forms import Forms, any_int64, form_of
from metasd_kernels.ops.library import register
from metasd_kernels.outputs import VerifyOutput, Workspace, empty_output

_VERIFY_INPUTS = (
    "int batch_size, int num_draft_positions, Tensor target_logits, Tensor draft_token_ids, Tensor? draft_logits, "
    "float temperature, Tensor? temperature_rows, float draft_temperature, Tensor? draft_temperature_rows, "
    "Tensor? target_cutoff, Tensor? draft_cutoff, Tensor? num_draft_tokens, Tensor? cu_num_draft_tokens, "
    "Tensor? draft_to_target, Tensor? reward_length, str rule, int seed, Tensor? seed_rows, int offset, "
    "Tensor? offset_rows, Tensor? uniform_samples, bool compute_tv, Tensor(y!)? counters, Tensor(z!)? partials, "
    "str backend"
)


_COMPUTE_TV = -4  # its place in the schema


def verify(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_logits: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    draft_temperature: float | Tensor | None = None,
    target_cutoff: Tensor | None = None,
    draft_cutoff: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    cu_num_draft_tokens: Tensor | None = None,
    max_num_draft_tokens: int | None = None,
    draft_to_target: Tensor | None = None,
    reward_length: Tensor | None = None,
    rule: str = "token",
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    uniform_samples: Tensor | None = None,
    compute_tv: bool = True,
    backend: str = "auto",
    out: VerifyOutput | None = None,
    workspace: Workspace | None = None,
) -> VerifyOutput:
    """Verify a block of draft tokens against the target: logits in, tokens out, in the law of the target exactly.

    B requests, K draft positions, V_t and V_d vocabulary sizes; p is the target's law, q the drafter's, both after
    temperature and cutoff. The output tokens are distributed as if drawn from p one by one, whatever q is, as long as
    each draft token was drawn from the q given here.

    Args:
        target_logits: `[B, K+1, V_t]` bf16 | fp16 | fp32 (fp64: reference only), row k after k draft tokens; last
            stride 1, other strides free. Packed: `[N + B, V_t]`.
        draft_token_ids: `[B, K]` int32 | int64 in the target's vocabulary; a negative id ends the block. Packed: `[N]`.
        draft_logits: `[B, K, V_d]`, the very buffer that `sample` read (packed `[N, V_d]`); None: each draft token is a
            point mass, as of an n-gram or greedy drafter.
        temperature: 0 or more, or `[B]`; 0 is greedy: the lowest id among the largest logits.
        draft_temperature: what the drafter sampled with, or `[B]`; None: `temperature`; 0: a point mass, logits unread.
        target_cutoff: `[B, K+1]` fp32 (packed `[N + B]`): the smallest raw logit that is kept, from `logit_cutoff`.
        draft_cutoff: `[B, K]` fp32 (packed `[N]`), likewise.
        num_draft_tokens: `[B]` int32 | int64, ragged blocks; None: K; 0: one token from p_0; negative: an inert row.
        cu_num_draft_tokens: `[B+1]` int32 | int64 from 0 to N: turns on the packed form.
        max_num_draft_tokens: packed form only: K of the outputs. None: the longest block, which reads the device.
        draft_to_target: `[V_d]` int64, target id of each draft id; or `[B, K, S]` int64 (packed `[N, S]`): sparse draft
            laws, `draft_logits` over the S listed target ids (distinct in a row; a negative id is an empty slot).
            A draft token that the target lacks ends the block: the law is exact only if the drafter cannot draw one.
        reward_length: `[B]`, the N of the block divergence; None: K.
        rule: "token" (Leviathan et al. 2023; Chen et al. 2023) or "block" (Sun et al., ICLR 2025), which never accepts
            fewer tokens in expectation.
        seed: int64 `[B]`, the key of a request's coins; an int only for one row.
        offset: the round nonce, an int or int64 `[1]` | `[B]`. It must be new in every round of a request and must not
            be the token position: a coin that is seen and used again biases the output through the bandit.
        uniform_samples: `[B, K+2]` fp32 in [0, 1): injected coins: K to accept, one for the tile, one for the id.
        compute_tv: False leaves out what needs the total variation distance; those outputs have size 0.
        backend: "auto" or a name of `available_backends()`.
        out: outputs to write into, as a captured graph needs: contiguous, with the shapes and dtypes of the result, and
            no memory shared with an input.
        workspace: from `make_workspace`, one for each stream or captured graph.

    Returns:
        VerifyOutput; its class documents each field.

    Raises:
        ValueError: a rank, shape, dtype, device, stride or Python value is wrong; `out` is then untouched. Values
            inside tensors are not read: they set bits of `status` instead. Not checked: that `cu_num_draft_tokens`
            ascends, that sparse ids are distinct, that injected coins lie in [0, 1).

    Example:
        >>> logits = torch.tensor([[[0.0, 5.0], [5.0, 0.0]]])
        >>> verify(logits, torch.tensor([[1]]), temperature=0.0).output_token_ids
        tensor([[1, 0]])
    """
    given = (
        target_logits, draft_token_ids, draft_logits, temperature, draft_temperature, target_cutoff, draft_cutoff,
        num_draft_tokens, cu_num_draft_tokens, max_num_draft_tokens, draft_to_target, reward_length, rule,
        uniform_samples, compute_tv, backend, out, workspace, seed, offset,
    )  # fmt: skip
    form = form_of((*given[:-2], any_int64(seed), any_int64(offset)))
    known = _KNOWN.get(form) if form else None
    if known is None:
        size = _check(*given)
        if form:
            kernels = backends.resolve(backend, target_logits, draft_logits)
            known = size, kernels, _outputs(target_logits, *size, compute_tv, target_logits.device)
            if cu_num_draft_tokens is None or max_num_draft_tokens is not None:
                _KNOWN[form] = known
    elif draft_to_target is not None and draft_to_target.dim() == 1:
        checks.vocabulary_map(draft_to_target, target_logits.shape[-1])  # its values may have changed

    warmth = checks.as_temperature(temperature)
    draft_warmth = warmth if draft_temperature is None else checks.as_temperature(draft_temperature)
    key, nonce = checks.as_per_row(seed), checks.as_per_row(offset)
    counters, partials = (workspace.counters, workspace.partials) if workspace is not None else (None, None)
    if known is not None:  # nobody traces: the dispatcher would only cost time
        size, kernels, like = known
        inputs = VerifyInputs(
            *size, target_logits, draft_token_ids, draft_logits, warmth, draft_warmth, target_cutoff, draft_cutoff,
            num_draft_tokens, cu_num_draft_tokens, draft_to_target, reward_length, rule, key, nonce, uniform_samples,
            compute_tv, counters, partials,
        )  # fmt: skip
        if out is None:
            out = VerifyOutput._make(map(torch.empty_like, like))  # half the time of torch.empty
        kernels.verify(inputs, out)
        return out
    arguments = (
        *size, checks.detached(target_logits), draft_token_ids, checks.detached(draft_logits),
        float(warmth.value), warmth.rows, float(draft_warmth.value), draft_warmth.rows,
        target_cutoff, draft_cutoff, num_draft_tokens, cu_num_draft_tokens, draft_to_target, reward_length, rule,
        int(key.value), key.rows, int(nonce.value), nonce.rows, uniform_samples, compute_tv, counters, partials,
        backend,
    )  # fmt: skip
    if out is None:
        return VerifyOutput(*torch.ops.metasd.verify(*arguments))
    torch.ops.metasd.verify_out(*arguments, *out)
    return out


_KNOWN = Forms[tuple[tuple[int, int], backends.Kernels, VerifyOutput]]()


def _check(
    target_logits: Tensor, draft_token_ids: Tensor, draft_logits: Tensor | None, temperature: object,
    draft_temperature: object, target_cutoff: Tensor | None, draft_cutoff: Tensor | None,
    num_draft_tokens: Tensor | None, cu_num_draft_tokens: Tensor | None, max_num_draft_tokens: int | None,
    draft_to_target: Tensor | None, reward_length: Tensor | None, rule: str, uniform_samples: Tensor | None,
    compute_tv: bool, backend: str, out: VerifyOutput | None, workspace: Workspace | None, seed: object, offset: object,
) -> tuple[int, int]:  # fmt: skip
    """Refuse what is wrong; the number of requests and of draft positions."""
    is_packed = cu_num_draft_tokens is not None
    target = checks.logits("target_logits", target_logits, ["N + B", "V_t"] if is_packed else ["B", "K + 1", "V_t"])
    device, vocab_size = target.device, target.shape[-1]
    if is_packed:
        cumulative = checks.tensor("cu_num_draft_tokens", cu_num_draft_tokens, ["B + 1"], checks.INTS, device)
        batch_size, num_tokens = cumulative.shape[0] - 1, target.shape[0] - cumulative.shape[0] + 1
        if batch_size < 0 or num_tokens < 0:
            checks.refuse("target_logits", "N + B rows for B + 1 cumulative counts", checks.describe(target))
        if num_draft_tokens is not None:
            checks.refuse("num_draft_tokens", "None beside cu_num_draft_tokens", checks.describe(num_draft_tokens))
        num_positions = _packed_width(max_num_draft_tokens, cumulative)
        block, rows = [num_tokens], [num_tokens + batch_size]
    else:
        batch_size, num_positions = target.shape[0], target.shape[1] - 1
        if num_positions < 0:
            checks.refuse("target_logits", "K + 1 rows a request, at least 1", checks.describe(target))
        if max_num_draft_tokens is not None:
            checks.refuse("max_num_draft_tokens", "None without cu_num_draft_tokens", max_num_draft_tokens)
        block, rows = [batch_size, num_positions], [batch_size, num_positions + 1]
        if num_draft_tokens is not None:
            checks.tensor("num_draft_tokens", num_draft_tokens, [batch_size], checks.INTS, device)
    checks.tensor("draft_token_ids", draft_token_ids, block, checks.INTS, device)
    if draft_logits is not None:
        checks.logits("draft_logits", draft_logits, [*block, "V_d"], device)
    if draft_to_target is not None:
        _check_map(draft_to_target, draft_logits, block, vocab_size)
    if target_cutoff is not None:
        checks.tensor("target_cutoff", target_cutoff, rows, checks.FLOATS, device)
    if draft_cutoff is not None:
        checks.tensor("draft_cutoff", draft_cutoff, block, checks.FLOATS, device)
    if reward_length is not None:
        checks.tensor("reward_length", reward_length, [batch_size], (*checks.INTS, *checks.FLOATS), device)
    backends.check_name(backend)
    if rule not in checks.RULES:
        checks.refuse("rule", f"one of {list(checks.RULES)}", repr(rule))
    warmth = checks.temperature("temperature", temperature, batch_size, device)
    if draft_temperature is not None:
        checks.temperature("draft_temperature", draft_temperature, batch_size, device)
    checks.coins("uniform_samples", uniform_samples, batch_size, num_positions + 2, device)
    checks.seed(seed, batch_size, device, is_used=uniform_samples is None and not warmth.always(0))
    checks.offset(offset, batch_size, device)
    if workspace is not None:
        _check_workspace(workspace, batch_size, num_positions, vocab_size, device)
    if out is not None:
        _check_out(out, _outputs(target, batch_size, num_positions, compute_tv, torch.device("meta")), device)
    return batch_size, num_positions


def _packed_width(max_num_draft_tokens: int | None, cumulative: Tensor) -> int:
    if max_num_draft_tokens is None:
        return max(int(cumulative.diff().max()), 0) if cumulative.shape[0] > 1 else 0
    if isinstance(max_num_draft_tokens, bool) or not isinstance(max_num_draft_tokens, int) or max_num_draft_tokens < 0:
        checks.refuse("max_num_draft_tokens", "an int of at least 0", repr(max_num_draft_tokens))
    return max_num_draft_tokens


def _check_map(draft_to_target: Tensor, draft_logits: Tensor | None, block: list[int], vocab_size: int) -> None:
    if draft_logits is None:
        checks.refuse("draft_to_target", "None without draft_logits", checks.describe(draft_to_target))
    width, device = draft_logits.shape[-1], draft_logits.device
    if isinstance(draft_to_target, Tensor) and draft_to_target.dim() == 1:
        checks.tensor("draft_to_target", draft_to_target, [width], (torch.int64,), device)
        checks.vocabulary_map(draft_to_target, vocab_size)
    else:
        checks.tensor("draft_to_target", draft_to_target, [*block, width], (torch.int64,), device)


def _check_workspace(
    workspace: Workspace, batch_size: int, num_positions: int, vocab_size: int, device: torch.device
) -> None:
    if not isinstance(workspace, Workspace):
        checks.refuse("workspace", "a Workspace from make_workspace", checks.describe(workspace))
    if workspace.counters.device != device:
        checks.refuse("workspace", f"one on {device}", checks.describe(workspace.counters))
    held = (workspace.batch_size, workspace.num_draft_tokens, workspace.vocab_size)
    if any(have < need for have, need in zip(held, (batch_size, num_positions, vocab_size), strict=True)):
        checks.refuse("workspace", f"one for B, K, V_t of at least {(batch_size, num_positions, vocab_size)}", held)


def _check_out(out: VerifyOutput, like: VerifyOutput, device: torch.device) -> None:
    if not isinstance(out, VerifyOutput):
        checks.refuse("out", "a VerifyOutput", type(out).__name__)
    for name, want in zip(VerifyOutput._fields, like, strict=True):
        checks.output(f"out.{name}", getattr(out, name), list(want.shape), want.dtype, device)


def _outputs(
    target: Tensor, batch_size: int, num_positions: int, compute_tv: bool, device: torch.device
) -> VerifyOutput:
    dtype = torch.promote_types(target.dtype, torch.float32)
    return empty_output(batch_size, num_positions, dtype, device, compute_tv)


def _verify_out(
    batch_size: int, num_draft_positions: int, target_logits: Tensor, draft_token_ids: Tensor,
    draft_logits: Tensor | None, temperature: float, temperature_rows: Tensor | None, draft_temperature: float,
    draft_temperature_rows: Tensor | None, target_cutoff: Tensor | None, draft_cutoff: Tensor | None,
    num_draft_tokens: Tensor | None, cu_num_draft_tokens: Tensor | None, draft_to_target: Tensor | None,
    reward_length: Tensor | None, rule: str, seed: int, seed_rows: Tensor | None, offset: int,
    offset_rows: Tensor | None, uniform_samples: Tensor | None, compute_tv: bool, counters: Tensor | None,
    partials: Tensor | None, backend: str, *out: Tensor,
) -> None:  # fmt: skip
    inputs = VerifyInputs(
        batch_size, num_draft_positions, target_logits, draft_token_ids, draft_logits,
        PerRow(temperature, temperature_rows), PerRow(draft_temperature, draft_temperature_rows),
        target_cutoff, draft_cutoff, num_draft_tokens, cu_num_draft_tokens, draft_to_target, reward_length, rule,
        PerRow(seed, seed_rows), PerRow(offset, offset_rows), uniform_samples, compute_tv, counters, partials,
    )  # fmt: skip
    backends.resolve(backend, target_logits, draft_logits).verify(inputs, VerifyOutput(*out))


def _verify(batch_size: int, num_draft_positions: int, target_logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    compute_tv = rest[_COMPUTE_TV]
    out = _outputs(target_logits, batch_size, num_draft_positions, compute_tv, target_logits.device)
    _verify_out(batch_size, num_draft_positions, target_logits, *rest, *out)
    return tuple(out)


def _verify_fake(batch_size: int, num_draft_positions: int, target_logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(_outputs(target_logits, batch_size, num_draft_positions, rest[_COMPUTE_TV], target_logits.device))


_OUTPUTS = ", ".join(f"Tensor({letter}!) {name}" for letter, name in zip("abcdefg", VerifyOutput._fields, strict=True))
register("verify", f"({_VERIFY_INPUTS}) -> ({', '.join(['Tensor'] * 7)})", _verify, _verify_fake)
register("verify_out", f"({_VERIFY_INPUTS}, {_OUTPUTS}) -> ()", _verify_out, lambda *arguments: None)
