"""From a prompt file to an outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metasd.bench.engines import specialists
from metasd.bench.journal import Journal
from metasd.bench.lossless import compare
from metasd.bench.measure import Advance, Plan, digest, measure
from metasd.bench.outcome import Outcome
from metasd.bench.passport import passport
from metasd.bench.statistics import table
from metasd.bench.systems import Workshop, resolve
from metasd.bench.workload import BenchPrompt
from metasd.core import NULL_ARM
from metasd.drafters import load_drafters
from metasd.drafters.demo import entries
from metasd.target import Target

_ROUND_UP = 64  # tokens: caches get no larger than the run needs


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        systems: specifications, separated by commas; see `metasd.bench.systems`.
        target: "demo", a folder or a hub id.
        drafters: the pool, as `load_drafters` takes it.
        plan: how often, how long.
        device, dtype, scoring: of the target.
        options: more fields of EngineConfig, for every engine.
        arm_of: the drafter for a domain, where the user names one.
        router, assistant: see `Workshop`.
        journal: file for measurements as they come.
        is_resumed: whether those that are there count.
    """

    systems: str
    target: str = "demo"
    drafters: str = "demo"
    plan: Plan = field(default_factory=Plan)
    device: str = "auto"
    dtype: str = "auto"
    scoring: str = "block"
    options: Mapping[str, Any] = field(default_factory=dict)
    arm_of: Mapping[str, str] = field(default_factory=dict)
    router: Path | None = None
    assistant: str | None = None
    journal: Path | None = None
    is_resumed: bool = False


@dataclass(frozen=True)
class Bench:
    """A run that is ready to start: everything is loaded and checked.

    Attributes:
        request: what was asked for.
        shop: target and drafters.
        prompts: with the ids that the target reads.
    """

    request: Request
    shop: Workshop
    prompts: Sequence[tuple[BenchPrompt, list[int]]]

    @classmethod
    def prepare(cls, request: Request, prompts: Sequence[BenchPrompt], target: Target | None = None) -> "Bench":
        """Load the models.

        Args:
            request: what is asked for.
            prompts: of the run; read through the target's chat template, where it has one.
            target: a ready one, instead of the request's.

        Raises:
            UsageError: an arm is unknown.
            MetaSDError: a model cannot be loaded.
        """
        if target is None:
            target = Target.load(request.target, device=request.device, dtype=request.dtype, scoring=request.scoring)
        arms = load_drafters(request.drafters, target)
        is_chat = target.tokenizer.chat_template is not None
        encoded = [
            (prompt, target.encode([{"role": "user", "content": prompt.text}] if is_chat else prompt.text))
            for prompt in prompts
        ]
        longest = max(len(ids) for _, ids in encoded) + request.plan.max_new_tokens
        context = min(target.context_length, -(-longest // _ROUND_UP) * _ROUND_UP)
        domains = list(dict.fromkeys(prompt.domain for prompt in prompts))
        names = [name for name in arms if name != NULL_ARM]
        listed = entries() if target.source == "demo" else []
        shop = Workshop(
            target=target,
            arms=arms,
            options={"max_context": context, **request.options},
            arm_by_domain=specialists(names, domains, listed, request.arm_of),
            router=request.router,
            assistant=request.assistant,
        )
        return cls(request, shop, encoded)

    def run(self, advance: Advance = lambda stage, done, total, note: None) -> Outcome:
        """Measure, compare and count.

        Args:
            advance: told of progress.

        Raises:
            UsageError: a system is unknown, or the journal is of another run.
        """
        request, shop, prompts = self.request, self.shop, [prompt for prompt, _ in self.prompts]
        systems, not_run = resolve(request.systems, shop)
        facts = passport(shop.target.device, shop.target.model.dtype)
        settings = {
            "target": Path(request.target).name,  # folders of this machine say nothing
            "drafters": ", ".join(shop.singles),
            "options": {name: str(value) for name, value in shop.options.items()},
            "prompts": f"{len(prompts)}, {digest(prompts)}",
        }
        fixed = {name: facts[name] for name in ("commit", "versions", "device", "threads", "dtype")}
        lengths = {"max_new_tokens": request.plan.max_new_tokens, "temperature": request.plan.temperature}
        journal = Journal(request.journal, {**fixed, **settings, **lengths}, request.is_resumed)
        rows = measure(systems, self.prompts, request.plan, journal, advance)
        verdict = compare(rows, {prompt.id: ids for prompt, ids in self.prompts}, shop.engine([]))
        return Outcome(facts, settings, request.plan, rows, table(rows), verdict, not_run, shop.arm_by_domain)
