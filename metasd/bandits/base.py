"""What a bandit is. To add one: subclass Policy, implement `choose`, add a line to the registry in `__init__.py`."""

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from metasd.bandits.costs import CostTable
from metasd.bandits.lengths import Hazards, best_length
from metasd.bandits.rewards import Reward
from metasd.core import NULL_ARM, Choice, Offer, RoundRecord, UsageError, refuse
from metasd.registry import annotation_name


@runtime_checkable
class Bandit(Protocol):
    """Picks the arm and the block length of each round, from past rounds only."""

    def start(self, reproducible: bool = False) -> None:
        """A request begins. `reproducible`: neither clocks nor earlier requests may have a say in its choices."""

    def select(self, available: Mapping[str, Offer]) -> Choice:
        """Choose among the arms that are awake; there is at least one."""

    def update(self, round_id: int, feedback: RoundRecord) -> None:
        """Learn from a round. Feedback may come late."""

    def finish(self) -> None:
        """The request is over."""

    def state(self) -> dict[str, Any]:
        """All that was learned, in plain JSON types."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned.

        Raises:
            UsageError: it is the state of another policy or of other arms.
        """


@dataclass(frozen=True)
class Setting:
    """What a policy plays for."""

    arms: tuple[str, ...]
    reward: Reward
    objective: str  # "speed" | "tokens"
    num_draft_tokens: int | None  # None: chosen with the arm
    costs: CostTable


class Policy(ABC):
    """The common part: statistics of each arm, the block length, and what is carried from request to request.

    Args:
        setting: what it plays for.
        carry: "query" forgets between requests (the paper); "decay" lets the past count `decay` times as much.
        decay: in (0, 1].
    """

    def __init__(self, setting: Setting, carry: str = "decay", decay: float = 0.9) -> None:
        if carry not in ("query", "decay"):
            raise refuse("carry", "query or decay", repr(carry))
        if not 0 < decay <= 1:
            raise refuse("decay", "a number above 0 and at most 1", decay)
        self.setting, self._carry, self._decay = setting, carry, decay
        self._costs = setting.costs
        self._put_aside: dict[str, Any] | None = None
        self.reset()
        self._initial = self.state()

    @classmethod
    def from_options(cls, setting: Setting, options: Mapping[str, Any]) -> Self:
        """Build from the options of a spec such as `ucb:beta=0.1`.

        Raises:
            UsageError: an option is unknown.
        """
        known = {
            name: parameter
            for base in reversed(cls.__mro__[:-1])  # all but object
            for name, parameter in inspect.signature(base).parameters.items()
            if name != "setting" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        }
        for key, value in options.items():
            if key not in known:
                raise refuse(f"bandit {cls.__name__}", f"options among {', '.join(sorted(known))}", repr(key))
            if annotation_name(known[key]) == "float" and not (isinstance(value, float) and math.isfinite(value)):
                raise refuse(key, "a finite number", repr(value))
        return cls(setting, **options)

    def reset(self) -> None:
        """Forget everything."""
        self.num_rounds: dict[str, float] = dict.fromkeys(self.setting.arms, 0.0)
        self.total_reward: dict[str, float] = dict.fromkeys(self.setting.arms, 0.0)
        self.hazards = Hazards()

    @abstractmethod
    def choose(self, available: Mapping[str, Offer]) -> Choice:
        """Choose among arms that are awake and have something to propose; the null arm is among them if it may be."""

    def start(self, reproducible: bool = False) -> None:
        if reproducible:
            self._put_aside, self._costs = copy.deepcopy(self.state()), self.setting.costs.nominal()
            self._load(self._initial)
        elif self._carry == "query":
            self.reset()
        else:
            for table in (self.num_rounds, self.total_reward):
                for arm in table:
                    table[arm] *= self._decay
            self.hazards.decay(self._decay)

    def finish(self) -> None:
        if self._put_aside is not None:
            self._load(self._put_aside)
            self._put_aside, self._costs = None, self.setting.costs

    def select(self, available: Mapping[str, Offer]) -> Choice:
        awake = {arm: offer for arm, offer in available.items() if arm in self.num_rounds}
        if not any(offer.max_num_draft_tokens for offer in awake.values()) or self.setting.num_draft_tokens == 0:
            return Choice(NULL_ARM, 0)
        return self.choose(awake)

    def update(self, round_id: int, feedback: RoundRecord) -> None:
        arm, length = feedback.arm, feedback.num_draft_tokens
        if arm not in self.num_rounds and arm != NULL_ARM:
            return
        if self._put_aside is None:
            self._costs.add_round(
                arm, length, feedback.draft_seconds, feedback.verify_seconds, feedback.catch_up_seconds
            )
        if arm not in self.num_rounds or (length == 0 and arm != NULL_ARM):
            return
        self.num_rounds[arm] += 1
        if length:
            self.total_reward[arm] += self.setting.reward.value(feedback)
            self.hazards.add(arm, feedback.positions, list(self.setting.reward.evidence(feedback)))

    def mean(self, arm: str) -> float:
        """Mean reward of an arm, in the reward's unit."""
        return self.total_reward[arm] / self.num_rounds[arm]

    def length(self, arm: str, offer: Offer, least: int = 0) -> int:
        """The arm's block length: the fixed one as far as the arm can go, or the one with most tokens a second."""
        if self.setting.num_draft_tokens is not None:
            return min(self.setting.num_draft_tokens, offer.max_num_draft_tokens)
        expected = self.hazards.expected_tokens(arm, offer.positions)
        return best_length(expected, lambda n: self._costs.round(arm, n), min(least, offer.max_num_draft_tokens))

    def state(self) -> dict[str, Any]:
        return {
            "policy": type(self).__name__,
            "arms": list(self.setting.arms),
            "num_rounds": dict(self.num_rounds),
            "total_reward": dict(self.total_reward),
            "hazards": self.hazards.state(),
            "own": self.own_state(),
            "costs": self.setting.costs.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        for name, mine in (("policy", type(self).__name__), ("arms", list(self.setting.arms))):
            if state.get(name) != mine:
                raise UsageError(f"bandit state: expected the {name} {mine}, got {state.get(name)}")
        before = self.state()
        try:
            self._load(state)
            self.setting.costs.load(state["costs"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            self._load(before)
            self.setting.costs.load(before["costs"])
            raise UsageError(f"bandit state: expected what state() returns, got a broken one ({error!r})") from error

    def _load(self, state: Mapping[str, Any]) -> None:
        self.num_rounds = {arm: float(state["num_rounds"][arm]) for arm in self.setting.arms}
        self.total_reward = {arm: float(state["total_reward"][arm]) for arm in self.setting.arms}
        self.hazards.load(state["hazards"])
        self.load_own_state(state["own"])

    def own_state(self) -> dict[str, Any]:
        """What a policy keeps beyond the common statistics."""
        return {}

    def load_own_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Put back what `own_state` returned."""
