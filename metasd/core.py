"""The words that every room shares: errors, and the small frozen records that travel between rooms."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor

FinishReason = Literal["stop", "length"]
NULL_ARM = "null"
"""The arm that drafts nothing: plain decoding, one token a round. Always known, so that a pool is never a trap."""


class MetaSDError(Exception):
    """Something a user can act on; the message names what is wrong and the way out."""


class UsageError(MetaSDError, ValueError):
    """An argument is wrong: the message names the argument, what was expected, and what came."""


def refuse(argument: str, expected: str, actual: object) -> UsageError:
    """The error for a wrong argument, to be raised by the caller."""
    return UsageError(f"{argument}: expected {expected}, got {actual}")


@dataclass(frozen=True)
class Coins:
    """Where a request's random numbers in one round come from. The nonce is new in every round of the request."""

    seed: Tensor  # [1] int64 on the device of the models
    nonce: int


@dataclass(frozen=True)
class SamplingLaw:
    """How logits become a law; target and drafters use the same. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def has_cutoff(self) -> bool:
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


@dataclass(frozen=True)
class Position:
    """What is known about one draft position before the draft is made.

    Two positions with the same key share what the bandit has learned about acceptance there.
    """

    key: str
    prior: float = 0.5  # acceptance, given that all positions before were accepted
    prior_weight: float = 1.0  # how many observations the prior is worth


@dataclass(frozen=True)
class Offer:
    """How far an arm could draft now; an arm with nothing to propose makes none, and sleeps."""

    positions: tuple[Position, ...] = ()

    @property
    def max_num_draft_tokens(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class Draft:
    """A proposed block for one request, and exactly the law from which it was drawn.

    Without logits each token is a point mass. With logits, token k was drawn by `metasd_kernels.sample` from row k with
    this temperature and cutoff.
    """

    token_ids: Tensor  # [1, K] int64, the target's vocabulary
    logits: Tensor | None = None  # [1, K, V_d] or, with a [1, K, S] map, [1, K, S]
    temperature: float = 0.0
    cutoff: Tensor | None = None  # [1, K]
    draft_to_target: Tensor | None = None  # [V_d] or [1, K, S] int64

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[1]


class Choice(NamedTuple):
    """A bandit's decision for one round."""

    arm: str
    num_draft_tokens: int


class Stopwatch:
    """Adds up the host's seconds in its `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._start


@dataclass(frozen=True)
class TokenScores:
    """What one arm would have said to some tokens of an answer: MATH's (a, 1 - TV) for each.

    Attributes:
        ratio: min(1, q(y) / p(y)) of each token y; 0 where the arm slept.
        overlap: 1 - TV(p, q) there, the probability that a token drafted there would have been accepted.
    """

    ratio: tuple[float, ...]
    overlap: tuple[float, ...]


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round; also the feedback from which bandits learn. Seconds are wall-clock."""

    round_id: int
    arm: str
    num_draft_tokens: int
    num_accepted_tokens: int  # drafts only
    num_output_tokens: int  # emitted, after a stop cut the block
    accept_probability: tuple[float, ...]  # a_k = min(1, p(x_k) / q(x_k)) at each scored position
    tv_distance: tuple[float, ...]  # TV(p, q) at each scored position
    num_expected_accepted: float  # Rao-Blackwell estimate (MetaSD's RB reward)
    bd: float  # block divergence, (1/K) sum_k (1 - TV_k); 0 without a draft
    be: float  # block efficiency, accepted / K; 0 without a draft
    status: int  # bits of metasd_kernels.Status
    positions: tuple[Position, ...] = ()  # the offer on which the draft was made
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0  # the target's forward pass, processing, the verify op, stops
    model_seconds: float | None = None  # of these: forward passes and the verify op; None where nobody timed them
    catch_up_seconds: float = 0.0  # bringing the arm's cache into its slot, and reading what the arm missed
    overhead_seconds: float = 0.0  # everything else in the round: choosing and bookkeeping
    switched: bool = False  # another arm than in the round before
    token_scores: Mapping[str, TokenScores] = field(default_factory=dict)
    """By arm that was asked, for the round's first emitted tokens; empty unless the engine keeps them. The drafting
    arm's are those of its draft, where a head reads its own features behind the first position."""

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds + self.catch_up_seconds + self.overhead_seconds

    @property
    def engine_seconds(self) -> float | None:
        """What the round cost beside the models' forward passes and the verify op, if these were timed."""
        return None if self.model_seconds is None else self.seconds - self.model_seconds


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of an emitted token under the target's raw softmax, and of its best alternatives there."""

    token_id: int
    logprob: float
    top: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What a drafter is told when a request starts."""

    prompt_ids: Sequence[int]
    law: SamplingLaw
    max_num_tokens: int  # prompt and answer together
    features: Tensor | None = None  # [P-1, F] the target's of all prompt tokens but the last, for a white-box drafter


def jsonable(value: Any) -> Any:
    """Plain JSON types for dataclasses, mappings, sequences and tensors."""
    if isinstance(value, Tensor):
        return value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        return {name: jsonable(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value
