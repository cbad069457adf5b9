"""Statistics of the emitted tokens. Each test errs with probability 1e-9, and has a negative control that must fail.

A trial is a row: the drafter draws its block with `sample` (domain 2), `verify` decides with coins of the same seed
(domains 0 and 1), and plain decoding, simulated in numpy, continues to a fixed length.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
from op_runner import Ops
from scipy.stats import chi2, norm
from torch import Tensor
from toy_laws import ToyModel, blocks

from metasd_kernels import VerifyOutput
from metasd_kernels.rng import verify_coins

ERROR_RATE = 1e-9
SIGMAS = float(norm.isf(ERROR_RATE / 2))
TRIALS = 200_000
RULES = ("token", "block")
MODELS = {  # two draft positions, three emitted tokens
    "T 1, 1": (ToyModel(4, 3, seed=1), ToyModel(4, 2, seed=2)),
    "T 0.6, 1.4": (ToyModel(4, 3, seed=3, temperature=0.6), ToyModel(4, 2, seed=3, temperature=1.4)),
    "top-k 3, 2": (ToyModel(5, 3, seed=5, top_k=3), ToyModel(5, 2, seed=6, temperature=0.7, top_k=2)),
    "greedy drafter": (ToyModel(4, 3, seed=7), ToyModel(4, 2, seed=8, temperature=0.0)),
}
Coins = Callable[[torch.Generator], tuple[list[Tensor], Tensor]]
both_rules = pytest.mark.parametrize("rule", RULES)
all_models = pytest.mark.parametrize(("target", "drafter"), MODELS.values(), ids=MODELS)


def chi_square(counts: np.ndarray, probability: np.ndarray) -> tuple[float, float]:
    """Pearson's statistic and its limit. Cells that expect fewer than 10 are one; impossible ones must be empty."""
    assert counts[probability == 0].sum() == 0
    wanted = probability * counts.sum()
    is_large = wanted >= 10
    have = np.append(counts[is_large], counts[~is_large].sum())
    wanted = np.append(wanted[is_large], wanted[~is_large].sum())
    have, wanted = have[wanted > 0], wanted[wanted > 0]
    return float(((have - wanted) ** 2 / wanted).sum()), float(chi2.isf(ERROR_RATE, len(have) - 1))


def play(
    ops: Ops, target: ToyModel, drafter: ToyModel, rule: str, *, believed: ToyModel | None = None,
    coins: Coins | None = None, seed: int = 0,
) -> VerifyOutput:  # fmt: skip
    """One round of two drafts a row. `coins` replaces Philox; `believed` is the drafter that `verify` hears of."""
    believed = believed or drafter
    seeds = torch.arange(TRIALS) + seed * TRIALS
    draft_coins, decisions = coins(torch.Generator().manual_seed(seed)) if coins else ([None, None], None)
    index, ids, target_rows, draft_rows, cutoffs = torch.zeros(TRIALS, dtype=torch.int64), [], [], [], []
    for k in range(3):
        target_rows.append(target.tables[k][index])
        cutoffs.append(target.cutoffs(k)[index])
        if k == 2:
            break
        draft_rows.append(drafter.tables[k][index])
        ids.append(
            ops.sample(
                draft_rows[k], temperature=drafter.temperature, cutoff=drafter.cutoffs(k)[index], seed=seeds, offset=9,
                position=k, uniform_samples=draft_coins[k],
            )
        )  # fmt: skip
        index = index * target.vocab_size + ids[k]
    return ops.verify(
        torch.stack(target_rows, 1), torch.stack(ids, 1), torch.stack(draft_rows, 1), rule=rule, seed=seeds, offset=9,
        temperature=target.temperature, draft_temperature=believed.temperature, uniform_samples=decisions,
        target_cutoff=torch.stack(cutoffs, 1),
        draft_cutoff=torch.stack([believed.cutoffs(0)[ids[0] * 0], believed.cutoffs(1)[ids[0]]], 1),
    )  # fmt: skip


def fit(out: VerifyOutput, target: ToyModel, seed: int = 0) -> tuple[float, float]:
    """Chi-square of the first three tokens: those emitted, continued by plain decoding with coins of its own."""
    tokens = out.output_token_ids.numpy().copy()
    rng = np.random.default_rng([seed, 99])
    index = np.zeros(len(tokens), dtype=np.int64)
    for k in range(3):
        laws = np.exp([target.law(prefix) for prefix in np.ndindex((target.vocab_size,) * k)])
        drawn = (rng.random((len(tokens), 1)) > np.cumsum(laws, -1)[index]).sum(-1)
        tokens[:, k] = np.where(tokens[:, k] < 0, np.minimum(drawn, target.vocab_size - 1), tokens[:, k])
        index = index * target.vocab_size + tokens[:, k]
    joint = target.joint_law().reshape(-1)
    return chi_square(np.bincount(index, minlength=joint.size), joint)


@both_rules
@all_models
def test_output_law(fast_ops: Ops, target: ToyModel, drafter: ToyModel, rule: str) -> None:
    """Catches a bias of the emitted tokens or of what follows them."""
    statistic, limit = fit(play(fast_ops, target, drafter, rule), target)
    assert statistic < limit


@both_rules
def test_control_another_draft_temperature(fast_ops: Ops, rule: str) -> None:
    """Edge 22 turned round: a drafter that sampled at another temperature than `verify` hears of must show."""
    target, drafter = MODELS["T 1, 1"]
    statistic, limit = fit(play(fast_ops, target, drafter, rule, believed=replace(drafter, temperature=0.8)), target)
    assert statistic > limit


