"""`metasd train KIND DATA`: drafters for the user's own target, and a router of prompts."""

import inspect
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from metasd.console import Bars, DeviceOption, JsonOption, TargetOption, line, log_to, out, status, write_json
from metasd.core import refuse
from metasd.target import Target
from metasd.training import TRAINERS
from metasd.training.answers import read_answers
from metasd.training.distill import distill, is_prompt_file
from metasd.training.job import Job
from metasd.training.router import prompts_of


def train(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(TRAINERS.names())}.")],
    data: Annotated[
        Path, typer.Argument(help="JSONL, also gzipped: prompts, or answers with prompt_ids and output_ids.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the drafter goes: a folder, or a file.")],
    target: TargetOption = "demo",
    domain: Annotated[list[str] | None, typer.Option(help="Only rows of this domain; may be given often.")] = None,
    work: Annotated[
        Path | None, typer.Option(help="Folder for answers and features, which later runs use again.")
    ] = None,
    start_from: Annotated[Path | None, typer.Option(help="eagle, lm: a drafter to start from.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="eagle, lm: passes over the answers.")] = None,
    learning_rate: Annotated[float | None, typer.Option(min=0.0, help="eagle, lm: the largest.")] = None,
    max_context: Annotated[int | None, typer.Option(min=1, max=15, help="ngram-lm: tokens of a context.")] = None,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="ngram-lm: rare contexts go until it fits.")] = None,
    draft_vocab: Annotated[int | None, typer.Option(min=1, help="eagle: rows of the vocabulary matrix.")] = None,
    num_layers: Annotated[int | None, typer.Option(min=1, help="lm: layers of a new model.")] = None,
    hidden_size: Annotated[int | None, typer.Option(min=8, help="lm: size of a new model.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Prompts only: tokens of an answer.")] = 144,
    licence: Annotated[str, typer.Option(help="Licence of the data, written beside the weights.")] = "unknown",
    weight_licence: Annotated[str, typer.Option(help="Licence of the weights that are made.")] = "unknown",
    device: DeviceOption = "auto",
    json_file: JsonOption = None,
) -> None:
    """Make a drafter for a target: from prompts, which it answers first, or from answers; or a router, from prompts."""
    trainer = TRAINERS.load(kind)
    options = {
        "epochs": epochs,
        "learning_rate": learning_rate,
        "start_from": start_from,
        "max_context": max_context,
        "max_bytes": max_bytes,
        "draft_vocab": draft_vocab,
        "num_layers": num_layers,
        "hidden_size": hidden_size,
    }
    given = {name: value for name, value in options.items() if value is not None}
    known = inspect.signature(trainer).parameters
    for name in given:
        if name not in known:
            raise refuse(f"--{name.replace('_', '-')}", f"none for {kind}", given[name])
    work = work or output.parent / "training"
    with status(f"loading {target}") as shown, log_to(shown):
        loaded = Target.load(target, device=device)
    domains = tuple(domain or ())
    with Bars() as bars:
        if kind == "router" and is_prompt_file(data):
            answers = prompts_of(loaded, data, domains)  # what the target says to them does not matter
        elif is_prompt_file(data):
            answers_file = work / f"{data.name.split('.')[0]}-answers.jsonl"
            distill(loaded, data, answers_file, domains, max_new_tokens=max_new_tokens, advance=bars.advance)
            answers = read_answers(answers_file, loaded.vocab_size, domains)
        else:
            answers = read_answers(data, loaded.vocab_size, domains)
        job = Job(
            target=loaded,
            answers=answers,
            output=output,
            work=work / "features",
            metadata={
                "target": target,
                "data": data.name,
                "domains": ", ".join(domains) or "all",
                "data_licence": licence,
                "weight_licence": weight_licence,
                "command": _command(),
            },
            advance=bars.advance,
        )
        facts = trainer(job, **given)
    for name, value in facts.items():
        if name not in ("recipe", "loss", "use"):
            line(f"{name}: {value}")
    out.print(f"use it with [bold]{facts.get('use', f'--drafters {output}')}[/bold]", highlight=False, soft_wrap=True)
    write_json(json_file, facts)


def _command() -> str:
    """What was typed, with files by their names: folders are of this machine."""
    words = [Path(word).name if "/" in word and Path(word).parent.is_dir() else word for word in sys.argv[1:]]
    return shlex.join(["metasd", *words])
