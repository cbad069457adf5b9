"""What a bandit learns from a round: the paper's rewards BE and BD, and the Rao-Blackwell estimate RB.

`value` is the reward itself, `evidence` what the round says about acceptance at each draft position. In formulas a is
an acceptance rate and N the block length.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from metasd.core import RoundRecord


class Evidence(NamedTuple):
    """At one position: how surely the block got there, and how surely the token there is then accepted."""

    reach: float
    accept: float


class Reward(ABC):
    """One number for a round, in its own unit, and its translation into accepted tokens."""

    name: ClassVar[str]

    @abstractmethod
    def value(self, record: RoundRecord) -> float:
        """The reward of a round that drafted at least one token."""

    @abstractmethod
    def tokens(self, mean: float, num_draft_tokens: int) -> float:
        """Expected accepted tokens of a block of this length, given the reward's mean (MATH: cost-aware choice)."""

    @abstractmethod
    def spread(self, num_draft_tokens: int) -> float:
        """The reward's scale, by which a confidence radius for values in [0, 1] is multiplied."""

    @abstractmethod
    def evidence(self, record: RoundRecord) -> Iterator[Evidence]:
        """What the round says about each scored position, the first one first."""


class BlockEfficiency(Reward):
    """BE = N_acc / N: the share of the block that was accepted."""

    name = "be"

    def value(self, record: RoundRecord) -> float:
        return record.be

    def tokens(self, mean: float, num_draft_tokens: int) -> float:
        return num_draft_tokens * mean

    def spread(self, num_draft_tokens: int) -> float:
        return 1.0

    def evidence(self, record: RoundRecord) -> Iterator[Evidence]:
        for k in range(min(record.num_accepted_tokens + 1, record.num_draft_tokens)):
            yield Evidence(1.0, float(k < record.num_accepted_tokens))


class BlockDivergence(Reward):
    """BD = (1/N) sum_k (1 - TV_k): the mean overlap of the two laws, over all positions of the block."""

    name = "bd"

    def value(self, record: RoundRecord) -> float:
        return record.bd

    def tokens(self, mean: float, num_draft_tokens: int) -> float:
        rate = min(mean, 1.0)
        if rate > 1 - 1e-9:
            return float(num_draft_tokens)
        return float((rate - rate ** (num_draft_tokens + 1)) / (1 - rate))

    def spread(self, num_draft_tokens: int) -> float:
        return 1.0

    def evidence(self, record: RoundRecord) -> Iterator[Evidence]:
        for tv in record.tv_distance:
            yield Evidence(1.0, 1.0 - tv)


class RaoBlackwell(Reward):
    """RB = E[N_acc | draft, laws]: for the token rule sum_k prod_{j<k} a_j (1 - TV_k). Unbiased and calm."""

    name = "rb"

    def value(self, record: RoundRecord) -> float:
        return record.num_expected_accepted

    def tokens(self, mean: float, num_draft_tokens: int) -> float:
        return min(mean, float(num_draft_tokens))

    def spread(self, num_draft_tokens: int) -> float:
        return num_draft_tokens / 3  # standard deviation 0.58 where the raw count has 1.73, on a Markov toy with N = 5

    def evidence(self, record: RoundRecord) -> Iterator[Evidence]:
        reach = 1.0
        for accept, tv in zip(record.accept_probability, record.tv_distance, strict=True):
            yield Evidence(reach, 1.0 - tv)
            reach *= accept
            if reach == 0:
                return


REWARDS: dict[str, Reward] = {reward.name: reward for reward in (BlockEfficiency(), BlockDivergence(), RaoBlackwell())}
