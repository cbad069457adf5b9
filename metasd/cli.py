"""The command line, `metasd generate` and its like. Exit codes: 0, 1 (failure), 2 (usage)."""

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from metasd import check as checks
from metasd import report
from metasd.bandits import load_state, save_state
from metasd.cli_bench import bench
from metasd.cli_matrix import matrix_command
from metasd.cli_simulate import simulate
from metasd.cli_train import train
from metasd.config import SamplingParams
from metasd.console import (
    DeviceOption,
    DraftersOption,
    DtypeOption,
    JsonOption,
    TargetOption,
    err,
    line,
    log_to,
    out,
    progress,
    status,
    write_json,
    write_text,
)
from metasd.core import MetaSDError, UsageError, jsonable, refuse
from metasd.engine import MetaSD
from metasd.integrations.prometheus import PrometheusMetrics
from metasd.metrics import GenerationResult
from metasd.prompts import BUILT_IN, PromptRecord, read_prompts
from metasd.target import Target

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Multi-drafter speculative decoding: one target, a pool of drafters, a bandit that picks one each round.",
)


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; a user message for the chat template.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the prompt from this text file.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not apply the chat template.")] = False,
    target: TargetOption = "demo",
    drafters: DraftersOption = "demo",
    bandit: Annotated[str | None, typer.Option(help="Policy, also as name:key=value. Default: auto.")] = None,
    reward: Annotated[str | None, typer.Option(help="auto, be, bd, rb or cf. Default: auto.")] = None,
    bandit_state: Annotated[
        Path | None,
        typer.Option(help="File with what the policy has learned: read if it is there, written at the end."),
    ] = None,
    objective: Annotated[str | None, typer.Option(help="speed or tokens. Default: speed.")] = None,
    preset: Annotated[str | None, typer.Option(help="metasd-paper: the paper's settings.")] = None,
    num_draft_tokens: Annotated[str | None, typer.Option(help="auto or a number. Default: auto.")] = None,
    rule: Annotated[str, typer.Option(help="Acceptance rule: token or block.")] = "token",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep so many tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens with this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Length limit of the answer.")] = 128,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be given several times.")] = None,
    compare_plain: Annotated[bool, typer.Option("--compare-plain", help="Also decode without drafts.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Show where a round's time goes.")] = False,
    stream: Annotated[bool, typer.Option(help="Show the text as it comes.")] = True,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    metrics_file: Annotated[
        Path | None, typer.Option("--metrics", help="Write the run's metrics to this file, in Prometheus' text format.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Decode one prompt, then show what each drafter did, and the speed."""
    metrics = PrometheusMetrics() if metrics_file is not None else None
    text = _prompt_text(prompt, prompt_file)
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop=tuple(stop or ()),
    )
    engine = _load(
        target,
        drafters,
        preset,
        bandit=bandit,
        reward=reward,
        objective=objective,
        num_draft_tokens=_block_length(num_draft_tokens),
        rule=rule,
        device=device,
        dtype=dtype,
    )
    if bandit_state is not None and bandit_state.exists():
        load_state(engine.bandit, bandit_state)
    if not raw and engine.tokenizer.chat_template is None:
        raise refuse("--raw", "this flag, since the target's tokenizer has no chat template", "a chat message")
    question = text if raw else [{"role": "user", "content": text}]
    result = _answer(engine, question, params, stream)
    if bandit_state is not None:
        save_state(engine.bandit, bandit_state)
    plain = None
    if compare_plain:
        with status("decoding without drafts, for comparison"):
            plain = engine.generate_plain(question, params)
    out.print(report.arm_table(result))
    if profile:
        out.print(report.profile_table(result))
    line(report.speed_line("pool ", result))
    if plain is not None:
        line(report.speed_line("plain", plain))
        line(report.comparison_line(result, plain, params.law.is_greedy))
    if metrics is not None:
        metrics.observe(result)
        write_text(metrics_file, metrics.text(), "--metrics")
    write_json(
        json_file,
        {"result": report.result_json(result), "plain": report.result_json(plain) if plain else None},
    )


@app.command()
def check(
    target: TargetOption = "demo",
    drafters: DraftersOption = "demo",
    prompts: Annotated[Path | None, typer.Option(help="JSONL with turns or prompt; default: built-in prompts.")] = None,
    num: Annotated[int, typer.Option(min=1, help="So many prompts, spread over the file.")] = 6,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 64,
    num_draws: Annotated[int, typer.Option(min=64, help="Draws of each test of the law.")] = 2048,
    num_laws: Annotated[int, typer.Option(min=0, help="Prompts whose law is tested.")] = 2,
    rule: Annotated[str, typer.Option(help="Acceptance rule: token or block.")] = "token",
    scoring: Annotated[str, typer.Option(help="block, or row: one forward pass for each position.")] = "block",
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    json_file: JsonOption = None,
) -> None:
    """Show losslessness on your own models: greedy answers equal plain decoding, sampled ones have its law."""
    records = read_prompts(prompts, num) if prompts else [PromptRecord(text) for text in BUILT_IN[:num]]
    engine = _load(target, drafters, None, rule=rule, scoring=scoring, device=device, dtype=dtype)
    on_chat = engine.tokenizer.chat_template is not None
    greedy: list[checks.GreedyOutcome] = []
    laws: list[checks.LawOutcome] = []
    with progress() as bar:
        task = bar.add_task("greedy answers", total=len(records))
        for record in records:
            greedy.extend(checks.check_greedy(engine, record.text, max_new_tokens, on_chat))
            bar.advance(task)
        calls = -(-num_draws // 64)
        arms = len(engine.pool.arms) - 1
        task = bar.add_task("sampled law", total=calls * arms * min(num_laws, len(records)))
        for record in records[:num_laws]:
            laws.extend(checks.check_law(engine, record.text, num_draws, on_chat, lambda: bar.advance(task)))
        bar.update(task, completed=bar.tasks[task].total)
    out.print(report.greedy_table(greedy))
    for outcome in greedy:
        if not outcome.is_equal:
            kind = "near-tie" if outcome.is_near_tie else "DIFFERENT"
            where = f"token {outcome.position} against {outcome.reference}, margin {outcome.margin:.2e}"
            line(f"{kind}: {where}: {outcome.prompt[:60]!r}")
    if laws:
        out.print(report.law_table(laws))
    elif num_laws:
        line("law not tested: no drafter had anything to propose behind these prompts")
    failed = sum(not (outcome.is_equal or outcome.is_near_tie) for outcome in greedy)
    failed += sum(not outcome.is_passed for outcome in laws)
    verdict = "lossless: every check passed" if not failed else f"NOT lossless: {failed} checks failed"
    line(verdict)
    write_json(json_file, {"greedy": jsonable(greedy), "laws": jsonable(laws), "failed": failed, "verdict": verdict})
    if failed:
        raise typer.Exit(1)


app.command()(bench)
app.command()(train)
app.command("matrix")(matrix_command)
app.command()(simulate)


@app.command()
def info(
    load: Annotated[
        bool, typer.Option("--load", help="Load the demo target and pool, and say what they take.")
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Versions, devices, backends and why one is not available, cache folders, the demo pool and its memory."""
    facts = report.environment()
    out.print(report.environment_table(facts))
    if load:
        with status("loading the demo target") as shown, log_to(shown):
            target = Target.load("demo")
            begin = time.perf_counter()
            engine = MetaSD.from_pretrained(target, drafters="demo")
            facts["pool_seconds"] = round(time.perf_counter() - begin, 2)
        facts["memory"] = report.memory(engine)
        out.print(report.memory_table(facts["memory"], facts["pool_seconds"]))
    write_json(json_file, facts)


def _prompt_text(prompt: str | None, prompt_file: Path | None) -> str:
    if (prompt is None) == (prompt_file is None):
        raise refuse("prompt", "a PROMPT or --prompt-file", "both" if prompt else "neither")
    if prompt_file is not None:
        try:
            prompt = prompt_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MetaSDError(f"prompt: cannot read {str(prompt_file)!r}: {error}") from None
    assert prompt is not None
    if not prompt.strip():
        raise refuse("prompt", "some text", "an empty prompt")
    return prompt


def _block_length(given: str | None) -> int | str | None:
    if given is None or given == "auto":
        return given
    try:
        return int(given)
    except ValueError:
        raise refuse("--num-draft-tokens", "auto or an integer of at least 0", repr(given)) from None


def _load(target: str, drafters: str, preset: str | None, **options: Any) -> MetaSD:
    given = {name: value for name, value in options.items() if value is not None}
    with status(f"loading {target}") as shown, log_to(shown):
        return MetaSD.from_pretrained(target, drafters=drafters, preset=preset, **given)


def _answer(engine: MetaSD, question: Any, params: SamplingParams, stream: bool) -> GenerationResult:
    shown = status("reading the prompt")
    shown.start()
    try:
        pieces = engine.stream(question, params)
        for piece in pieces:
            if stream:
                shown.stop()
                out.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
    finally:
        shown.stop()
    result = pieces.result
    assert result is not None
    if not stream:
        out.print(result.text, end="", markup=False, highlight=False, soft_wrap=True)
    out.print(f"\n[dim]({result.finish_reason})[/dim]\n")
    return result


def _quiet_libraries() -> None:
    from transformers.utils import logging as transformers_logging

    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def main() -> None:
    """Run the command line; every failure is one line on standard error and an exit code."""
    _quiet_libraries()
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (typer.Abort, KeyboardInterrupt):
        err.print("interrupted")
        sys.exit(130)
    except UsageError as error:
        err.print(f"metasd: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except MetaSDError as error:
        err.print(f"metasd: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # the option parser's own errors, whichever it is
            error.show()
            sys.exit(2)
        if os.environ.get("METASD_DEBUG"):
            raise
        text = f"metasd: unexpected {type(error).__name__}: {error} (METASD_DEBUG=1 shows where)"
        err.print(text, markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
