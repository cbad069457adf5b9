"""`metasd bench PROMPTS`: systems side by side, lossless or not, how fast, and why."""

from pathlib import Path
from typing import Annotated, Any

import typer

from metasd.bench.measure import Plan
from metasd.bench.outcome import Outcome
from metasd.bench.run import Bench, Request
from metasd.bench.specbench import write_answers
from metasd.bench.systems import DEFAULT, SHORT
from metasd.bench.tables import round_table, speed_table
from metasd.bench.workload import SHIPPED, choose, read_workload, shipped
from metasd.config import RULES
from metasd.console import (
    Bars,
    DeviceOption,
    DraftersOption,
    DtypeOption,
    JsonOption,
    TargetOption,
    line,
    log_to,
    out,
    status,
    write_json,
)
from metasd.core import MetaSDError, refuse

_SHORT_NUM, _SHORT_TOKENS = 2, 40


def bench(
    prompts: Annotated[
        str | None,
        typer.Argument(help=f"JSONL with turns or prompt, Spec-Bench's own, or one of {', '.join(SHIPPED)} (default)."),
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help=f"A few minutes: {SHORT}; {_SHORT_NUM} prompts a domain.")
    ] = False,
    systems: Annotated[
        str | None, typer.Option(help=f"Systems, separated by commas. Default: {DEFAULT}. Bandits as name:key=value.")
    ] = None,
    domains: Annotated[str | None, typer.Option(help="Domains to take, separated by commas; default: all.")] = None,
    num: Annotated[int | None, typer.Option(min=1, help="Prompts of each domain; default: all.")] = None,
    repetitions: Annotated[int, typer.Option(help="Times that each prompt is decoded by each system.")] = 1,
    max_new_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens of an answer. Default: 64.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy, and then answers are compared.")] = 0.0,
    seeds: Annotated[str, typer.Option(help="Above temperature 0: integers, separated by commas.")] = "0",
    target: TargetOption = "demo",
    drafters: DraftersOption = "demo",
    num_draft_tokens: Annotated[str, typer.Option(help="Block length of every engine: auto or a number.")] = "auto",
    rule: Annotated[str, typer.Option(help=f"Acceptance rule: {' or '.join(RULES)}.")] = "token",
    router: Annotated[Path | None, typer.Option(help="Classifier from `metasd train router`, for `router`.")] = None,
    assistant: Annotated[
        str | None, typer.Option(help="Model of transformers' assisted decoding, or a number: early exit.")
    ] = None,
    arm_of: Annotated[
        list[str] | None, typer.Option(help="DOMAIN=ARM for `specialist` and `router`; may be given often.")
    ] = None,
    journal: Annotated[Path | None, typer.Option(help="JSONL to which each answer is written as it comes.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the journal of a run that was stopped.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report with plots; needs matplotlib.")] = None,
    spec_bench: Annotated[
        Path | None, typer.Option(help="Folder for answers in Spec-Bench's format, a file for each system.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    json_file: JsonOption = None,
) -> None:
    """Systems side by side on a prompt file: speed, acceptance, arms; greedy answers must equal plain decoding's."""
    if resume and journal is None:
        raise refuse("--resume", "--journal FILE beside it", "none")
    draw_page = _page_writer() if html is not None else None
    plan = Plan(
        repetitions=repetitions,
        max_new_tokens=max_new_tokens or (_SHORT_TOKENS if short else 64),
        temperature=temperature,
        seeds=_seeds(seeds),
    )
    source = shipped(prompts or SHIPPED[0]) if prompts is None or prompts in SHIPPED else Path(prompts)
    wanted = [name.strip() for name in (domains or "").split(",") if name.strip()]
    chosen = choose(read_workload(source), wanted, num or (_SHORT_NUM if short else None))
    request = Request(
        systems=systems or (SHORT if short else DEFAULT),
        target=target,
        drafters=drafters,
        plan=plan,
        device=device,
        dtype=dtype,
        options={"num_draft_tokens": _block_length(num_draft_tokens), "rule": rule},
        arm_of=dict(_pair(text) for text in arm_of or ()),
        router=router,
        assistant=assistant,
        journal=journal,
        is_resumed=resume,
    )
    with status(f"loading {target}") as shown, log_to(shown):
        ready = Bench.prepare(request, chosen)
    with Bars() as bars:
        outcome = ready.run(bars.advance)
    show(outcome)
    write_json(json_file, outcome.facts())
    if spec_bench is not None:
        write_answers(outcome.rows, spec_bench)
    if draw_page is not None:
        draw_page(outcome, html)
    if not outcome.verdict.is_passed:
        raise typer.Exit(1)


def show(outcome: Outcome) -> None:
    """Print the tables and what must be known beside them."""
    out.print(speed_table(outcome))
    out.print(round_table(outcome))
    for note in outcome.notes():
        line(note)


def _page_writer() -> Any:
    """Loaded before anything is measured: a missing package must not cost a run."""
    try:
        from metasd.bench.page import write_page
    except ImportError as error:
        raise MetaSDError(f'--html: {error.name} is missing: pip install "metasd[plots]"') from None
    return write_page


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise refuse("--seeds", "integers, separated by commas", repr(text)) from None


def _block_length(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise refuse("--num-draft-tokens", "auto or an integer of at least 0", repr(text)) from None


def _pair(text: str) -> tuple[str, str]:
    domain, separator, arm = text.partition("=")
    if not (domain and separator and arm):
        raise refuse("--arm-of", "DOMAIN=ARM", repr(text))
    return domain, arm
