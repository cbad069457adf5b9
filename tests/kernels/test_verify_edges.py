"""Edge cases, each from a public fault of another implementation; the numbers are those of the contract's list.

Here are those that need no statistics (test_verify_laws.py), no captured graph and no compiled variant.
"""

import math

import numpy as np
import oracles
import pytest
import torch
from cases import assert_agrees, assert_same, make_case
from op_runner import Ops

from metasd_kernels import Status

RULES = ("token", "block")
TOP = 1 - 2.0**-24  # the largest fp32 below 1
INF, NAN = float("inf"), float("nan")

both_rules = pytest.mark.parametrize("rule", RULES)


def coins(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float32)


def test_01_zero_coin_does_not_accept_an_impossible_token(ops: Ops) -> None:
    """u = 0 and p(x) = 0: catches `p / q >= u`."""
    target, draft = torch.tensor([[[-INF, 0.0, 0.0]] * 2]), torch.zeros(1, 1, 3)
    for rule in RULES:
        out = ops.verify(target, torch.tensor([[0]]), draft, rule=rule, uniform_samples=coins(0, 0, 0))
        assert out.output_token_ids.tolist() == [[1, -1]]
        assert out.accept_probability.tolist() == [[0.0]]


@both_rules
@pytest.mark.parametrize("log_p", [-1, -10, -20, -30, -40])
def test_02_equal_laws_are_accepted(ops: Ops, rule: str, log_p: int) -> None:
    """p == q bitwise and u at its largest: catches `log p > log u + log q`, which loses log u to rounding."""
    generator = torch.Generator().manual_seed(-log_p)
    rest = torch.randn(4, 500, generator=generator)
    target = torch.cat([rest.logsumexp(-1, keepdim=True) + log_p, rest], -1).unsqueeze(0)
    out = ops.verify(target, torch.zeros(1, 3, dtype=torch.int64), target[:, :3], rule=rule,
                     uniform_samples=coins(TOP, TOP, TOP, 0.5, 0.5))  # fmt: skip
    assert int(out.num_accepted_tokens[0]) == 3
    assert out.accept_probability.tolist() == [[1.0] * 3]
    assert out.tv_distance.tolist() == [[0.0] * 3]
    assert int(out.status[0]) == 0


@both_rules
def test_03_small_draft_probabilities_keep_the_residual(ops: Ops, rule: str) -> None:
    """q / p about 1e-8 on many tokens: catches a residual computed as p * (1 - q / p) or cut by a threshold."""
    vocab_size = 4096
    target, draft = torch.zeros(1, 2, vocab_size), torch.full((1, 1, vocab_size), -18.0)
    draft[0, 0, 7] = 10.0
    num_rows = 3 * ops.num_rows
    u = (torch.arange(num_rows) + 0.5) / num_rows
    given = torch.stack([torch.full((num_rows,), TOP), u, u.flip(0)], 1)
    many = (target.expand(num_rows, -1, -1), torch.full((num_rows, 1), 7), draft.expand(num_rows, -1, -1))
    out = ops.verify(*many, rule=rule, uniform_samples=given)
    tile, token = (u * 4).floor(), (u.flip(0) * 1024).floor()
    assert (out.num_accepted_tokens == 0).all()
    assert (out.output_token_ids[:, 0] - (1024 * tile + token)).abs().max() <= 1  # token 7 has no mass: a shift of 1
    assert float(out.tv_distance[0, 0]) == pytest.approx(1 - 1 / vocab_size, abs=1e-6)


@both_rules
@pytest.mark.parametrize("same", [True, False])
def test_04_06_one_token_left(ops: Ops, rule: str, same: bool) -> None:
    """-inf in both rows for all but one token, equal or disjoint: catches inf - inf and 0 / 0."""
    target, draft = torch.full((1, 3, 40), -INF), torch.full((1, 2, 40), -INF)
    target[..., 11] = 3.0
    draft[..., 11 if same else 12] = -2.0
    out = ops.verify(target, torch.full((1, 2), 11 if same else 12), draft, rule=rule,
                     uniform_samples=coins(TOP, TOP, TOP, TOP))  # fmt: skip
    assert out.output_token_ids.tolist() == [[11, 11, 11] if same else [11, -1, -1]]
    assert out.tv_distance.tolist() == [[0.0 if same else 1.0] * 2]
    assert out.accept_probability.tolist() == [[1.0 if same else 0.0] * 2]
    assert int(out.status[0]) == 0


