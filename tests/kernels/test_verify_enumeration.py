"""Output laws without sampling (edge 23): every block, every cell of the coins, at a small vocabulary.

The thresholds and inverse CDFs of the oracle cut the cube of coins into cells; the op is asked at both ends of each
cell, and its answers, weighted by the volume of the cells, must add up to the target's law.
"""

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import oracles
import pytest
import torch
from op_runner import Ops
from oracles import Vector
from toy_laws import Block, ToyModel, add_continued, blocks

RULES = ("token", "block")
EDGE = 2e-5  # distance to a cell's border: twice the tie band
TOP = 1 - 2.0**-24
MODELS = {
    "V3 K2": (ToyModel(3, 3, seed=1), ToyModel(3, 2, seed=2)),
    "V2 K3": (ToyModel(2, 4, seed=3, temperature=0.6), ToyModel(2, 3, seed=4, temperature=1.3)),
    "V4 K2, top-k": (ToyModel(4, 3, seed=5, top_k=3), ToyModel(4, 2, seed=6, temperature=0.8, top_k=2)),
    "V3 K2, close": (ToyModel(3, 3, seed=7), ToyModel(3, 2, seed=7, temperature=1.1)),
    "V3 K2, greedy target": (ToyModel(3, 3, seed=8, temperature=0.0), ToyModel(3, 2, seed=9)),
}


@pytest.fixture
def ops(fast_ops: Ops) -> Ops:
    """Thousands of blocks a law: too many for Triton's interpreter."""
    return fast_ops


both_rules = pytest.mark.parametrize("rule", RULES)
all_models = pytest.mark.parametrize(("target", "drafter"), MODELS.values(), ids=MODELS)


def thresholds(block: Block, rule: str) -> list[float]:
    ids, _, p, q = block
    if rule == "token":
        return oracles.accept_probabilities(p, q, list(ids))
    return [h for h, _, _ in oracles.block_thresholds(p, q, list(ids))]


def cell_points(borders: list[float]) -> list[tuple[float, float]]:
    """(coin, weight) near both ends of each interval between ascending borders."""
    points = []
    for low, high in pairwise(borders):
        if high - low > 4 * EDGE:
            points += [(low + EDGE, (high - low) / 2), (high - EDGE, (high - low) / 2)]
        elif high > low:
            points.append(((low + high) / 2, high - low))
    return points


def test_the_oracle_is_lossless() -> None:
    """The oracle itself, in closed form: emitted tokens, continued by p, have the law of p to 1e-12."""
    for (target, drafter), rule in product(MODELS.values(), RULES):
        joint = np.zeros((target.vocab_size,) * target.depth)
        for ids, probability, p, q in blocks(target, drafter, drafter.depth):
            for n, share in enumerate(oracles.count_law(p, q, list(ids), rule)):
                weights = oracles.final_weights(p, q, list(ids), rule, n)
                for token, weight in enumerate(weights):
                    if share > 0 and weight > 0:
                        emitted = (*ids[:n], token)
                        add_continued(joint, emitted, probability * share * weight / weights.sum(), target)
        np.testing.assert_allclose(joint, target.joint_law(), rtol=0, atol=1e-12)


