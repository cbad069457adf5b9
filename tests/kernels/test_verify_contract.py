"""`verify` against the oracle, integer for integer, and the promises about its inputs, outputs and neighbours."""

from typing import Any

import pytest
import torch
from cases import DRAFT_KINDS, Case, assert_agrees, assert_same, make_case
from op_runner import Ops
from torch import Tensor

from metasd_kernels import VerifyOutput, make_workspace, verify

RULES = ("token", "block")
DTYPES = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (torch.float16, torch.float16),
    "fp32": (torch.float32, torch.float32),
    "mixed": (torch.float32, torch.bfloat16),
}


def equal(have: VerifyOutput, want: VerifyOutput) -> bool:
    return all(torch.equal(left, right) for left, right in zip(have, want, strict=True))


def take(case: Case, rows: list[int]) -> tuple[list[Any], dict[str, Any]]:
    """The same requests in another batch."""
    batch_size = len(case.target_logits)
    options = {
        name: value[rows] if isinstance(value, Tensor) and len(value) == batch_size else value
        for name, value in case.options.items()
    }
    return [None if value is None else value[rows] for value in case.arguments], options


@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("kind", DRAFT_KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_agrees_with_the_oracle(
    ops: Ops, ties: dict[str, int], rule: str, kind: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    """Catches any departure from the written law: rule, draft kind, form, dtype, temperatures, cutoffs, coins."""
    number = 8 * (len(DTYPES) * DRAFT_KINDS.index(kind) + list(DTYPES.values()).index(dtypes)) + 4 * (rule == "block")
    for variant in [number // 4 % 4] if ops.is_interpreted else range(4):
        use_cutoffs, is_injected = bool(variant & 1), bool(variant & 2)
        case = make_case(
            number + variant,
            batch_size=ops.num_rows,
            rule=rule,
            kind=kind,
            dtypes=dtypes,
            use_cutoffs=use_cutoffs,
            is_injected=is_injected,
        )
        expected = case.expected()
        assert sum(want.is_tie for want in expected) <= 2  # too wide a band would hide errors
        out = ops.verify(*case.arguments, **case.options)
        assert_agrees(out, expected, ties)

        (target, ids, draft), options = case.packed()
        is_live = case.options["num_draft_tokens"] >= 0  # an inert row has no packed form
        have = ops.verify(target, ids, draft, **options)
        assert_same(VerifyOutput(*(value[is_live] for value in have)), VerifyOutput(*(value[is_live] for value in out)))


@pytest.mark.parametrize("kind", ["point", "dense", "sparse"])
@pytest.mark.parametrize("rule", RULES)
def test_inputs_are_only_read(ops: Ops, rule: str, kind: str) -> None:
    """Catches softmax, masking or id clean-up done in place on the caller's logits, ids, coins or settings."""
    case = make_case(1, batch_size=ops.num_rows, rule=rule, kind=kind, use_cutoffs=True)
    given = [value for value in (*case.arguments, *case.options.values()) if isinstance(value, Tensor)]
    on_device = [ops.there(value).clone() for value in given]
    copies = {id(value): there for value, there in zip(given, on_device, strict=True)}
    before = [value.clone() for value in on_device]
    arguments = [copies.get(id(value), value) for value in case.arguments]
    verify(
        *arguments, **{name: copies.get(id(value), value) for name, value in case.options.items()}, backend=ops.backend
    )
    for have, want in zip(on_device, before, strict=True):
        assert torch.equal(have.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("compute_tv", [True, False])
def test_out_is_filled_completely(ops: Ops, rule: str, compute_tv: bool) -> None:
    """Catches a field, row or position that is left as it was: `out` starts as NaN and 77, inert rows included."""
    case = make_case(2, batch_size=ops.num_rows, rule=rule)
    want = ops.verify(*case.arguments, **case.options, compute_tv=compute_tv)
    out = VerifyOutput(
        *(ops.there(torch.full_like(value, float("nan") if value.is_floating_point() else 77)) for value in want)
    )
    options = {name: ops.there(value) for name, value in case.options.items()}
    workspace = make_workspace(ops.num_rows, 4, 1500, device=ops.device)
    given = map(ops.there, case.arguments)
    result = verify(*given, **options, compute_tv=compute_tv, backend=ops.backend, out=out, workspace=workspace)
    assert all(mine is theirs for mine, theirs in zip(result, out, strict=True))
    assert equal(VerifyOutput(*(value.cpu() for value in out)), want)


@pytest.mark.parametrize("kind", ["point", "dense", "reduced"])
@pytest.mark.parametrize("rule", RULES)
def test_without_tv_the_tokens_are_the_same(ops: Ops, rule: str, kind: str) -> None:
    """Catches a fast path without TV that decides otherwise, or outputs of the wrong size."""
    case = make_case(3, batch_size=ops.num_rows, rule=rule, kind=kind)
    full = ops.verify(*case.arguments, **case.options)
    lean = ops.verify(*case.arguments, **case.options, compute_tv=False)
    for name in ("tv_distance", "expected_num_accepted", "block_divergence"):
        assert getattr(lean, name).shape == (0,)
    for name in ("output_token_ids", "num_accepted_tokens", "accept_probability", "status"):
        assert torch.equal(getattr(lean, name), getattr(full, name)), name


@pytest.mark.parametrize("is_greedy", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_no_drafts_at_all(ops: Ops, ties: dict[str, int], rule: str, is_greedy: bool) -> None:
    """K = 0: catches a gather or a division over zero positions. Every row gives one token from p_0."""
    case = make_case(4, batch_size=ops.num_rows, rule=rule, num_draft_tokens=0)
    options = dict(case.options, **({"temperature": 0.0, "draft_temperature": 1.0} if is_greedy else {}))
    out = ops.verify(*case.arguments, **options)
    assert out.output_token_ids.shape == (ops.num_rows, 1)
    assert out.tv_distance.shape == (ops.num_rows, 0)
    if is_greedy:
        live = case.options["num_draft_tokens"] >= 0
        assert torch.equal(out.output_token_ids[live, 0], case.target_logits[live, 0].argmax(-1))
    else:
        assert_agrees(out, case.expected(), ties)


@pytest.mark.parametrize("is_packed", [False, True], ids=["ragged", "packed"])
@pytest.mark.parametrize("rule", RULES)
def test_no_requests_at_all(ops: Ops, rule: str, is_packed: bool) -> None:
    """B = 0: catches an empty grid or a reduction over no rows."""
    full = make_case(5, batch_size=ops.num_rows, rule=rule)
    arguments, options = take(full, [])
    case = Case(*arguments, options, full.coins[:0])
    if is_packed:
        options = {name: value for name, value in options.items() if name != "num_draft_tokens"}
        options |= {"cu_num_draft_tokens": torch.zeros(1, dtype=torch.int32), "max_num_draft_tokens": 4}
        flat = (case.target_logits.flatten(0, 1), case.draft_token_ids.flatten(), case.draft_logits.flatten(0, 1))
        out = ops.verify(*flat, **options)
    else:
        out = ops.verify(*case.arguments, **options)
    assert [tuple(value.shape) for value in out] == [(0, 5), (0,), (0, 4), (0, 4), (0,), (0,), (0,)]


@pytest.mark.parametrize("rule", RULES)
def test_views_with_odd_strides(ops: Ops, rule: str) -> None:
    """Catches pointer arithmetic that assumes a dense buffer: slices of padded, transposed and stepped buffers."""
    case = make_case(6, batch_size=ops.num_rows, rule=rule, use_cutoffs=True)
    want = ops.verify(*case.arguments, **case.options)

    def padded(value: Tensor) -> Tensor:
        """The same values as a slice of a buffer that is larger in every dimension and full of 99."""
        buffer = ops.there(torch.full([size + 3 for size in value.shape], 99, dtype=value.dtype))
        view = buffer[tuple(slice(1, size + 1) for size in value.shape)]
        return view.copy_(value)

    def swapped(value: Tensor) -> Tensor:
        """The same values, the batch dimension inside."""
        return padded(value.transpose(0, 1).contiguous()).transpose(0, 1) if value.dim() > 1 else padded(value)

    def stepped(value: Tensor) -> Tensor:
        """Every second row of a larger buffer."""
        return padded(value.repeat_interleave(2, 0))[::2]

    for view in (padded, swapped, stepped):
        options = {name: view(value) if isinstance(value, Tensor) else value for name, value in case.options.items()}
        out = ops.verify(*map(view, case.arguments), **options)
        assert_same(out, want)


@pytest.mark.parametrize("kind", ["point", "dense", "sparse"])
@pytest.mark.parametrize("rule", RULES)
def test_a_row_does_not_see_its_neighbours(ops: Ops, rule: str, kind: str) -> None:
    """Catches coins, reductions or counters that mix rows: alone, permuted, and among poisoned inert rows (edge 25)."""
    case = make_case(7, batch_size=ops.num_rows, rule=rule, kind=kind, is_injected=False)
    want = ops.verify(*case.arguments, **case.options)
    for row in range(0, ops.num_rows, 5):
        arguments, options = take(case, [row])
        alone = ops.verify(*arguments, **options)
        assert_same(alone, VerifyOutput(*(value[row : row + 1] for value in want)))

    order = torch.randperm(ops.num_rows, generator=torch.Generator().manual_seed(0)).tolist()
    arguments, options = take(case, order)
    assert_same(ops.verify(*arguments, **options), VerifyOutput(*(value[order] for value in want)))

    doubled = [row for row in range(ops.num_rows) for _ in range(2)]
    arguments, options = take(case, doubled)
    arguments = [None if value is None else value.clone() for value in arguments]
    for value in (arguments[0], arguments[2], options["temperature"], options["draft_temperature"]):
        if value is not None:
            value[1::2] = float("nan")
    arguments[1][1::2] = 2**31 - 1
    options["num_draft_tokens"] = options["num_draft_tokens"].clone()
    options["num_draft_tokens"][1::2] = -1
    out = ops.verify(*arguments, **options)
    assert_same(VerifyOutput(*(value[::2] for value in out)), want)
    assert (out.output_token_ids[1::2] == -1).all()
    assert not out.status[1::2].any()


@pytest.mark.parametrize("kind", ["dense", "reduced"])
@pytest.mark.parametrize("rule", RULES)
def test_scalars_mean_the_same_as_tensors(ops: Ops, ties: dict[str, int], rule: str, kind: str) -> None:
    """Catches a host-known temperature, offset or reward length that takes another path than one in a tensor."""
    case = make_case(8, batch_size=ops.num_rows, rule=rule, kind=kind, is_injected=False)
    common = {name: case.options[name] for name in ("rule", "seed", "draft_to_target") if name in case.options}
    for warm, warm_draft in ((0.0, 1.0), (0.7, 0.0), (0.7, 1.5), (0.0, 0.0)):
        scalars = {"temperature": warm, "draft_temperature": warm_draft, "offset": 5}
        full = {
            "temperature": torch.full((ops.num_rows,), warm),
            "draft_temperature": torch.full((ops.num_rows,), warm_draft),
        }
        full |= {"offset": torch.tensor([5]), "reward_length": torch.full((ops.num_rows,), 4)}
        have, want = ops.verify(*case.arguments, **common, **scalars), ops.verify(*case.arguments, **common, **full)
        assert_same(have, want)


def test_draft_temperature_defaults_to_temperature(ops: Ops) -> None:
    """Catches a default of 1, which would verify against another law than the drafter's."""
    case = make_case(9, batch_size=ops.num_rows)
    options = dict(case.options, draft_temperature=case.options["temperature"])
    want = ops.verify(*case.arguments, **options)
    assert equal(ops.verify(*case.arguments, **dict(options, draft_temperature=None)), want)


def test_workspace_may_be_dirty_and_larger(ops: Ops) -> None:
    """Edge 24 without a graph: catches partial results of an older call that are read before they are written."""
    case = make_case(10, batch_size=ops.num_rows)
    want = ops.verify(*case.arguments, **case.options)
    workspace = make_workspace(30, 6, 4000, device=ops.device)
    workspace.partials.fill_(float("nan"))
    for _ in range(20):
        assert equal(ops.verify(*case.arguments, **case.options, workspace=workspace), want)
        assert not workspace.counters.any()


def test_packed_width_is_read_from_the_counts(ops: Ops) -> None:
    """Catches a packed call without `max_num_draft_tokens` whose outputs have another width than the longest block."""
    (target, ids, draft), options = make_case(11, batch_size=ops.num_rows).packed()
    options.pop("max_num_draft_tokens")
    assert ops.verify(target, ids, draft, **options).output_token_ids.shape == (ops.num_rows, 5)


def test_logits_that_require_grad(ops: Ops) -> None:
    """Catches outputs that hold an autograd graph alive: a decode loop would keep every round's logits."""
    case = make_case(12, batch_size=ops.num_rows)
    target, ids, draft = case.arguments
    out = ops.verify(target.clone().requires_grad_(), ids, draft.clone().requires_grad_(), **case.options)
    assert not any(value.requires_grad for value in out)
    assert equal(out, ops.verify(target, ids, draft, **case.options))


def test_inside_inference_mode(ops: Ops) -> None:
    """Catches tensor features that inference mode lacks, such as the version counter of a vocabulary map."""
    with torch.inference_mode():
        case = make_case(13, batch_size=ops.num_rows, kind="reduced")
        assert equal(ops.verify(*case.arguments, **case.options), ops.verify(*case.arguments, **case.options))