@both_rules
def test_05_the_last_token_is_masked_and_the_coin_at_its_largest(ops: Ops, rule: str) -> None:
    """Catches `searchsorted` past the mass: the last id that has some is drawn, for recovered and bonus tokens."""
    for vocab_size in (5, 1024, 1025, 3000):
        target = torch.zeros(1, 2, vocab_size)
        target[..., -1] = -INF
        bonus = ops.verify(target, torch.tensor([[-1]]), rule=rule, uniform_samples=coins(TOP, TOP, TOP))
        recovered = ops.verify(target, torch.tensor([[0]]), rule=rule, uniform_samples=coins(TOP, TOP, TOP))
        assert int(bonus.output_token_ids[0, 0]) == int(recovered.output_token_ids[0, 0]) == vocab_size - 2


@both_rules
@pytest.mark.parametrize("poison", [NAN, INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_07_a_broken_target_row(ops: Ops, rule: str, poison: float, dtype: torch.dtype) -> None:
    """NaN or +inf in some or all places, V no multiple of a tile: ids stay in range, the rest of the law stands."""
    target = torch.randn(4, 3, 1500, generator=torch.Generator().manual_seed(7)).to(dtype)
    clean = target.clone()
    target[0, :, ::2], clean[0, :, ::2] = poison, -INF
    target[1], clean[1] = poison, -INF
    target[2, 1] = poison
    clean[2, 1] = -INF
    ids = torch.tensor([[1, 3], [5, 5], [target[2, 0].argmax(), 9], [2, 2]])
    options = {"rule": rule, "uniform_samples": torch.full((4, 4), 0.25)}
    out, want = ops.verify(target, ids, **options), ops.verify(clean, ids, **options)
    assert torch.equal(out.output_token_ids, want.output_token_ids)
    assert out.status.tolist() == [1, 1, 1, 0]
    assert out.output_token_ids[1].tolist() == [0, -1, -1]  # no support: id 0, never V - 1
    assert torch.isfinite(out.tv_distance).all()


@both_rules
@pytest.mark.parametrize("poison", ["nan", "one nan", "inf", "empty"])
def test_08_a_broken_draft_row_ends_the_block(ops: Ops, rule: str, poison: str) -> None:
    """Catches a NaN that reaches the residual: as if the block were shorter, and a bit says so."""
    case = make_case(80, batch_size=ops.num_rows, rule=rule)
    options = dict(
        case.options, draft_temperature=torch.ones(ops.num_rows), num_draft_tokens=torch.full((ops.num_rows,), 4)
    )
    target, ids, draft = case.target_logits, case.draft_token_ids.clamp(0, 1499), case.draft_logits.clone()
    want = ops.verify(target, ids, draft, **dict(options, num_draft_tokens=torch.full((ops.num_rows,), 2)))
    if poison == "one nan":
        draft[:, 2, 1400] = NAN
    else:
        draft[:, 2] = {"nan": NAN, "inf": INF, "empty": -INF}[poison]
    out = ops.verify(target, ids, draft, **options)
    assert_same(out, want._replace(status=torch.full_like(want.status, Status.BAD_LOGITS)))


@both_rules
def test_09_the_last_tile_is_masked(ops: Ops, rule: str) -> None:
    """V = 8193 and nothing in the last tile: catches exp(-inf - -inf) in a tile without support."""
    target = torch.zeros(1, 2, 8193)
    target[..., 8192] = -INF
    draft = target[:, :1].clone()
    draft[..., :4096] = -INF
    out = ops.verify(target, torch.tensor([[5000]]), draft, rule=rule, uniform_samples=coins(TOP, TOP, TOP))
    assert out.output_token_ids.tolist() == [[4095, -1]]  # the residual is uniform over the first half
    assert float(out.tv_distance[0, 0]) == pytest.approx(0.5, abs=1e-6)


@both_rules
def test_10_greedy_ties(ops: Ops, rule: str) -> None:
    """Catches an argmax that depends on tiles, lanes or the batch: the lowest index, alone and batched."""
    target = torch.randn(16, 2, 9000, generator=torch.Generator().manual_seed(1)).clamp(max=2.0)
    first = target.argmax(-1)
    first_by_hand = [[int(np.flatnonzero(row == row.max())[0]) for row in rows] for rows in target.numpy()]
    assert first.tolist() == first_by_hand
    second = [int(np.flatnonzero(row == row.max())[1]) for row in target[:, 0].numpy()]
    right = ops.verify(target, first[:, :1], temperature=0.0, rule=rule)
    tied = ops.verify(target, torch.tensor(second).unsqueeze(1), temperature=torch.zeros(16), rule=rule,
                      seed=torch.arange(16))  # fmt: skip
    assert torch.equal(right.output_token_ids, first)
    assert torch.equal(tied.output_token_ids[:, 0], first[:, 0])
    assert (tied.num_accepted_tokens == 0).all()
    alone = ops.verify(target[3:4], first[3:4, :1], temperature=0.0, rule=rule)
    assert torch.equal(alone.output_token_ids, right.output_token_ids[3:4])


@both_rules
def test_11_a_draft_that_neither_law_allows(ops: Ops, rule: str) -> None:
    """p(x) = q(x) = 0: catches 0 / 0 and -inf - -inf; rejected, drawn from the residual."""
    target, draft = torch.tensor([[[-INF, 0.0, 1.0]] * 2]), torch.tensor([[[-INF, 1.0, 0.0]]])
    for u in (0.0, TOP):
        out = ops.verify(target, torch.tensor([[0]]), draft, rule=rule, uniform_samples=coins(u, 0.0, 0.0))
        assert out.output_token_ids.tolist() == [[2, -1]]
        assert out.accept_probability.tolist() == [[0.0]]
        assert int(out.status[0]) == 0


@both_rules
@pytest.mark.parametrize("kind", ["point", "dense"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("negative", [-1, -(2**31)])
def test_16_a_negative_id_ends_the_block(ops: Ops, rule: str, kind: str, temperature: float, negative: int) -> None:
    """At every position: catches a gather at -1 (the last token), or a padding id that is emitted."""
    case = make_case(160, batch_size=ops.num_rows, rule=rule, kind=kind)
    options = dict(case.options, temperature=torch.full((ops.num_rows,), temperature), num_draft_tokens=None)
    for end in ops.some(range(4)):
        ids = case.draft_token_ids.clamp(0, 1499).clone()
        want = ops.verify(
            case.target_logits,
            ids,
            case.draft_logits,
            **dict(options, num_draft_tokens=torch.full((ops.num_rows,), end)),
        )
        ids[:, end] = negative
        out = ops.verify(case.target_logits, ids, case.draft_logits, **options)
        assert_same(out, want)
        assert (out.output_token_ids >= -1).all()


@both_rules
def test_17_rows_without_drafts_beside_others(ops: Ops, rule: str) -> None:
    """K_b = 0: one token from p_0, TV 1, nothing expected; rows of the result keep their places, packed and padded."""
    case = make_case(170, batch_size=ops.num_rows, rule=rule)
    case.options["num_draft_tokens"][::3] = 0
    out = ops.verify(*case.arguments, **case.options)
    assert (out.output_token_ids[::3, 0] >= 0).all()
    assert (out.output_token_ids[::3, 1:] == -1).all()
    assert (out.tv_distance[::3] == 1).all()
    assert not out.expected_num_accepted[::3].any()
    (target, ids, draft), options = case.packed()
    packed = ops.verify(target, ids, draft, **options)
    assert torch.equal(packed.output_token_ids[::3], out.output_token_ids[::3])


@both_rules
def test_18_a_view_with_a_huge_row_stride(ops: Ops, rule: str) -> None:
    """Element offsets beyond 2^31: catches 32-bit addresses. The memory between the rows is never touched."""
    case = make_case(180, rule=rule, dtypes=(torch.bfloat16, torch.bfloat16), batch_size=2, vocab_size=1000)
    stride = 2**31 + 4096
    storage = torch.empty(stride + 5 * 1000, dtype=torch.bfloat16, device=ops.device)
    target = storage.as_strided((2, 5, 1000), (stride, 1000, 1))
    target.copy_(case.target_logits)
    have = ops.verify(target, case.draft_token_ids, case.draft_logits, **case.options)
    assert_same(have, ops.verify(*case.arguments, **case.options))


@both_rules
@pytest.mark.parametrize("vocab_size", [1, 2, 33, 1023, 1024, 1025, 8191, 8192, 8193, 32001, 50257, 151936])
def test_21_vocabulary_sizes(ops: Ops, ties: dict[str, int], rule: str, vocab_size: int) -> None:
    """Catches a wrong last tile, and sums whose error grows with V."""
    rows = 1 if ops.is_interpreted else 6 if vocab_size < 5000 else 3
    case = make_case(vocab_size, rule=rule, batch_size=rows, num_draft_tokens=2, vocab_size=vocab_size,
                     dtypes=(torch.bfloat16, torch.bfloat16))  # fmt: skip
    assert_agrees(ops.verify(*case.arguments, **case.options), case.expected(), ties)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-45, 1e-37, 1e-8, 1e-3, 1e8, 3e38])
def test_extreme_logits_and_temperatures(ops: Ops, dtype: torch.dtype, temperature: float) -> None:
    """Catches overflow before the maximum is subtracted, 0 * inf, and an underflowing temperature that turns into 1."""
    largest = torch.finfo(dtype).max
    target = torch.randn(1, 3, 50, generator=torch.Generator().manual_seed(3)).to(dtype)
    target[0, 0, :4] = torch.tensor([largest, -largest, largest / 2, -INF]).to(dtype)
    target[0, 1, 3] = -INF
    ids = torch.tensor([[0, int(target[0, 1].argmax())]])
    p, _ = oracles.law(target[0, 2].double().numpy(), float(torch.tensor(temperature)))
    token, is_tie = oracles.draw(np.exp(p), np.exp(p), np.array([0.5, 0.49]))
    assert not is_tie
    for warmth in (temperature, torch.tensor([temperature])):
        out = ops.verify(
            target, ids, target[:, :2].clone(), temperature=warmth, uniform_samples=coins(TOP, TOP, 0.5, 0.49)
        )
        assert out.output_token_ids.tolist() == [[*ids[0].tolist(), token]]
        assert torch.isfinite(out.tv_distance).all()
        assert int(out.status[0]) == 0


@both_rules
@pytest.mark.parametrize("value", [NAN, -1.0, INF])
def test_a_temperature_that_is_none(ops: Ops, rule: str, value: float) -> None:
    """A device value cannot raise: catches NaN tokens. It counts as 0 and sets a bit; a draft row is a point mass."""
    case = make_case(210, batch_size=ops.num_rows, rule=rule, is_injected=False)
    options = dict(
        case.options, num_draft_tokens=torch.full((ops.num_rows,), 4), seed=torch.arange(ops.num_rows), offset=3
    )
    ids = case.draft_token_ids.clamp(0, 1499)
    for name in ("temperature", "draft_temperature"):
        zero, odd = (dict(options, **{name: torch.full((ops.num_rows,), warmth)}) for warmth in (0.0, value))
        want = ops.verify(case.target_logits, ids, case.draft_logits, **zero)
        have = ops.verify(case.target_logits, ids, case.draft_logits, **odd)
        assert_same(have, want._replace(status=want.status | Status.BAD_LOGITS))


@both_rules
def test_ids_and_nan_past_the_end_are_not_read(ops: Ops, rule: str) -> None:
    """Catches a status, token or TV that depends on what lies behind the end of a block."""
    case = make_case(220, batch_size=ops.num_rows, rule=rule)
    options = dict(
        case.options, num_draft_tokens=torch.full((ops.num_rows,), 2), draft_temperature=torch.ones(ops.num_rows)
    )
    ids = case.draft_token_ids.clamp(0, 1499).clone()
    want = ops.verify(case.target_logits, ids, case.draft_logits, **options)
    target, draft = case.target_logits.clone(), case.draft_logits.clone()
    target[:, 3:], draft[:, 2:] = NAN, NAN
    ids[:, 2], ids[:, 3] = 2**31 - 1, -7
    assert_same(ops.verify(target, ids, draft, **options), want)
    assert not want.status.any()
    assert math.isfinite(float(want.tv_distance.sum()))


def test_20_drafts_beyond_the_target_vocabulary(ops: Ops) -> None:
    """V_t > V_d with mass above V_d is never cut off; an id of V_t or more ends the block and sets its bit."""
    target = torch.zeros(1, 3, 6)
    target[..., 5] = 9.0
    for options in ({}, {"draft_to_target": torch.tensor([0, 1, 2])}):
        out = ops.verify(
            target, torch.tensor([[0, 1]]), torch.zeros(1, 2, 3), **options, uniform_samples=coins(TOP, TOP, 0.9, 0.9)
        )
        assert out.output_token_ids.tolist() == [[5, -1, -1]]
        assert float(out.tv_distance[0, 0]) == pytest.approx(1 - 3 / (5 + math.exp(9)), abs=1e-6)
    for rule in RULES:
        for large in (6, 7, 2**31 - 1):
            out = ops.verify(target, torch.tensor([[5, large]]), rule=rule, uniform_samples=coins(0.1, 0.0, 0.5, 0.5))
            assert out.output_token_ids.tolist() == [[5, 5, -1]]
            assert int(out.status[0]) == Status.BAD_TOKEN
            assert float(out.tv_distance[0, 1]) == 1.0


@both_rules
def test_27_id_and_logit_dtypes(ops: Ops, rule: str) -> None:
    """Catches a cast of ids or logits to the dtype of another input."""
    case = make_case(270, batch_size=ops.num_rows, rule=rule, dtypes=(torch.bfloat16, torch.bfloat16))
    target, ids, draft = case.target_logits, case.draft_token_ids, case.draft_logits
    want = ops.verify(target, ids.long(), draft, **case.options)
    for left, right in ((target, draft.float()), (target.float(), draft), (target.float(), draft.float())):
        have = ops.verify(left, ids.int(), right, **case.options)
        assert torch.equal(have.output_token_ids, want.output_token_ids)
        torch.testing.assert_close(have.tv_distance, want.tv_distance, rtol=0, atol=1e-6)


def test_zero_residual_is_drawn_from_the_target(ops: Ops) -> None:
    """Rejected although the residual is empty in fp32: catches V - 1 or uninitialised memory, and the bit is set."""
    target, draft = torch.full((1, 2, 1030), -INF), torch.full((1, 1, 1030), -INF)
    target[..., 7] = draft[..., 7] = 0.0
    draft[..., 1029] = -40.0  # q(7) rounds to 1
    out = ops.verify(target, torch.tensor([[1029]]), draft, uniform_samples=coins(0.5, TOP, TOP))
    assert out.output_token_ids.tolist() == [[7, -1]]
    assert int(out.status[0]) == Status.ZERO_RESIDUAL


@both_rules
def test_a_residual_of_subnormal_mass(ops: Ops, rule: str) -> None:
    """u * total rounds to total: catches V - 1 where no cumulative mass is above; a device that flushes it draws p."""
    target, draft = torch.full((1, 2, 40), -INF), torch.full((1, 1, 40), -INF)
    target[..., 3] = draft[..., 3] = 0.0
    target[..., 5], draft[..., 7] = -102.5, -102.5
    out = ops.verify(target, torch.tensor([[7]]), draft, rule=rule, uniform_samples=coins(0.5, TOP, TOP))
    assert (int(out.output_token_ids[0, 0]), int(out.status[0])) in ((5, 0), (3, Status.ZERO_RESIDUAL))


@both_rules
def test_point_mass_rows_do_not_read_their_logits(ops: Ops, rule: str) -> None:
    """Draft temperature 0 in some rows: catches a NaN in logits that do not count, which would end their blocks."""
    case = make_case(230, batch_size=ops.num_rows, rule=rule)
    want = ops.verify(*case.arguments, **case.options)
    is_point = case.options["draft_temperature"] == 0
    assert is_point.any()
    draft = case.draft_logits.clone()
    draft[is_point] = NAN
    assert_same(ops.verify(case.target_logits, case.draft_token_ids, draft, **case.options), want)
    everywhere = dict(case.options, draft_temperature=0.0)
    want = ops.verify(case.target_logits, case.draft_token_ids, None, **everywhere)
    nothing = torch.full_like(draft, NAN)
    assert_same(ops.verify(case.target_logits, case.draft_token_ids, nothing, **everywhere), want)


@both_rules
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_but_minus_infinity(ops: Ops, rule: str, temperature: float) -> None:
    """Catches -inf - -inf in the maximum: the target's law is the point mass at 0, and a bit says so."""
    target, draft = torch.full((1, 3, 1500), -INF), torch.zeros(1, 2, 1500)
    for ids, want in (([1, 2], [0, -1, -1]), ([0, 0], [0, 0, 0])):
        out = ops.verify(target, torch.tensor([ids]), draft, temperature=temperature, draft_temperature=1.0, rule=rule,
                         uniform_samples=coins(TOP, TOP, TOP, TOP))  # fmt: skip
        assert out.output_token_ids.tolist() == [want]
        assert int(out.status[0]) == Status.BAD_LOGITS
        assert float(out.tv_distance[0, 0]) == pytest.approx(1 - 1 / 1500, abs=1e-6)
