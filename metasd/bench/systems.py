"""What is measured. To add a peer: one file with a `System`, and a line in `SYSTEMS`.

A system's specification is `name` or `name:rest`; a bandit's specification (`ucb:beta=0.1`) and a preset's name are
systems too. Groups stand for several: `singles`, `policies`, `peers`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from metasd.bandits import BANDITS
from metasd.bench.answers import Answer
from metasd.config import PRESETS, EngineConfig, SamplingParams
from metasd.core import NULL_ARM, MetaSDError, refuse
from metasd.drafters import Drafter
from metasd.engine import MetaSD
from metasd.registry import Registry, split_specs
from metasd.target import Target

SYSTEMS = Registry(
    "system",
    {
        "plain": "metasd.bench.engines:Plain",
        "arm": "metasd.bench.engines:Single",
        "specialist": "metasd.bench.engines:Specialist",
        "router": "metasd.bench.engines:Router",
        "policy": "metasd.bench.engines:Policy",
        "transformers": "metasd.bench.transformers_peers:Generate",
        "compiled": "metasd.bench.transformers_peers:Compiled",
        "prompt-lookup": "metasd.bench.transformers_peers:PromptLookup",
        "assistant": "metasd.bench.transformers_peers:Assistant",
        "flashspec": "metasd.bench.flashspec_peer:FlashSpec",
    },
)
PLAIN, ORACLE, GENERALIST = "plain", "oracle", "generalist"
PEERS = ("transformers", "compiled", "prompt-lookup", "assistant", "flashspec")
_NOT_POLICIES = ("fixed", "random", "round-robin", "oracle", "router")
GROUPS = ("singles", GENERALIST, ORACLE, "policies", "peers")
DEFAULT = "plain,peers,singles,specialist,random,round-robin,oracle,router,policies"
SHORT = "plain,prompt-lookup,generalist,specialist,random,metasd-paper,auto"


class Unavailable(MetaSDError):
    """A system that cannot run here, and what it would take."""


@dataclass(frozen=True)
class Workshop:
    """What systems are built from.

    Attributes:
        target: the target; shared by all systems, which take turns.
        arms: the pool's drafters, the null arm among them; shared as well.
        options: fields of EngineConfig for every engine.
        arm_by_domain: the drafter made for each domain; "other" for the rest.
        router: file of a prompt classifier, from `metasd train router`.
        assistant: folder or hub id of the model that transformers' assisted decoding drafts with.
    """

    target: Target
    arms: Mapping[str, Drafter]
    options: Mapping[str, Any] = field(default_factory=dict)
    arm_by_domain: Mapping[str, str] = field(default_factory=dict)
    router: Path | None = None
    assistant: str | None = None

    def engine(self, names: Sequence[str] | None = None, preset: str | None = None, **options: Any) -> MetaSD:
        """An engine over some of the arms, by default all."""
        chosen = dict(self.arms) if names is None else {name: self.arms[name] for name in (*names, NULL_ARM)}
        return MetaSD(self.target, chosen, EngineConfig.build(preset, **{**self.options, **options}))

    @property
    def singles(self) -> list[str]:
        """The drafters that can be played alone."""
        return [name for name in self.arms if name != NULL_ARM]


class System(ABC):
    """Something that answers prompts.

    Attributes:
        name: in every table.
    """

    name: str

    @classmethod
    @abstractmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        """Make one.

        Args:
            shop: what it is built from.
            rest: of the specification, behind the colon.

        Raises:
            Unavailable: it cannot run here; the message says what it would take.
            UsageError: the specification is wrong.
        """

    @abstractmethod
    def decode(self, prompt_ids: list[int], params: SamplingParams) -> Answer:
        """Answer one prompt.

        Args:
            prompt_ids: what the target reads.
            params: temperature and max_new_tokens are set; `label` is the prompt's domain. Sampling draws from torch's
                global generator, which the caller seeds.
        """

    def state(self) -> dict[str, Any] | None:
        """What was learned from prompts, in plain JSON types; None where nothing ever is."""
        return None

    def load(self, state: dict[str, Any] | None) -> None:
        """Put back what `state` returned; None: forget all that was learned from prompts."""
        assert state is None, "a system with a state must load it"


def without_options(name: str, rest: str) -> None:
    """Refuse what stands behind the name of a system that takes nothing there.

    Raises:
        UsageError: there is something.
    """
    if rest:
        raise refuse("--systems", f"{name} without options", repr(f"{name}:{rest}"))


def expand(text: str, shop: Workshop) -> list[str]:
    """Specifications of single systems, each once, `plain` first: everything is compared with it.

    Args:
        text: specifications, separated by commas; groups among them.
        shop: whose arms `singles` and `generalist` stand for.

    Raises:
        UsageError: a name is unknown; the message lists the known ones.
    """
    specs = [PLAIN]
    for spec in split_specs(text):
        if spec in ("singles", ORACLE):  # the oracle is put together from the singles
            specs += [f"arm:{name}" for name in shop.singles]
        elif spec == GENERALIST:
            specs += [f"arm:{name}" for name in shop.singles if GENERALIST in name][:1] or [spec]
        elif spec == "policies":
            specs += [name for name in BANDITS.names() if name not in _NOT_POLICIES] + list(PRESETS)
        elif spec == "peers":
            specs += PEERS
        else:
            specs.append(spec)
    return list(dict.fromkeys(specs))


def resolve(text: str, shop: Workshop) -> tuple[dict[str, System], dict[str, str]]:
    """Build what can run.

    Args:
        text: specifications, separated by commas.
        shop: what they are built from.

    Returns:
        the systems by name, and why each of the others does not run.

    Raises:
        UsageError: a name or an option is unknown.
    """
    systems: dict[str, System] = {}
    not_run: dict[str, str] = {}
    for spec in expand(text, shop):
        try:
            system = _build(spec, shop)
        except Unavailable as error:
            not_run[spec] = str(error)
        else:
            systems[system.name] = system
    return systems, not_run


def _build(spec: str, shop: Workshop) -> System:
    name, _, rest = spec.partition(":")
    if name == GENERALIST:
        raise Unavailable(f"no drafter of the pool has {GENERALIST!r} in its name")
    if name in SYSTEMS and name != "policy":
        kind: type[System] = SYSTEMS.load(name)
        return kind.build(shop, rest)
    if name in BANDITS or spec in PRESETS:
        policy: type[System] = SYSTEMS.load("policy")
        return policy.build(shop, spec)
    known = [*(each for each in SYSTEMS.names() if each != "policy"), *GROUPS, *PRESETS, *BANDITS.names()]
    raise refuse("--systems", f"names among {', '.join(dict.fromkeys(known))}", repr(spec))
