"""`sample` and `logit_cutoff`: the law of the one, the kept sets of the other."""

import math

import numpy as np
import oracles
import pytest
import torch
from op_runner import Ops
from scipy.stats import chi2
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

ERROR_RATE = 1e-9
TRIALS = 200_000
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
INF, NAN = float("inf"), float("nan")
TOP = 1 - 2.0**-24


def noise(*size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(*size, generator=torch.Generator().manual_seed(seed))


# sample


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("vocab_size", [1, 2, 1023, 1024, 1025, 5000])
def test_sample_agrees_with_the_oracle(ops: Ops, ties: dict[str, int], vocab_size: int, dtype: torch.dtype) -> None:
    """Catches another tile size, another order of the two coins, or a cutoff on scaled instead of raw logits."""
    rng = np.random.default_rng(vocab_size)
    logits = noise(60, vocab_size, seed=1).to(dtype)
    temperature = torch.tensor(rng.choice([0.0, 0.5, 1.0, 2.0], 60), dtype=torch.float32)
    cutoff = logits.float().quantile(0.7, -1)
    coins = torch.tensor(rng.random((60, 2)), dtype=torch.float32).clamp(max=TOP)
    coins[:3], coins[3:6] = 0.0, TOP
    out = ops.sample(logits, temperature=temperature, cutoff=cutoff, uniform_samples=coins)
    for row in range(60):
        log_prob, _ = oracles.law(logits[row].double().numpy(), float(temperature[row]), float(cutoff[row]))
        token, is_tie = oracles.draw(np.exp(log_prob), np.exp(log_prob), coins[row].double().numpy())
        ties["rows"] += 1
        ties["ties"] += is_tie
        assert is_tie or int(out[row]) == token, row


@pytest.mark.parametrize("vocab_size", [8, 1100])
@pytest.mark.parametrize(("temperature", "is_right"), [(0.7, True), (0.8, False)], ids=["right", "control"])
def test_law_of_sample(fast_ops: Ops, vocab_size: int, temperature: float, is_right: bool) -> None:
    """Chi-square at 1e-9 over one or two tiles; a temperature that is off by 0.1 must show."""
    logits = torch.full((vocab_size,), -INF)
    places = torch.linspace(0, vocab_size - 1, 8).long()
    logits[places] = noise(8, seed=2, scale=1.0)
    rounds = 1 if vocab_size < 100 else 10  # few rows at a time where a row is long
    seeds = torch.arange(TRIALS // rounds)
    many = logits.expand(len(seeds), -1)
    out = torch.cat(
        [fast_ops.sample(many, temperature=temperature, seed=seeds, offset=i) for i in range(min(rounds, 2))]
    )
    counts = np.bincount(out.numpy(), minlength=vocab_size)
    wanted = np.exp(oracles.law(logits[places].double().numpy(), 0.7)[0]) * len(out)
    assert counts.sum() == counts[places.numpy()].sum()
    statistic = float(((counts[places.numpy()] - wanted) ** 2 / wanted).sum())
    assert (statistic < chi2.isf(ERROR_RATE, 7)) == is_right


def test_greedy_ties_take_the_lowest_id(ops: Ops) -> None:
    """Edge 10: catches an argmax over tiles that takes a later maximum, alone or in a batch."""
    logits = noise(20, 5000, seed=3).clamp(max=1.0)
    lowest = torch.tensor([int(np.flatnonzero(row == row.max())[0]) for row in logits.numpy()])
    assert torch.equal(ops.sample(logits, temperature=0.0), lowest)
    assert torch.equal(ops.sample(logits, temperature=torch.zeros(20), seed=torch.arange(20)), lowest)
    assert torch.equal(ops.sample(logits[7:8], temperature=0.0), lowest[7:8])


def test_sample_of_broken_rows(ops: Ops) -> None:
    """Catches V - 1 or a NaN's index: NaN and +inf count as -inf, and a row without support gives 0."""
    logits = torch.zeros(5, 1030)
    logits[0], logits[1] = NAN, -INF
    logits[2, 5:], logits[3, :1000], logits[4, ::2] = NAN, INF, NAN
    for temperature in (0.0, 1.0):
        out = ops.sample(logits, temperature=temperature, uniform_samples=torch.full((5, 2), TOP))
        assert out.tolist() == ([0, 0, 0, 1000, 1] if temperature == 0 else [0, 0, 4, 1029, 1029])


def test_sample_options(ops: Ops) -> None:
    """Catches a row that depends on its neighbours, an `out` that is not filled, views, and B = 0."""
    logits = noise(30, 1500, seed=5)
    temperature, seed = torch.linspace(0, 2, 30), torch.arange(30)
    want = ops.sample(logits, temperature=temperature, seed=seed, offset=torch.tensor([2]), position=3)
    for row in (0, 11, 29):
        alone = ops.sample(logits[row : row + 1], temperature=float(temperature[row]), seed=row, offset=2, position=3)
        assert int(alone) == int(want[row])
    out = ops.there(torch.full((30,), 77))
    wide = ops.there(torch.full((30, 1600), 99.0))
    wide[:, 50:1550] = ops.there(logits)
    ops.sample(wide[:, 50:1550], temperature=temperature, seed=seed, offset=torch.full((30,), 2), position=3, out=out)
    assert torch.equal(out.cpu(), want)
    assert ops.sample(logits[:0], temperature=1.0, seed=seed[:0]).shape == (0,)


def test_sample_at_positions_that_a_tensor_tells(ops: Ops) -> None:
    """As a captured graph needs them. Catches a position of another row, and one that is not read at all."""
    logits, seed = noise(6, 1500, seed=6), torch.arange(6)
    position = torch.tensor([0, 1, 7, 7, 1000, 2**32 - 1])
    want = [
        int(ops.sample(logits[row : row + 1], temperature=1.0, seed=row, offset=4, position=int(position[row])))
        for row in range(6)
    ]
    assert ops.sample(logits, temperature=1.0, seed=seed, offset=4, position=position).tolist() == want
    for place in (0, 7):
        same = ops.sample(logits, temperature=1.0, seed=seed, offset=4, position=place)
        one = ops.sample(logits, temperature=1.0, seed=seed, offset=4, position=torch.tensor([place]))
        assert torch.equal(one, same)
        assert not torch.equal(one, ops.sample(logits, temperature=1.0, seed=seed, offset=4, position=place + 1))


# logit_cutoff


def naive_cutoff(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> tuple[float, bool]:
    """The smallest kept logit, one token after the other, and whether top-p or min-p is within rounding of another."""
    x = np.where(np.isnan(logits) | (logits == INF), -INF, logits)
    kept = sorted(x[x > -INF], reverse=True)
    if not kept:
        return -INF, False
    if temperature == 0:
        return float(kept[0]), False
    if 1 <= top_k < len(kept):
        kept = [value for value in kept if value >= kept[top_k - 1]]
    weights = np.exp((np.array(kept) - kept[0]) / temperature)
    before = (np.cumsum(weights) - weights) / weights.sum()
    near_top_p = (np.abs(before - top_p) < 1e-6) & (before > 0) & (top_p < 1)
    near_min_p = (np.abs(weights - min_p) < 1e-6 * min_p) & (weights < 1)
    is_tie = bool((near_top_p | near_min_p).any())
    chosen = [value for value, mass in zip(kept, before, strict=True) if mass < top_p or top_p >= 1]
    chosen = [value for value in chosen or kept[:1] if math.exp((value - kept[0]) / temperature) >= min_p]
    return float(min(chosen or kept[:1])), is_tie


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("vocab_size", [1, 2, 50, 3000])
def test_cutoff_agrees_with_the_naive_one(ops: Ops, vocab_size: int, dtype: torch.dtype) -> None:
    """Catches the wrong order of the filters, an off-by-one at the border, and per-row parameters that get mixed."""
    rng = np.random.default_rng(vocab_size)
    rows, num_ties = 5 * ops.num_rows, 0
    logits = noise(rows, vocab_size, seed=6).to(dtype)  # bf16 gives many equal logits
    temperature = torch.tensor(rng.choice([0.0, 0.5, 1.0, 2.0], rows), dtype=torch.float32)
    top_k = torch.tensor(rng.choice([-1, 0, 1, 2, 10, vocab_size, 2**31], rows))
    top_p = torch.tensor(rng.choice([0.0, 0.1, 0.7, 0.95, 1.0], rows), dtype=torch.float32)
    min_p = torch.tensor(rng.choice([0.0, 0.02, 0.3, 1.0], rows), dtype=torch.float32)
    out = ops.logit_cutoff(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert out.dtype == torch.float32
    for row in range(rows):
        settings = (float(temperature[row]), int(top_k[row]), float(top_p[row]), float(min_p[row]))
        want, is_tie = naive_cutoff(logits[row].double().numpy(), *settings)
        num_ties += is_tie
        assert is_tie or float(out[row]) == want, (row, settings)
    assert num_ties <= max(rows // 20, 1)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(7, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1), (20, 0.9, 0.05), (3, 0.05, 0.5)]
)
def test_cutoff_keeps_what_transformers_keeps(
    ops: Ops, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Catches a filter that is right by itself and differs from what users of transformers get."""
    logits = noise(2 * ops.num_rows, 400, seed=7)
    scores = logits.double() / temperature
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    out = ops.logit_cutoff(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert torch.equal(logits >= out.unsqueeze(-1), scores > -INF)


def test_ties_at_the_cutoff_are_kept(ops: Ops) -> None:
    """Catches a cutoff that separates equal logits: which of them stays would depend on the sort."""
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    assert float(ops.logit_cutoff(logits, top_k=2)) == 2.0
    assert float(ops.logit_cutoff(logits, top_p=0.6)) == 2.0
    assert float(ops.logit_cutoff(torch.zeros(1, 9), top_p=0.0)) == 0.0


def test_cutoff_of_broken_rows(ops: Ops) -> None:
    """Catches a NaN that becomes the cutoff, and would mask the whole row."""
    logits = noise(4, 100, seed=8)
    clean = logits.clone()
    logits[0, ::3], clean[0, ::3] = NAN, -INF
    logits[1, ::3], clean[1, ::3] = INF, -INF
    logits[2], logits[3] = NAN, -INF
    for options in ({"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.2}, {"temperature": 0.0}, {}):
        out = ops.logit_cutoff(logits, **options)
        assert torch.equal(out[:2], ops.logit_cutoff(clean, **options)[:2])
        assert torch.isfinite(out[:2]).all()
        assert (out[2:] == -INF).all()


def test_cutoff_shapes(ops: Ops) -> None:
    """Catches parameters that are flattened in another order than the logits."""
    logits, top_k = noise(2, 3, 40, seed=9), torch.tensor([[1, 2, 3], [4, 5, 6]])
    out = ops.logit_cutoff(logits, top_k=top_k)
    assert out.shape == (2, 3)
    kept = (logits >= out.unsqueeze(-1)).sum(-1)
    assert torch.equal(kept, top_k)
    assert ops.logit_cutoff(logits[0, 0], top_k=2).shape == ()
    assert ops.logit_cutoff(logits[:0]).shape == (0, 3)
    strided = torch.full((2, 3, 50), 99.0)
    strided[..., 4:44] = logits
    assert torch.equal(ops.logit_cutoff(ops.there(strided)[..., 4:44], top_k=top_k), out)


@pytest.mark.parametrize("temperature", [1e-45, 1e-8, 1e8])
def test_cutoff_at_extremes(ops: Ops, temperature: float) -> None:
    """Catches overflow: logits of 1e38, temperatures that underflow, and a cutoff that `sample` must still obey."""
    logits = torch.tensor([[3e38, -3e38, 1e38, -INF, 0.0]])
    out = ops.logit_cutoff(logits, temperature=temperature, top_p=0.5, min_p=0.1)
    assert float(out) == float(logits[0, 0]) or temperature == 1e8
    token = ops.sample(logits, temperature=temperature, cutoff=out, uniform_samples=torch.full((1, 2), TOP))
    assert float(logits[0, int(token)]) >= float(out)