def enumerated_law(
    ops: Ops, target: ToyModel, drafter: ToyModel, believed: ToyModel, rule: str
) -> tuple[Vector, float]:
    """The op's joint law of emitted and continued tokens, and its mean number of accepted tokens."""
    all_blocks, accept_coins, weights = [], [], []
    for block in blocks(target, drafter, drafter.depth):
        cells = [cell_points([0.0, max(min(t, 1.0), 0.0), 1.0]) for t in thresholds(block, rule)]
        for chosen in product(*cells):
            all_blocks.append(block)
            accept_coins.append([u for u, _ in chosen])
            weights.append(block[1] * math.prod(weight for _, weight in chosen))
    tokens, num_accepted = ask(ops, target, believed, rule, all_blocks, accept_coins, [0.5] * len(weights))

    rows, final_coins, final_weights = [], [], []
    for row, ((ids, _, p, q), n) in enumerate(zip(all_blocks, num_accepted, strict=True)):
        share = oracles.final_weights(p, q, list(ids), rule, n)
        share = share / share.sum() if share.sum() > 0 else np.exp(p[n])
        for u, weight in cell_points([0.0, *np.cumsum(share)]):
            rows.append(row)
            final_coins.append(min(u, TOP))
            final_weights.append(weights[row] * weight)
    tokens, again = ask(
        ops, target, believed, rule, [all_blocks[row] for row in rows], [accept_coins[row] for row in rows], final_coins
    )
    assert again == [num_accepted[row] for row in rows]
    joint = np.zeros((target.vocab_size,) * target.depth)
    for emitted, weight in zip(tokens, final_weights, strict=True):
        add_continued(joint, tuple(token for token in emitted if token >= 0), weight, target)
    return joint, float(np.dot(num_accepted, weights))


def ask(
    ops: Ops,
    target: ToyModel,
    drafter: ToyModel,
    rule: str,
    all_blocks: list[Block],
    accept_coins: list[list[float]],
    final_coins: list[float],
) -> tuple[list[list[int]], list[int]]:
    """The op's tokens and counts for one block and one set of coins a row."""
    ids = [block[0] for block in all_blocks]
    num_draft_tokens = drafter.depth
    rows = [[target.index(row[:k]) for row in ids] for k in range(num_draft_tokens + 1)]
    own = [[drafter.index(row[:k]) for row in ids] for k in range(num_draft_tokens)]
    coins = np.column_stack([np.array(accept_coins), np.full(len(ids), 0.5), np.array(final_coins)])
    out = ops.verify(
        torch.stack([target.tables[k][rows[k]] for k in range(num_draft_tokens + 1)], 1),
        torch.tensor(ids),
        torch.stack([drafter.tables[k][own[k]] for k in range(num_draft_tokens)], 1),
        temperature=target.temperature,
        draft_temperature=drafter.temperature,
        target_cutoff=torch.stack([target.cutoffs(k)[rows[k]] for k in range(num_draft_tokens + 1)], 1),
        draft_cutoff=torch.stack([drafter.cutoffs(k)[own[k]] for k in range(num_draft_tokens)], 1),
        rule=rule,
        uniform_samples=torch.tensor(coins, dtype=torch.float32),
    )
    return out.output_token_ids.tolist(), out.num_accepted_tokens.tolist()


@both_rules
@all_models
def test_output_law_is_the_target_law(ops: Ops, target: ToyModel, drafter: ToyModel, rule: str) -> None:
    """Catches any wrong accept test, residual, weight or draw, however small its effect on samples."""
    joint, _ = enumerated_law(ops, target, drafter, drafter, rule)
    np.testing.assert_allclose(joint, target.joint_law(), rtol=0, atol=1e-4)


@both_rules
def test_negative_control_of_the_enumeration(ops: Ops, rule: str) -> None:
    """A verification that believes in another draft temperature must show."""
    target, drafter = MODELS["V3 K2"]
    joint, _ = enumerated_law(ops, target, drafter, replace(drafter, temperature=0.7), rule)
    assert np.abs(joint - target.joint_law()).max() > 5e-3


@all_models
def test_block_rule_accepts_at_least_as_many(ops: Ops, target: ToyModel, drafter: ToyModel) -> None:
    """Exact means over all blocks: the op's counts equal its own expectations, and the block rule is not below."""
    counts = {rule: enumerated_law(ops, target, drafter, drafter, rule)[1] for rule in RULES}
    for rule in RULES:
        mean = sum(
            probability * n * share
            for ids, probability, p, q in blocks(target, drafter, drafter.depth)
            for n, share in enumerate(oracles.count_law(p, q, list(ids), rule))
        )
        assert counts[rule] == pytest.approx(mean, abs=1e-4)
    assert counts["block"] >= counts["token"] - 1e-4
