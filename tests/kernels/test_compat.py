"""Other engines' signatures: their traps, and the same decisions as `verify` on the same coins.

Facts about the engines: docstrings of the adapters. Laws and Transformers: test_compat_laws.py.
"""

import doctest
import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import oracles
import pytest
import torch
from compat_runners import B, Block, K, Metadata, V, chain, generator, one_hot, random_block, v1, v2
from test_verify_laws import is_mean
from torch import Tensor

from metasd_kernels.compat import flashinfer, sglang


def test_no_engine_is_imported() -> None:
    """Catches an adapter that imports the engine whose signature it has."""
    names = ["flashinfer", "sglang", "transformers", "vllm"]
    modules = ", ".join(f"metasd_kernels.compat.{name}" for name in [*names, "vllm_v2"])
    command = f"import sys, {modules}; sys.exit(' '.join({set(names)} & set(sys.modules)) or None)"
    subprocess.run([sys.executable, "-c", command], check=True, timeout=60)


@pytest.mark.parametrize("name", ["flashinfer", "transformers"])
def test_examples_hold(name: str) -> None:
    """Catches an example that has gone stale."""
    module = importlib.import_module(f"metasd_kernels.compat.{name}")
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


# FlashInfer


def test_flashinfer_adds_in_place_and_counts_behind_the_rejection() -> None:
    """Catches counts with the bonus token, counts that start anew, copies handed back, and drafts behind untested."""
    ids = [[2, 1, 0], [2, 1, 0]]
    accepted, emitted = torch.tensor([5, 0], dtype=torch.int32), torch.tensor([7, 0], dtype=torch.int32)
    out = flashinfer.chain_speculative_sampling(
        one_hot(ids), torch.tensor(ids, dtype=torch.int32), one_hot([[2, 4, 0, 6], [2, 1, 0, 6]]), accepted, emitted
    )
    assert out[0].tolist() == [[2, 4, -1, -1], [2, 1, 0, 6]]
    assert out[0].dtype == torch.int32
    assert out[1] is accepted
    assert out[2] is emitted
    assert accepted.tolist() == [5 + 2, 3]
    assert emitted.tolist() == [7 + 1, 3]


def test_flashinfer_draws_from_the_generator() -> None:
    """Catches coins in another order than `verify` takes them, and a generator that is not used."""
    block = random_block()
    want = block.verify(uniform_samples=torch.rand((B, K + 2), generator=generator(7)))
    out = flashinfer.chain_speculative_sampling(block.q, block.ids, block.p, generator=generator(7))
    assert torch.equal(out[0], want.output_token_ids.int())
    assert torch.equal(out[2], want.num_accepted_tokens)
    assert 0 < int(out[2].sum()) < B * K


@pytest.mark.parametrize("seed", [-3, 2**64 - 3, torch.tensor([-3]), torch.tensor([-3] * B)], ids=str)
def test_flashinfer_seed_is_the_key_of_each_row(seed: int | Tensor) -> None:
    """Catches rows that share coins, and the 64 bits of a seed read in two ways."""
    block = random_block()
    words = [oracles.philox4x32((2**32 - 3, 2**32 - 1), (row, 0, 0, 3)) for row in range(B)]
    keys = torch.tensor([(low | high << 32) - (high >> 31 << 64) for low, high, *_ in words])
    offset = torch.tensor([9]) if isinstance(seed, Tensor) else 9
    out = flashinfer.chain_speculative_sampling(block.q, block.ids, block.p, seed=seed, offset=offset)
    assert torch.equal(out[0], block.verify(seed=keys, offset=9).output_token_ids.int())
    other = flashinfer.chain_speculative_sampling(block.q, block.ids, block.p, seed=4, offset=9)
    assert not torch.equal(out[0], other[0])


def test_flashinfer_accepted_is_the_sum_of_chances() -> None:
    """Catches an accepted count that is not each draft token's own chance. Control: the emitted count."""
    block = random_block(1)
    many = Block(*(part.expand(60_000, *part.shape[1:]) for part in (block.target, block.draft, block.ids)))
    chance = block.verify(seed=1).accept_probability.sum().item()
    out = flashinfer.chain_speculative_sampling(many.q, many.ids, many.p, generator=generator(5))
    assert is_mean(out[1].double().numpy(), chance)
    assert not is_mean(out[2].double().numpy(), chance)


