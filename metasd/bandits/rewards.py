"""What a bandit learns from a round: the paper's rewards BE and BD, the Rao-Blackwell RB, the counterfactual CF.

`value` is the reward itself, `evidence` what the round says about acceptance at each draft position, `observe` what it
gives to each arm. In formulas a is an acceptance rate and N the block length.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from metasd.core import RoundRecord, TokenScores

Evidence = tuple[float, float]
"""At one position: how surely the block got there, and how surely the token there is then accepted."""

Observation = tuple[str, float, float]
"""An arm, a reward of it, and how many of its rounds that is worth."""


class Reward(ABC):
    """One number for a round, in its own unit, and its translation into accepted tokens."""

    name: ClassVar[str]
    needs_scores: ClassVar[bool] = False
    """Whether it is made of the token scores of arms that did not draft."""

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
    def evidence(self, record: RoundRecord) -> list[Evidence]:
        """What the round says about each scored position, the first one first."""

    def most(self, num_draft_tokens: int) -> float:
        """The reward's largest value."""
        return 1.0

    def observe(self, record: RoundRecord) -> list[Observation]:
        """The rewards that a round gives: of the arm that drafted, and of those that were asked."""
        return [(record.arm, self.value(record), 1.0)] if record.num_draft_tokens else []

    def start(self) -> None:  # noqa: B027 - optional
        """A request begins."""


class BlockEfficiency(Reward):
    """BE = N_acc / N: the share of the block that was accepted."""

    name = "be"

    def value(self, record: RoundRecord) -> float:
        return record.be

    def tokens(self, mean: float, num_draft_tokens: int) -> float:
        return num_draft_tokens * mean

    def spread(self, num_draft_tokens: int) -> float:
        return 1.0

    def evidence(self, record: RoundRecord) -> list[Evidence]:
        accepted = record.num_accepted_tokens
        return [(1.0, 1.0)] * accepted + [(1.0, 0.0)] * (accepted < record.num_draft_tokens)


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

    def evidence(self, record: RoundRecord) -> list[Evidence]:
        return [(1.0, 1.0 - tv) for tv in record.tv_distance]


class RaoBlackwell(Reward):
    """RB = E[N_acc | draft, laws]: for the token rule sum_k prod_{j<k} a_j (1 - TV_k). Unbiased and calm."""

    name = "rb"

    def value(self, record: RoundRecord) -> float:
        return record.num_expected_accepted

    def tokens(self, mean: float, num_draft_tokens: int) -> float:
        return min(mean, float(num_draft_tokens))

    def spread(self, num_draft_tokens: int) -> float:
        return num_draft_tokens / 3  # standard deviation 0.58 where the raw count has 1.73, on a Markov toy with N = 5

    def most(self, num_draft_tokens: int) -> float:
        return float(num_draft_tokens)

    def evidence(self, record: RoundRecord) -> list[Evidence]:
        found, reach = list[Evidence](), 1.0
        for accept, tv in zip(record.accept_probability, record.tv_distance, strict=True):
            found.append((reach, 1.0 - tv))
            reach *= accept
            if reach == 0:
                break
        return found


class Counterfactual(RaoBlackwell):
    """CF: what a block of N tokens from an arm would have gained, told from the tokens that were emitted.

    Over every window of N positions, CF_i = sum_k prod_{j<k} ratio_j overlap_k: its start is fixed before its tokens
    are known, and later rounds complete it, so it is unbiased whoever drafted (MATH: better rewards; a round's own
    tokens alone are not). Windows overlap: each counts as 1/N of a round. An arm that was not asked for every token of
    a window has no value there; an arm that drafts and is not asked has RB.

    Args:
        num_draft_tokens: N.
    """

    name = "cf"
    needs_scores = True

    def __init__(self, num_draft_tokens: int = 5) -> None:
        self._length = num_draft_tokens
        self.start()

    def most(self, num_draft_tokens: int) -> float:
        return float(self._length)

    def start(self) -> None:
        self._windows: dict[str, list[tuple[float, float]]] = {}  # by arm: the last tokens, one after the other
        self._ends: dict[str, int] = {}  # behind which token of the request an arm's list ends
        self._num_tokens = 0

    def observe(self, record: RoundRecord) -> list[Observation]:
        begin, self._num_tokens = self._num_tokens, self._num_tokens + record.num_output_tokens
        found: list[Observation] = []
        has_all = False
        for arm, scores in record.token_scores.items():
            is_whole = len(scores.ratio) >= record.num_output_tokens
            has_all |= is_whole and arm == record.arm
            if is_whole:
                found += self._complete(arm, begin, scores, record.num_output_tokens)
        if record.num_draft_tokens and not has_all:
            found.append((record.arm, self.value(record), 1.0))
        return found

    def _complete(self, arm: str, begin: int, scores: TokenScores, count: int) -> Iterator[Observation]:
        window = self._windows.setdefault(arm, [])
        if self._ends.get(arm) != begin:
            window.clear()
        self._ends[arm] = begin + count
        for entry in zip(scores.ratio[:count], scores.overlap[:count], strict=True):
            window.append(entry)
            if len(window) == self._length:
                value, reach = 0.0, 1.0
                for ratio, overlap in window:
                    value += reach * overlap
                    reach *= ratio
                    if reach == 0:
                        break
                yield arm, value, 1 / self._length
                del window[0]


REWARDS: dict[str, type[Reward]] = {
    reward.name: reward for reward in (BlockEfficiency, BlockDivergence, RaoBlackwell, Counterfactual)
}


def make_reward(name: str, num_draft_tokens: int | None = None) -> Reward:
    """A reward by its name; the counterfactual one for blocks of this many tokens (None: 5)."""
    return Counterfactual(num_draft_tokens or 5) if name == "cf" else REWARDS[name]()
