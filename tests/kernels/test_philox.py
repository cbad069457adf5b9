"""The coins: known answers of the generator, and the addresses under which the ops look for them."""

import oracles
import pytest
import torch
from op_runner import Ops

from metasd_kernels.rng import Domain, draft_coins, philox, uniform, verify_coins

KNOWN_ANSWERS = [  # Random123, kat_vectors, philox4x32 with 10 rounds: counter, key, words
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
SEEDS = torch.tensor([0, 1, -1, 2**32, -(2**63), 2**63 - 1, 1234567890123456789])
OFFSETS = torch.tensor([0, -1, 7, 2**32 + 5, 2**63 - 1, -(2**63), 42])


def as_logit_pair(a: float) -> list[float]:
    """Logits of a two-token law with probabilities a and 1 - a."""
    return torch.tensor([a, 1 - a], dtype=torch.float64).log().tolist()


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    """Catches a wrong constant, word order or number of rounds, here and in the oracle."""
    have = philox(tuple(map(torch.tensor, key)), tuple(map(torch.tensor, counter)))
    assert tuple(have.tolist()) == words
    assert oracles.philox4x32(key, counter) == words


def test_coin_layout() -> None:
    """Catches a swapped column, domain or word, and a seed or nonce that loses its high or its sign bits."""
    coins = verify_coins(SEEDS, OFFSETS, 5)
    assert coins.shape == (7, 7)
    for row, (seed, offset) in enumerate(zip(SEEDS.tolist(), OFFSETS.tolist(), strict=True)):
        assert coins[row].double().tolist() == oracles.verify_coins(seed, offset, 5).tolist()
        for position in (0, 3, 2**32 - 1):
            have = draft_coins(SEEDS, OFFSETS, position)[row]
            assert have.double().tolist() == oracles.draft_coins(seed, offset, position).tolist()


def test_no_two_decisions_share_a_coin() -> None:
    """Catches overlapping domains: all coins of a round, and of the next round, are different."""
    seed = torch.tensor([3])
    rounds = [torch.tensor([offset]) for offset in (0, 1)]
    coins = [verify_coins(seed, offset, 8)[0] for offset in rounds]
    coins += [draft_coins(seed, offset, k)[0] for offset in rounds for k in range(8)]
    assert torch.cat(coins).unique().numel() == 2 * (8 + 2 + 16)
    assert (Domain.ACCEPT, Domain.FINAL, Domain.DRAFT) == (0, 1, 2)


def test_a_coin_is_never_0_or_1() -> None:
    """Catches u = 0, which accepts p(x) = 0 in a careless test, and u = 1, which draws past the end."""
    ends = uniform(torch.tensor([0, 1, 511, 512, 2**32 - 512, 2**32 - 1]))
    assert ends.tolist() == [2.0**-24] * 3 + [1.5 * 2.0**-23] + [1 - 2.0**-24] * 2


def test_verify_finds_its_coins(ops: Ops) -> None:
    """Catches a backend with another coin contract: decisions that flip within 2^-20 of the oracle's coin."""
    num_draft_tokens = 3
    for seed, offset in zip(SEEDS.tolist(), OFFSETS.tolist(), strict=True):
        coins = oracles.verify_coins(seed, offset, num_draft_tokens)
        for k in range(num_draft_tokens):
            for nudge, is_accepted in ((2.0**-18, True), (-(2.0**-18), False)):
                rows = [as_logit_pair(1 - 1e-9)] * (num_draft_tokens + 1)
                rows[k] = as_logit_pair(min(max(float(coins[k]) * (1 + nudge), 1e-9), 1 - 1e-9))
                ids = torch.zeros((1, num_draft_tokens), dtype=torch.int64)
                out = ops.verify(torch.tensor([rows]), ids, seed=torch.tensor([seed]), offset=torch.tensor([offset]))
                assert (int(out.num_accepted_tokens[0]) > k) == is_accepted, (seed, offset, k)


@pytest.mark.parametrize("position", [0, 4, 1000])
def test_sample_finds_its_coins(ops: Ops, position: int) -> None:
    """Catches a drafter that draws with a coin of `verify`; with 2 tiles of 2 tokens each, both coins show."""
    logits = torch.full((1, 1026), -torch.inf)
    logits[0, [0, 1, 1024, 1025]] = 0.0
    for seed, offset in zip(SEEDS.tolist(), OFFSETS.tolist(), strict=True):
        tile, token = oracles.draft_coins(seed, offset, position)
        have = ops.sample(
            logits, temperature=1.0, seed=torch.tensor([seed]), offset=torch.tensor([offset]), position=position
        )
        assert int(have) == 1024 * (tile > 0.5) + (token > 0.5)