# vLLM, V1


@pytest.mark.parametrize("is_point_mass", [False, True])
def test_vllm_agrees_with_verify(is_point_mass: bool) -> None:
    """Catches counts read with a leading 0, coins of another row, and a bonus token that is not the one passed in."""
    block, lengths = random_block(), [3, 0, 1, 2, 0, 3] * 4
    block.target[:, :K].scatter_add_(-1, block.ids.unsqueeze(-1), torch.full((B, K, 1), 2.0 * is_point_mass))
    given = {"draft_probs": None} if is_point_mass else {}
    torch.manual_seed(11)
    out = v1(block, lengths, Metadata(), **given)
    torch.manual_seed(11)
    packed, padded = torch.rand(sum(lengths), 3), torch.full((B, K, 3), 0.5)
    padded[torch.arange(K) < torch.tensor(lengths).unsqueeze(-1)] = packed
    want = torch.full((B, K + 1), -1, dtype=torch.int32)
    for n in range(K):  # the final coins of the position where the block ends
        coins = torch.cat([padded[:, :, 0], padded[:, n, 1:]], 1)
        told = block.verify(
            uniform_samples=coins, num_draft_tokens=torch.tensor(lengths),
            draft_logits=None if is_point_mass else block.draft,
        )  # fmt: skip
        for row in range(B):
            if told.num_accepted_tokens[row] == n < lengths[row]:
                want[row] = told.output_token_ids[row].int()
            elif told.num_accepted_tokens[row] == lengths[row]:
                want[row, : lengths[row]] = block.ids[row, : lengths[row]].int()
                want[row, lengths[row]] = 1000 + row
    assert out.dtype == torch.int32
    assert torch.equal(out, want)
    is_whole = (out >= 1000).any(-1)[torch.tensor(lengths) > 0]
    assert is_whole.any()
    assert not is_whole.all()


