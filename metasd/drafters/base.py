"""What a drafter is. To add one: subclass, implement four methods, add a line to the registry in `__init__.py`."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from metasd.core import Coins, Draft, Offer, Request, refuse
from metasd.registry import annotation_name
from metasd.slots import SlotCache
from metasd.static import StaticDrawing, StaticSequence

if TYPE_CHECKING:
    from metasd.target import Target

_NO_COINS = Coins(torch.zeros(1, dtype=torch.int64), 0)
_OPTION_TYPES = {"int": "an integer", "float": "a finite number", "str": "a text that is no number"}
"""What a spec can give to a parameter, by its annotation; parameters of other types are for Python only."""


class StaticDrafter(Protocol):
    """Drafting at fixed addresses: functions of tensors alone, which a graph may capture."""

    drawing: StaticDrawing

    def step(self, sequence: StaticSequence, bucket: int, is_first: bool) -> None:
        """Draft one token more; the first step reads the last committed tokens again, at least those of one round."""

    def ingest(self, sequence: StaticSequence, width: int, bucket: int) -> None:
        """Read the last `width` committed tokens, those that are known already once more."""


class Drafter(ABC):
    """Proposes blocks of tokens for one sequence.

    The engine calls, for each request, `reset`, and then in each round at most `offer`, `draft`, `rewind`; `commit`
    brings the tokens that became part of the sequence. A drafter knows how many committed tokens it has seen only from
    these calls: it may be left out for any number of rounds and then gets what it missed in one `commit`.

    Attributes:
        name: the arm's name.
        feature_layers: which hidden states of the target `reset` and `commit` need, in the numbering of
            `metasd.features`; none for a black-box drafter.
        follows: whether the drafter takes every round's tokens at once, for next to nothing; others catch up when they
            are activated.
        context_length: the most tokens, draft included, that it can follow; beyond them it is offered no room.
        cache: its key-value cache, if it has one of its own. It is in its slot whenever `catch_up`, `draft`, `rewind`
            or `score` are called, and may be anywhere else at any other time.
        temperature_scale: it draws at the request's temperature times this.
        nominal_cost: rough cost of one draft token, in plain forward passes of the target; used only where clocks must
            not decide.
    """

    name: str
    feature_layers: tuple[int, ...] = ()
    follows: ClassVar[bool] = False
    context_length: int = 1 << 62
    nominal_cost: float = 0.0
    cache: SlotCache | None = None
    temperature_scale: float = 1.0

    def __init__(self, target: "Target") -> None:
        self.target = target

    @classmethod
    def from_options(cls, target: "Target", options: dict[str, Any]) -> Self:
        """Build from the options of a spec such as `ngram:max_match=4`.

        Raises:
            UsageError: an option is unknown or has the wrong type.
        """
        known = {
            name: parameter
            for name, parameter in inspect.signature(cls).parameters.items()
            if name != "target" and annotation_name(parameter) in _OPTION_TYPES
        }
        given = {}
        for key, value in options.items():
            if key not in known:
                raise refuse(f"drafter {cls.__name__}", f"options among {', '.join(known) or 'none'}", repr(key))
            wanted = annotation_name(known[key])
            is_right = isinstance(value, str) if wanted == "str" else isinstance(value, float) and math.isfinite(value)
            if not is_right or (wanted == "int" and value != int(value)):
                raise refuse(key, _OPTION_TYPES[wanted], repr(value))
            given[key] = int(value) if wanted == "int" else value
        missing = [key for key, parameter in known.items() if parameter.default is parameter.empty and key not in given]
        if missing:
            raise refuse(f"drafter {cls.__name__}", f"the option {missing[0]}", "none")
        return cls(target, **given)

    @property
    def requires_features(self) -> bool:
        """Whether the target's hidden states are needed: a white-box drafter."""
        return bool(self.feature_layers)

    @abstractmethod
    def reset(self, request: Request) -> None:
        """Forget everything and read the prompt of a new request."""

    @abstractmethod
    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        """How far this drafter could draft now, at most so many tokens; None: nothing to propose, the arm sleeps.

        May depend on committed tokens only.
        """

    @abstractmethod
    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        """Propose at most so many tokens (at least 1) behind the committed ones, or None.

        How many are proposed may depend on committed tokens only: a block that is cut because of a sampled token is
        not drawn from the law that it claims.
        """

    @abstractmethod
    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        """Take tokens that became part of the sequence; those of the last draft that were accepted come again.

        Args:
            token_ids: m of them.
            features: `[m, F]`, row i the target's hidden states (`feature_layers` side by side) of the token before
                `token_ids[i]`; None for a black-box drafter.
        """

    def score(self, token_ids: Sequence[int], features: Tensor | None = None) -> Draft:
        """The laws from which this drafter would have drawn each of these tokens, given all before it; commits them.

        Args:
            token_ids: m of them, at least 1.
            features: as for `commit`.

        Returns:
            a Draft of m positions: what it would have drafted greedily or, where it slept, -1, and its laws unless it
            is a point mass. Each row counts as the first of a draft of its own.
        """
        guesses = []
        for i, token in enumerate(token_ids):
            made = self.draft(1, _NO_COINS) if self.offer(1) else None
            guesses.append(-1 if made is None else int(made.token_ids))
            if made is not None:
                assert made.logits is None, "a drafter with a law of its own says itself how it scores"
                self.rewind(1)
            self.commit([token], None if features is None else features[i : i + 1])
        return Draft(torch.tensor([guesses], device=self.target.device))

    def catch_up(self) -> None:  # noqa: B027 - optional
        """Read what was committed since the last draft, in one forward pass, unless the next draft reads it in passing.

        Called when the arm becomes active; `draft` and `score` have to work without it.
        """

    def rewind(self, num_tokens: int) -> None:  # noqa: B027 - optional
        """Forget the last `num_tokens` tokens of the last draft: they were rejected. Comes before `commit`."""

    @property
    def static(self) -> "StaticDrafter | None":
        """How it drafts at fixed addresses, inside captured graphs; None: it drafts on the host's word."""
        return None

    def self_check(self) -> str | None:
        """A measurement on a short text, after loading; what to warn of, or None."""
        return None

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held, by what they are for."""
        return {}
