"""What a bandit is. To add one: subclass Policy, implement `choose`, add a line to the registry in `__init__.py`."""

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from metasd.bandits.costs import CostTable
from metasd.bandits.lengths import Hazards
from metasd.bandits.prompts import PromptKinds
from metasd.bandits.rewards import Observation, Reward
from metasd.core import NULL_ARM, Choice, Offer, Position, RoundRecord, UsageError, refuse
from metasd.registry import annotation_name

_MAX_UNIT = 1e9  # beyond it, sums are brought back to a unit of 1
_PLAN_ROUNDS = 16  # a block length is thought over again at the latest after so many rounds
_NEW_KIND = 0.25  # what is known of all prompts counts that much for a kind that was not met before


@dataclass(frozen=True)
class Context:
    """What a policy may know of a request before its first round."""

    prompt_ids: Sequence[int] = ()
    label: str | None = None  # what kind of request the caller says it is


@runtime_checkable
class Bandit(Protocol):
    """Picks the arm and the block length of each round, from past rounds only."""

    def start(self, reproducible: bool = False, context: Context = Context()) -> None:
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

    Statistics are sums in which the newest round has the weight `unit`, so that forgetting costs nothing: new rounds
    weigh more.

    Args:
        setting: what it plays for.
        carry: "query" forgets between requests (the paper); "decay" lets the past count `decay` times as much; "prompt"
            does that for each kind of prompt by itself (see `prompts.py`).
        decay: in (0, 1].
    """

    default_reward: ClassVar[str] = "rb"
    needs_scores: ClassVar[bool] = False
    """Whether it learns from the token scores of arms that did not draft."""
    needs_hazards: ClassVar[bool] = False
    """Whether it asks for acceptance by position also where blocks have a fixed length and costs do not count."""

    def __init__(self, setting: Setting, carry: str = "decay", decay: float = 0.9) -> None:
        if carry not in ("query", "decay", "prompt"):
            raise refuse("carry", "query, decay or prompt", repr(carry))
        if not 0 < decay <= 1:
            raise refuse("decay", "a number above 0 and at most 1", decay)
        self.setting, self._carry, self._decay = setting, carry, decay
        self._costs = setting.costs
        self._is_speed = setting.objective == "speed"
        self._keeps_hazards = self.needs_hazards or self._is_speed or setting.num_draft_tokens is None
        self._plans: dict[str, tuple[Sequence[Position], int, tuple[int, float, float]]] = {}
        self._put_aside: dict[str, Any] | None = None
        self._kinds = PromptKinds() if carry == "prompt" else None
        self._by_kind: dict[str, dict[str, Any]] = {}
        self.context = Context()
        self.reset()
        self._initial = self.state()

    @classmethod
    def from_options(cls, setting: Setting, options: Mapping[str, Any]) -> Self:
        """Build from the options of a spec such as `ucb:beta=0.1`.

        Raises:
            UsageError: an option is unknown, or of the wrong type.
        """
        return cls(setting, **cls.checked(options))

    @classmethod
    def checked(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a spec, in which all numbers are floats, as the parameters want them.

        Raises:
            UsageError: an option is unknown, or of the wrong type.
        """
        known = {
            name: annotation_name(parameter)
            for base in reversed(cls.__mro__[:-1])  # all but object
            for name, parameter in inspect.signature(base).parameters.items()
            if name != "setting"
            and parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        }
        given = dict(options)
        for key, value in options.items():
            if key not in known:
                raise refuse(f"bandit {cls.__name__}", f"options among {', '.join(sorted(known))}", repr(key))
            if known[key] in ("float", "int") and not (isinstance(value, float) and math.isfinite(value)):
                raise refuse(key, "a finite number", repr(value))
            if known[key] == "int":
                if value < 0 or value != int(value):
                    raise refuse(key, "an integer of at least 0", value)
                given[key] = int(value)
        return given

    def reset(self) -> None:
        """Forget everything."""
        self.unit, self._num_updates = 1.0, 0
        self._plans.clear()
        self.num_rounds: dict[str, float] = dict.fromkeys(self.setting.arms, 0.0)
        self.total_reward: dict[str, float] = dict.fromkeys(self.setting.arms, 0.0)
        self.hazards = Hazards()

    @abstractmethod
    def choose(self, available: Mapping[str, Offer]) -> Choice:
        """Choose among arms that are awake and have something to propose; the null arm is among them if it may be."""

    def start(self, reproducible: bool = False, context: Context = Context()) -> None:
        self.context = context
        self._plans.clear()
        self.setting.reward.start()
        if reproducible:
            self._put_aside, self._costs = copy.deepcopy(self.state()), self.setting.costs.nominal()
            self._load(self._initial)
        elif self._carry == "query":
            self.reset()
        else:
            if self._kinds is not None:
                self._turn_to(self._kinds.of(context.prompt_ids))
            self.forget(self._decay)
        self.begin()

    def begin(self) -> None:  # noqa: B027 - optional
        """A request begins: what a policy counts within one request starts anew."""

    @property
    def is_reproducible(self) -> bool:
        """Whether clocks must have no say in this request."""
        return self._put_aside is not None

    def finish(self) -> None:
        if self._put_aside is not None:
            self._load(self._put_aside)
            self._put_aside, self._costs = None, self.setting.costs

    def select(self, available: Mapping[str, Offer]) -> Choice:
        if not available.keys() <= self.num_rounds.keys():
            available = {arm: offer for arm, offer in available.items() if arm in self.num_rounds}
        if self.setting.num_draft_tokens != 0:
            for offer in available.values():
                if offer.positions:
                    return self.choose(available)
        return Choice(NULL_ARM, 0)

    def update(self, round_id: int, feedback: RoundRecord) -> None:
        arm, length = feedback.arm, feedback.num_draft_tokens
        if arm not in self.num_rounds and arm != NULL_ARM:
            return
        if self._put_aside is None:
            self._costs.add_round(
                arm, length, feedback.draft_seconds, feedback.verify_seconds, feedback.catch_up_seconds
            )
        self._num_updates += 1
        if arm in self.num_rounds and (length or arm == NULL_ARM):
            self._plans.pop(arm, None)
            self.learn(feedback)

    def learn(self, record: RoundRecord) -> None:
        """Take what a round says of the arms."""
        observed = self.setting.reward.observe(record)
        if record.arm == NULL_ARM:
            observed.append((NULL_ARM, 0.0, 1.0))
        self.add(record, observed, self.unit)

    def add(self, record: RoundRecord, observed: Iterable[Observation], weight: float) -> None:
        """Add observations to the statistics; a negative weight takes them back."""
        num_rounds, total_reward = self.num_rounds, self.total_reward
        for arm, value, count in observed:
            if arm in num_rounds:
                num_rounds[arm] += weight * count
                total_reward[arm] += weight * count * value
        if record.num_draft_tokens and self._keeps_hazards:
            self.hazards.add(record.arm, record.positions, self.setting.reward.evidence(record), weight)

    def forget(self, factor: float) -> None:
        """Let all that was learned so far count `factor` times as much."""
        self.unit /= factor
        if self.unit > _MAX_UNIT:
            self.rescale()

    def rescale(self) -> None:
        """Statistics in which the newest round has the weight 1."""
        for table in (self.num_rounds, self.total_reward):
            for arm in table:
                table[arm] /= self.unit
        self.hazards.scale(1 / self.unit)
        self.unit = 1.0

    def mean(self, arm: str) -> float:
        """Mean reward of an arm, in the reward's unit."""
        return self.total_reward[arm] / self.num_rounds[arm]

    def played(self, arm: str) -> float:
        """Rounds of an arm, as far as they are not forgotten."""
        return self.num_rounds[arm] / self.unit

    def length(self, arm: str, offer: Offer, least: int = 0) -> int:
        """The arm's block length: the fixed one as far as the arm can go, or the one with most tokens a second."""
        if self.setting.num_draft_tokens is not None:
            return min(self.setting.num_draft_tokens, len(offer.positions))
        return self.plan(arm, offer, least)[0]

    def plan(self, arm: str, offer: Offer, least: int = 0) -> tuple[int, float, float]:
        """The arm's best block length now, the accepted tokens that may be expected of it, and its seconds.

        It is thought over where the arm was played or offers something else, and every so many rounds: costs creep.
        """
        positions = offer.positions
        known = self._plans.get(arm)
        if known is not None and known[0] is positions and known[1] > self._num_updates and known[2][0] >= least:
            return known[2]
        per_token, catch_up = self._costs.draft_and_catch_up(arm)
        verify = self._costs.by_length(len(positions))
        least = min(least, len(positions))
        plan = self.hazards.best_length(arm, positions, self.unit, per_token, catch_up, verify, least)
        self._plans[arm] = positions, self._num_updates + _PLAN_ROUNDS, plan
        return plan

    def worth(self, arm: str, offer: Offer) -> float:
        """What the arm's next round may be expected to yield: its mean reward (objective "tokens"), or tokens a second.
        Without any knowledge of the arm -inf."""
        if self.setting.objective == "tokens":
            return self.mean(arm) if self.num_rounds[arm] else -math.inf
        if arm == NULL_ARM or not offer.positions:
            return 1 / self._costs.plain()
        if self.setting.num_draft_tokens is None:
            _, tokens, seconds = self.plan(arm, offer, least=1)
            return (1 + tokens) / seconds
        if not self.num_rounds[arm]:
            return -math.inf
        length = self.length(arm, offer)
        return (1 + self.setting.reward.tokens(self.mean(arm), length)) / self._costs.round(arm, length)

    def best(self, available: Mapping[str, Offer]) -> Choice:
        """The arm of most worth; the null arm only for tokens a second, or where nothing is known of the others."""
        is_speed = self.setting.objective == "speed"
        worth = {
            arm: self.worth(arm, offer)
            for arm, offer in available.items()
            if (offer.positions if arm != NULL_ARM else is_speed)
        }
        arm = max(worth, key=worth.__getitem__)
        if worth[arm] == -math.inf:
            arm = next(arm for arm, offer in available.items() if offer.positions)
        return Choice(arm, self.length(arm, available[arm], least=1) if arm != NULL_ARM else 0)

    def gain(self, value: float, arm: str, num_draft_tokens: int) -> float:
        """A reward as a share of the best conceivable, in [0, 1]; for tokens a second at the arm's cost."""
        reward = self.setting.reward
        if self.setting.objective == "tokens" or not num_draft_tokens:
            return min(1.0, max(0.0, value / reward.most(num_draft_tokens or 1)))
        rate = (1 + reward.tokens(value, num_draft_tokens)) * self._costs.plain()
        return min(1.0, rate / self._costs.round(arm, num_draft_tokens) / (1 + num_draft_tokens))

    def _turn_to(self, kind: str) -> None:
        """Put the statistics of one kind of prompt aside, and take up those of another."""
        assert self._kinds is not None
        if self._kinds.current is not None:
            self._by_kind[self._kinds.current] = self._statistics()
        self._kinds.current = kind
        if kind in self._by_kind:
            self._load_statistics(self._by_kind[kind])
        else:  # a new kind begins with what is known of all, worth little
            self.forget(_NEW_KIND)

    def state(self) -> dict[str, Any]:
        return {
            "policy": type(self).__name__,
            "arms": list(self.setting.arms),
            **self._statistics(),
            "kinds": None if self._kinds is None else self._kinds.state() | {"statistics": self._by_kind},
            "costs": self.setting.costs.state(),
        }

    def _statistics(self) -> dict[str, Any]:
        self.rescale()
        return {
            "num_rounds": dict(self.num_rounds),
            "total_reward": dict(self.total_reward),
            "hazards": self.hazards.state(),
            "own": self.own_state(),
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
        self._load_statistics(state)
        if self._kinds is not None:
            self._kinds.load(state["kinds"])
            self._by_kind = copy.deepcopy(dict(state["kinds"]["statistics"]))

    def _load_statistics(self, state: Mapping[str, Any]) -> None:
        self._plans.clear()
        self.num_rounds = {arm: float(state["num_rounds"][arm]) for arm in self.setting.arms}
        self.total_reward = {arm: float(state["total_reward"][arm]) for arm in self.setting.arms}
        self.unit = 1.0
        self.hazards.load(state["hazards"])
        self.load_own_state(state["own"])

    def own_state(self) -> dict[str, Any]:
        """What a policy keeps beyond the common statistics."""
        return {}

    def load_own_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Put back what `own_state` returned."""