def test_vllm_greedy_is_by_temperature() -> None:
    """Catches a greedy request that is sampled, and a sampled one that is greedy, where a batch has both."""
    block = random_block()
    best = block.target.argmax(-1).int()
    block.ids[::2] = best[::2, :K]
    block.ids[4, 1] = (best[4, 1] + 1) % V
    metadata = Metadata(torch.tensor([0.0, 0.7] * (B // 2)), all_random=False)
    outs = torch.stack([v1(block, [K] * B, metadata) for _ in range(40)])
    whole = torch.cat([best[0, :K], torch.tensor([1000])])
    assert (outs[:, 0] == whole).all()
    assert (outs[:, 4] == torch.tensor([best[4, 0], best[4, 1], -1, -1])).all()
    assert len({tuple(row) for row in outs[:, 1].tolist()}) > 1
    own = generator(1)
    greedy = v1(block, [K] * B, Metadata(all_greedy=True, all_random=False, generators={0: own}))
    assert torch.equal(greedy[::2], outs[0, ::2])
    assert torch.equal(own.get_state(), generator(1).get_state())


def test_vllm_generators_belong_to_their_requests() -> None:
    """Catches coins that depend on the neighbours, and a generator that a request without a draft moves."""
    block, own = random_block(), {1: generator(5), 2: generator(6)}
    out = v1(block, [2, 0, 3, 1, 0, 3] * 4, Metadata(generators=own))
    assert torch.equal(own[1].get_state(), generator(5).get_state())
    assert not torch.equal(own[2].get_state(), generator(6).get_state())
    alone = Block(block.target[2:3], block.draft[2:3], block.ids[2:3])
    bonus = torch.tensor([[1002]])
    assert torch.equal(v1(alone, [3], Metadata(generators={0: generator(6)}), bonus=bonus)[0], out[2])


@pytest.mark.parametrize("bad", [-1, V])
def test_vllm_ids_outside_are_rejected(bad: int) -> None:
    """Catches a padded id that is emitted or read as an address, and what follows it being accepted."""
    block = random_block()
    block.target[:, 0] = one_hot([[4]] * B)[:, 0].log()
    block.ids[:, 0] = bad
    assert v1(block, [K] * B, Metadata()).tolist() == [[4, -1, -1, -1]] * B


# vLLM, V2


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("form", ["whole", "fewer draft ids", "point mass", "negative id"])
def test_vllm_v2_agrees_with_verify(rule: str, form: str) -> None:
    """Catches counts read without the leading 0, requests mixed up with their state, a count without the last token,
    draft logits taken as scaled, and a draft shifted by one."""
    block, lengths = random_block(), [3, 0, 1, 2, 3, 3] * 4
    temperature = torch.tensor([0.5, 1.0, 2.0, 0.0, 0.7, 1.0] * 4)
    draft = {"point mass": None, "fewer draft ids": block.draft[..., :5]}.get(form, block.draft)
    block.ids %= 5
    if form == "negative id":
        block.ids[4, 1] = -1
    seed, offset = torch.arange(B - 1, -1, -1) - 4, 50 * torch.arange(B)
    want = block.verify(
        temperature=(temperature > 0).float(), draft_temperature=temperature, num_draft_tokens=torch.tensor(lengths),
        rule=rule, seed=seed, offset=offset, draft_logits=draft,
    )  # fmt: skip
    sampled, num_sampled = v2(block, lengths, temperature, use_block_verification=rule == "block", draft_logits=draft)
    assert torch.equal(sampled, want.output_token_ids)
    assert torch.equal(num_sampled, want.num_accepted_tokens + 1)
    assert num_sampled.dtype == torch.int32
    assert torch.equal(num_sampled, (sampled >= 0).sum(-1))
    assert (num_sampled > 1).any()
    assert int(sampled[3, 0]) == int(block.target[3, 0].argmax())  # greedy


# SGLang


@pytest.mark.parametrize("form", ["token", "block", "S rows of q", "K columns", "tree"])
def test_sglang_agrees_with_verify(form: str) -> None:
    """Catches a token in the wrong slot, slots written that are not the result's, a count with the final token, and a
    final draw whose second coin is not the column that nobody else reads, or torch's next where there is none."""
    block, coins, final = random_block(), torch.rand(B, K + 1, generator=generator(8)), torch.rand(B)
    torch.manual_seed(8)
    options: dict[str, Any] = {"block_verification": True} if form == "block" else {}
    if form == "S rows of q":
        options["draft_probs"] = torch.cat([block.q, torch.full((B, 1, V), torch.nan)], 1)
    name = "tree_speculative_sampling_target_only" if form == "tree" else "chain_speculative_sampling_triton"
    given = coins[:, :K] if form == "K columns" else coins
    predicts, index, count = chain(block, given, final, getattr(sglang, name), **options)
    if form == "K columns":
        torch.manual_seed(8)
        coins[:, K:] = torch.rand(B, 1)
    want = block.verify(
        uniform_samples=torch.cat([coins[:, :K], final.unsqueeze(-1), coins[:, K:]], 1),
        rule="block" if form == "block" else "token", draft_logits=None if form == "tree" else block.draft,
    )  # fmt: skip
    is_written = torch.arange(K + 1) <= want.num_accepted_tokens.unsqueeze(-1)
    where = torch.arange(B * (K + 1) - 1, -1, -1).view(B, K + 1)
    assert torch.equal(count, want.num_accepted_tokens)
    assert 0 < int(count.sum()) < B * K
    assert torch.equal(predicts.long(), want.output_token_ids.where(is_written, 777))
    assert torch.equal(index.long(), where.where(is_written, 777))


def test_sglang_probability_0_stays_0() -> None:
    """Catches a draft token without mass that a coin of 0 accepts, and an id without mass that a high coin draws."""
    block = random_block()
    block.target[:] = one_hot([[4] * (K + 1)] * B).log()
    block.ids[:] = 6
    coins, final = torch.zeros(B, K + 1), torch.full((B,), 1 - 2.0**-24)
    coins[:, K] = 1 - 2.0**-24
    predicts, _, count = chain(block, coins, final, sglang.chain_speculative_sampling_triton)
    assert (count == 0).all()
    assert (predicts[:, 0] == 4).all()


def test_sglang_refuses_a_tree() -> None:
    """Catches a branching tree that is verified as if it were a chain."""
    block, branches = random_block(), torch.tensor([[1, -1, 3, -1]] * B)
    with pytest.raises(ValueError, match="retrive_next_token: expected a chain"):
        chain(
            block, torch.rand(B, K + 1), torch.rand(B), sglang.tree_speculative_sampling_target_only,
            next_token=branches,
        )  # fmt: skip


# All of them


def test_empty_batches() -> None:
    """Catches a gather or a scatter from nothing, for no request and for requests without a draft."""
    none = Block(torch.zeros(0, K + 1, V), torch.zeros(0, K, V), torch.zeros(0, K, dtype=torch.int64))
    assert flashinfer.chain_speculative_sampling(none.q, none.ids, none.p)[0].shape == (0, K + 1)
    assert v1(none, [], Metadata()).shape == (0, K + 1)
    assert v2(none, [], torch.zeros(0), num_nobody=0)[0].shape == (0, K + 1)
    assert chain(none, torch.zeros(0, K + 1), torch.zeros(0), sglang.chain_speculative_sampling_triton)[2].numel() == 0
    block = random_block()
    assert v1(block, [0] * B, Metadata()).tolist() == [[1000 + row, -1, -1, -1] for row in range(B)]
    assert (v2(block, [0] * B, torch.ones(B))[1] == 1).all()


REFUSED: dict[str, Callable[[], object]] = {
    "seed": lambda: flashinfer_with(offset=1),
    "offset": lambda: flashinfer_with(seed=1),
    "generator": lambda: flashinfer_with(seed=1, offset=1, generator=generator(1)),
    "maybe_output_accepted_token_num": lambda: flashinfer_with(maybe_output_accepted_token_num=torch.zeros(B).long()),
    "deterministic": lambda: flashinfer_with(deterministic="no"),
    "target_probs": lambda: flashinfer_with(target_probs=torch.ones(B, K, V) / V),
    "num_draft_tokens": lambda: v1(random_block(), [1] * (B - 1) + [K + 1], Metadata()),
    "synthetic_mode": lambda: v1(random_block(), [1] * B, Metadata(), synthetic_mode=True),
    "use_fp64_gumbel": lambda: v1(random_block(), [1] * B, Metadata(), use_fp64_gumbel=True),
    "fly_window_size": lambda: v1(random_block(), [1] * B, Metadata(), fly_window_size=2),
    "sampling_metadata.temperature": lambda: v1(random_block(), [1] * B, Metadata(all_random=False)),
    "use_fp64": lambda: v2(random_block(), [1] * B, torch.ones(B), use_fp64=True),
    "contexts": lambda: v2(random_block(), [1] * B, torch.ones(B), contexts=torch.zeros(1, 1)),
    "threshold_acc": lambda: chain(
        random_block(), torch.rand(B, K + 1), torch.rand(B), lambda **given: sglang.chain_speculative_sampling_triton(
            **given | {"threshold_acc": 0.9}
        )
    ),
    "uniform_samples": lambda: chain(
        random_block(), torch.rand(B, K + 2), torch.rand(B), sglang.chain_speculative_sampling_triton
    ),
}  # fmt: skip


def flashinfer_with(**options: Any) -> object:
    block = random_block()
    return flashinfer.chain_speculative_sampling(
        **{"draft_probs": block.q, "draft_token_ids": block.ids, "target_probs": block.p} | options
    )


@pytest.mark.parametrize("argument", REFUSED)
def test_what_cannot_be_honoured_is_refused(argument: str) -> None:
    """Catches an argument that is ignored, and an error that names another one."""
    with pytest.raises(ValueError, match=rf"^{argument}: expected .*, got "):
        REFUSED[argument]()