def fresh_coins(generator: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """Every coin on its own."""
    return [torch.rand(TRIALS, 2, generator=generator) for _ in range(2)], torch.rand(TRIALS, 4, generator=generator)


def accept_coin_in_draw(generator: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """The second accept coin chooses the recovered or bonus token, too."""
    draft, own = fresh_coins(generator)
    return draft, own[:, [0, 1, 2, 1]]


def draft_coin_in_test(generator: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """The coin that drew the draft accepts it, too."""
    draft, own = fresh_coins(generator)
    return draft, torch.cat([draft[0][:, 1:], draft[1][:, 1:], own[:, 2:]], 1)


@both_rules
@pytest.mark.parametrize(
    ("coins", "is_right"), [(fresh_coins, True), (accept_coin_in_draw, False), (draft_coin_in_test, False)]
)
def test_14_coins_are_used_once(fast_ops: Ops, rule: str, coins: Coins, is_right: bool) -> None:
    """Edge 14: injected coins give the law if each decides one thing; reuse must show."""
    target, drafter = MODELS["T 0.6, 1.4"]
    statistic, limit = fit(play(fast_ops, target, drafter, rule, coins=coins), target)
    assert (statistic < limit) == is_right


@both_rules
def test_control_recovered_from_the_target(fast_ops: Ops, rule: str) -> None:
    """Recovered tokens drawn from p, not from the residual, must show."""
    target, drafter = MODELS["T 1, 1"]
    out = play(fast_ops, target, drafter, rule)
    tokens, count = out.output_token_ids.clone(), out.num_accepted_tokens.long()
    is_recovered = count < 2
    index = torch.where(count == 1, tokens[:, 0], 0)
    rows = torch.where((count == 0).unsqueeze(-1), target.tables[0][index * 0], target.tables[1][index])
    redrawn = fast_ops.sample(rows, temperature=1.0, seed=torch.arange(TRIALS), offset=1)
    replaced = tokens.scatter(1, count.unsqueeze(-1), redrawn.unsqueeze(-1))
    statistic, limit = fit(
        out._replace(output_token_ids=torch.where(is_recovered.unsqueeze(-1), replaced, tokens)), target
    )
    assert statistic > limit


@both_rules
@pytest.mark.parametrize("shared", [False, True], ids=["own domain", "control: domain 0"])
def test_13_opposite_laws(fast_ops: Ops, rule: str, shared: bool) -> None:
    """Edge 13: V = 16, draft = -target. The drafter draws in domain 2; with coins of `verify` it must show."""
    target = 1.5 * torch.randn(16, generator=torch.Generator().manual_seed(4))
    seeds = torch.arange(TRIALS)
    draft = (-target).expand(TRIALS, 1, 16)
    own = None
    if shared:
        own = verify_coins(seeds, torch.zeros(1, dtype=torch.int64), 1)[:, [1, 0]]
    ids = fast_ops.sample(draft[:, 0], temperature=1.0, seed=seeds, uniform_samples=own)
    out = fast_ops.verify(target.expand(TRIALS, 2, 16), ids.unsqueeze(1), draft, rule=rule, seed=seeds)
    p = np.exp(oracles.law(target.double().numpy(), 1.0)[0])
    statistic, limit = chi_square(np.bincount(out.output_token_ids[:, 0].numpy(), minlength=16), p)
    assert (statistic > limit) == shared


def is_mean(values: np.ndarray, mean: float) -> bool:
    """Whether the mean is `mean` up to what chance allows once in 1e9 times."""
    return abs(float(values.mean()) - mean) <= SIGMAS * float(values.std()) / len(values) ** 0.5 + 1e-6


@both_rules
@all_models
def test_12_23_expectations(fast_ops: Ops, target: ToyModel, drafter: ToyModel, rule: str) -> None:
    """Edges 12 and 23: E[expected] = E[num accepted], both as enumerated; acceptance at 0 is 1 - TV; E[bd] likewise."""
    out = play(fast_ops, target, drafter, rule)
    mean = divergence = 0.0
    for ids, probability, p, q in blocks(target, drafter, 2):
        law = oracles.count_law(p, q, list(ids), rule)
        mean += probability * sum(n * share for n, share in enumerate(law))
        divergence += probability * sum(1 - float(oracles.residual(p[k], q[k]).sum()) for k in range(2)) / 2
    count = out.num_accepted_tokens.double().numpy()
    assert is_mean(count, mean)
    assert is_mean(out.expected_num_accepted.double().numpy(), mean)
    assert is_mean(count - out.expected_num_accepted.double().numpy(), 0.0)
    assert not is_mean(count, mean + 0.02)
    assert is_mean(out.block_divergence.double().numpy(), divergence)
    overlap = 1 - out.tv_distance[:, 0].double().numpy()
    if rule == "token":
        assert is_mean((count >= 1) - overlap, 0.0)
        assert not is_mean((count >= 1) - overlap, 0.02)


@all_models
def test_23_the_block_rule_is_not_below_the_token_rule(fast_ops: Ops, target: ToyModel, drafter: ToyModel) -> None:
    """Edge 23: catches a block rule that throws accepted drafts away."""
    token, block = (play(fast_ops, target, drafter, rule).num_accepted_tokens.double().numpy() for rule in RULES)
    noise = ((token.var() + block.var()) / TRIALS) ** 0.5
    assert block.mean() >= token.mean() - SIGMAS * noise
    assert block.mean() < token.mean() + 1  # the control of the control: neither count is trivial
