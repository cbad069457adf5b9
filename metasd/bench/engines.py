"""Systems of this engine: plain, one drafter alone, the specialist, the router, and every policy."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from metasd.bandits.router import PromptClassifier
from metasd.bench.answers import Answer
from metasd.bench.systems import GENERALIST, System, Unavailable, Workshop, without_options
from metasd.config import PRESETS, SamplingParams
from metasd.core import NULL_ARM, refuse
from metasd.drafters.demo import Entry
from metasd.engine import MetaSD

OTHER = "other"


class OfEngine(System):
    """A pool and a policy.

    Args:
        name: in every table.
        engine: which plays.
    """

    def __init__(self, name: str, engine: MetaSD) -> None:
        self.name, self.engine = name, engine
        self._initial = engine.bandit.state()

    def decode(self, prompt_ids: list[int], params: SamplingParams) -> Answer:
        return Answer.of_result(self.engine.generate(prompt_ids, params))

    def state(self) -> dict[str, Any] | None:
        return self.engine.bandit.state()

    def load(self, state: dict[str, Any] | None) -> None:
        if state is None:  # what the machine costs was not learned from prompts, and is not measured again
            state = {**self._initial, "costs": self.engine.costs.state()}
        self.engine.bandit.load(state)


class Plain(System):
    """No drafts, through the same loop: what every speed-up is a multiple of."""

    def __init__(self, engine: MetaSD) -> None:
        self.name, self._engine = "plain", engine

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        without_options("plain", rest)
        return cls(shop.engine([]))

    def decode(self, prompt_ids: list[int], params: SamplingParams) -> Answer:
        return Answer.of_result(self._engine.generate_plain(prompt_ids, params))


class Single(OfEngine):
    """One drafter alone, beside the null arm: `arm:NAME`."""

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        if rest not in shop.singles:
            raise refuse("--systems", f"arm:NAME with a name among {', '.join(shop.singles)}", repr(f"arm:{rest}"))
        return cls(f"arm:{rest}", shop.engine([rest], bandit=f"fixed:arm={rest}"))


class Policy(OfEngine):
    """The whole pool with a policy, or with the settings of a preset: `ucb:beta=0.1`, `metasd-paper`."""

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        return cls(rest, shop.engine(preset=rest) if rest in PRESETS else shop.engine(bandit=rest))


class Specialist(OfEngine):
    """For each domain the drafter that was made for it, alone, by the label of the prompt."""

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        without_options("specialist", rest)
        table = shop.arm_by_domain
        if not any(label != OTHER for label in table):
            raise Unavailable("no drafter of the pool is made for one of these domains; --arm-of DOMAIN=ARM names one")
        return cls("specialist", shop.engine(_used(table), bandit=_spec("oracle", table)))


class Router(OfEngine):
    """For each label of a prompt classifier the drafter made for it: it sees the prompt only."""

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        without_options("router", rest)
        if shop.router is None:
            raise Unavailable("it needs --router FILE, from `metasd train router`")
        labels = PromptClassifier.load(shop.router).counts
        table = {label: shop.arm_by_domain.get(label, "") for label in labels}
        for label in labels:
            if not table[label]:
                table[label] = shop.arm_by_domain.get(OTHER, "")
            if not table[label]:
                way_out = f"--arm-of {label}=ARM or --arm-of {OTHER}=ARM"
                raise refuse("--router", f"labels for which the pool has a drafter ({way_out})", repr(label))
        return cls("router", shop.engine(_used(table), bandit=_spec(f"router:path={shop.router}", table)))


def specialists(
    arms: Sequence[str], domains: Sequence[str], listed: Sequence[Entry] = (), given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The drafter made for each domain: named by the user, or listed for it in a manifest, or named after it.

    Of several the one counts whose domain is narrower, then whose acceptance length on its own held-out answers is
    higher. A generalist stands for "other", where there is one.

    Args:
        arms: of the pool.
        domains: of prompts.
        listed: a manifest's entries; their facts name domains and acceptance on held-out answers.
        given: arms by domain that are to be used, whatever else is known.

    Raises:
        UsageError: an arm that was given is not in the pool.
    """
    known = {entry.name: entry.facts for entry in listed}
    table = {}
    for domain in domains:
        found = []
        for arm in arms:
            facts = known.get(arm, {})
            own = [*str(facts.get("domains", "")).split(","), arm.split("-", 1)[-1]]
            narrow = [len(each) for each in own if domain == each or (each and domain.startswith(f"{each}-"))]
            narrow += [len(domain) for each in [arm] if each.endswith(f"-{domain}")]
            if narrow:
                found.append((max(narrow), float(facts.get("mean_acceptance_length", 0.0)), arm))
        if found:
            table[domain] = max(found, key=lambda each: each[:2])[2]
    generalists = [arm for arm in arms if GENERALIST in arm]
    if generalists:
        table[OTHER] = generalists[0]
    for domain, arm in (given or {}).items():
        if arm not in arms:
            raise refuse(f"--arm-of {domain}", f"one of {', '.join(arms)}", repr(arm))
        table[domain] = arm
    return table


def _used(table: Mapping[str, str]) -> list[str]:
    return [arm for arm in dict.fromkeys(table.values()) if arm != NULL_ARM]


def _spec(name: str, table: Mapping[str, str]) -> str:
    full = {OTHER: NULL_ARM, **table}
    return name + (":" if ":" not in name else ",") + ",".join(f"{label}={arm}" for label, arm in full.items())
