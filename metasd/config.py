"""What a user can ask for: the sampling parameters of a request and the settings of an engine, checked on creation."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from metasd.core import SamplingLaw, refuse

OBJECTIVES = ("speed", "tokens")
SCORINGS = ("block", "row")
CATCH_UPS = ("lazy", "eager")
LOOPS = ("auto", "static", "host")
DELAYS = ("auto", 0, 1)
SCORED = ("off", "free", "all", "auto")
RULES = ("token", "block")
MAX_NUM_DRAFT_TOKENS = 8
"""The longest block that `num_draft_tokens="auto"` considers."""
MAX_CONTEXT = 8192
"""Tokens that memory is taken for where nobody says how many."""

PRESETS: dict[str, dict[str, Any]] = {
    # Kim, Jung, Yun (arXiv 2604.05417): UCB on block divergence, most tokens a round, fresh statistics for each query.
    "metasd-paper": {
        "bandit": "ucb:carry=query",
        "reward": "bd",
        "objective": "tokens",
        "num_draft_tokens": 5,
    },
}


def _number(name: str, value: object, *, least: float, most: float = math.inf, integer: bool = False) -> None:
    kind = "an integer" if integer else "a number"
    bounds = f"{kind} of at least {least:g}" + (f" and at most {most:g}" if most < math.inf else "")
    if isinstance(value, bool) or not isinstance(value, int if integer else (int, float)):
        raise refuse(name, bounds, repr(value))
    if not (math.isfinite(value) and least <= value <= most):
        raise refuse(name, bounds, repr(value))


@dataclass(frozen=True)
class SamplingParams:
    """How one request is decoded.

    Args:
        temperature: 0 (greedy) or more.
        max_new_tokens: at least 1.
        top_k: keep this many tokens; 0 keeps all.
        top_p: keep the smallest set of tokens with this mass, in (0, 1].
        min_p: keep tokens of at least this share of the largest probability, in [0, 1].
        seed: 0 to 2^63 - 1. With a seed and a temperature the clocks and the past requests have no say: the same
            request gives the same tokens. None: drawn from torch's global generator.
        n: how many answers; the others come in `result.alternatives`.
        stop: strings that end the answer; the text ends before the string.
        ignore_eos: go on after the end-of-sequence token.
        min_new_tokens: no end-of-sequence token and no stop string before this many tokens.
        repetition_penalty: above 0; divides positive and multiplies negative logits of tokens in prompt and answer.
        frequency_penalty, presence_penalty: in [-2, 2]; subtracted once for each, or for any, occurrence in the answer.
        logprobs: also return the log-probability of each token and of this many alternatives, under the target's raw
            softmax.
        logits_processors: callables `(input_ids [1, L], scores [1, V]) -> scores`, as in transformers. Each is called
            once for each emitted token, with the committed tokens before it, unless it has `is_stateless = True`; then
            it may also be called with drafted tokens in the prefix, which is faster.
        stopping_criteria: callables `(input_ids [1, L], scores) -> bool`, as in transformers, asked after every token.
        num_beams: only 1; speculative decoding follows one sequence.
        label: what kind of request it is; only the bandit `oracle` asks for it.

    Raises:
        UsageError: a value is out of its range.
    """

    temperature: float = 0.0
    max_new_tokens: int = 128
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logprobs: int | None = None
    logits_processors: Sequence[Callable[..., Any]] = ()
    stopping_criteria: Sequence[Callable[..., Any]] = ()
    num_beams: int = 1
    label: str | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, least=0)
        _number("max_new_tokens", self.max_new_tokens, least=1, integer=True)
        _number("top_k", self.top_k, least=0, integer=True)
        _number("top_p", self.top_p, least=0, most=1)
        if self.top_p == 0:
            raise refuse("top_p", "a number above 0 (1 keeps every token)", self.top_p)
        _number("min_p", self.min_p, least=0, most=1)
        if self.seed is not None:
            _number("seed", self.seed, least=0, most=2**63 - 1, integer=True)
        _number("n", self.n, least=1, integer=True)
        _number("min_new_tokens", self.min_new_tokens, least=0, most=self.max_new_tokens, integer=True)
        _number("repetition_penalty", self.repetition_penalty, least=0)
        if self.repetition_penalty == 0:
            raise refuse("repetition_penalty", "a number above 0 (1 changes nothing)", self.repetition_penalty)
        _number("frequency_penalty", self.frequency_penalty, least=-2, most=2)
        _number("presence_penalty", self.presence_penalty, least=-2, most=2)
        if self.logprobs is not None:
            _number("logprobs", self.logprobs, least=0, integer=True)
        if self.num_beams != 1:
            raise refuse(
                "num_beams", "1: a drafter speculates on one sequence, so there is no beam search", self.num_beams
            )
        if not isinstance(self.stop, Iterable):
            raise refuse("stop", "a string or a sequence of strings", repr(self.stop))
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for text in stop:
            if not isinstance(text, str) or not text:
                raise refuse("stop", "non-empty strings", repr(text))
        object.__setattr__(self, "stop", stop)
        for name in ("logits_processors", "stopping_criteria"):
            if not isinstance(getattr(self, name), Iterable):
                raise refuse(name, "a sequence of callables", repr(getattr(self, name)))
            given = tuple(getattr(self, name))
            for entry in given:
                if not callable(entry):
                    raise refuse(name, "callables", repr(entry))
            object.__setattr__(self, name, given)

    @property
    def law(self) -> SamplingLaw:
        return SamplingLaw(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def is_reproducible(self) -> bool:
        """Whether the answer may depend on nothing but the request: an explicit seed, and a law that is drawn from."""
        return self.seed is not None and not self.law.is_greedy


@dataclass(frozen=True)
class EngineConfig:
    """How an engine decodes. `MetaSD.from_pretrained` documents each field.

    Raises:
        UsageError: a value is unknown or out of its range.
    """

    bandit: Any = "auto"
    reward: str = "auto"
    objective: str = "speed"
    num_draft_tokens: int | str = "auto"
    rule: str = "token"
    scoring: str = "block"
    kv_budget: int | None = None
    max_context: int | None = None
    catch_up: str = "lazy"
    loop: str = "auto"
    delay: int | str = "auto"
    token_scores: str = "auto"
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        for name, known in (
            ("objective", OBJECTIVES),
            ("rule", RULES),
            ("scoring", SCORINGS),
            ("catch_up", CATCH_UPS),
            ("loop", LOOPS),
            ("delay", DELAYS),
            ("token_scores", SCORED),
        ):
            if getattr(self, name) not in known:
                raise refuse(name, f"one of {', '.join(map(str, known))}", repr(getattr(self, name)))
        if self.num_draft_tokens != "auto":
            if isinstance(self.num_draft_tokens, str):
                raise refuse("num_draft_tokens", '"auto" or an integer of at least 0', repr(self.num_draft_tokens))
            _number("num_draft_tokens", self.num_draft_tokens, least=0, integer=True)
        for name in ("kv_budget", "max_context"):
            if getattr(self, name) is not None:
                _number(name, getattr(self, name), least=1, integer=True)

    @staticmethod
    def build(preset: str | None = None, **given: Any) -> "EngineConfig":
        """The defaults, changed by the preset, changed by what is given explicitly.

        Raises:
            UsageError: the preset or an option is unknown.
        """
        if preset is not None and preset not in PRESETS:
            raise refuse("preset", f"one of {', '.join(PRESETS)}", repr(preset))
        known = {entry.name for entry in fields(EngineConfig)}
        for name in given:
            if name not in known:
                raise refuse("from_pretrained", f"options among {', '.join(sorted(known))}", repr(name))
        return replace(EngineConfig(), **{**PRESETS.get(preset or "", {}), **given})
