"""The coins: Philox4x32-10 (Salmon et al., SC 2011), the same on every device and backend.

A coin is addressed, never drawn from a stream: key = the request's seed, counter = (round nonce, position, domain).
Nobody's coins depend on who else is in the batch, and a coin can be computed twice without being used twice.
"""

from enum import IntEnum

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF


class Domain(IntEnum):
    """What a coin decides. Two domains never share a coin."""

    ACCEPT = 0  # position k, word 0: is the draft at k accepted
    FINAL = 1  # position 0, words 0 and 1: tile and id of the recovered or bonus token
    DRAFT = 2  # position k, words 0 and 1: tile and id of the draft token at k


def _multiply(multiplier: int, value: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32 x 32 bit product; int64 wraps modulo 2^64, so the shifted bits are the true ones."""
    product = value * multiplier
    return (product >> 32) & _MASK, product & _MASK


def philox(key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """Four random 32-bit words for each counter.

    Args:
        key: two int64 tensors holding unsigned 32-bit values, broadcastable with `counter`.
        counter: four int64 tensors holding unsigned 32-bit values, broadcastable with each other.

    Returns:
        int64 `[..., 4]`, each value in [0, 2^32).
    """
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), dim=-1)


def uniform(words: Tensor) -> Tensor:
    """fp32 in (0, 1), never 0 or 1: the upper 23 bits, centred in their interval."""
    return ((words >> 9).to(torch.float32) + 0.5) * 2.0**-23


def _split(value: Tensor) -> tuple[Tensor, Tensor]:
    return value & _MASK, (value >> 32) & _MASK


def _coins(seed: Tensor, offset: Tensor, position: Tensor, domain: Domain) -> Tensor:
    """`[B, n, 4]` coins of `n` positions; `seed` and `offset` int64 `[B]` (or `[1]`), `position` `[n]` or `[B, n]`."""
    key_low, key_high = _split(seed.reshape(-1, 1))
    offset_low, offset_high = _split(offset.reshape(-1, 1))
    return uniform(philox((key_low, key_high), (offset_low, offset_high, position, torch.full_like(position, domain))))


def verify_coins(seed: Tensor, offset: Tensor, num_draft_tokens: int) -> Tensor:
    """fp32 `[B, K + 2]`: K accept coins, then the two coins of the recovered or bonus token."""
    positions = torch.arange(num_draft_tokens, device=seed.device)
    accept = _coins(seed, offset, positions, Domain.ACCEPT)[..., 0]
    final = _coins(seed, offset, torch.zeros(1, dtype=torch.int64, device=seed.device), Domain.FINAL)[:, 0, :2]
    return torch.cat([accept, final], dim=1)


def draft_coins(seed: Tensor, offset: Tensor, position: int | Tensor) -> Tensor:
    """fp32 `[B, 2]`: the coins with which the drafter draws its token at `position` of the block, int64 `[B]` if it
    differs from row to row."""
    if not isinstance(position, Tensor):
        position = torch.full((1,), position, dtype=torch.int64, device=seed.device)
    return _coins(seed, offset, position.reshape(-1, 1), Domain.DRAFT)[:, 0, :2]
