"""`metasd train router`: the classifier of prompts for the bandit `router`, from prompts and their domains."""

from pathlib import Path
from typing import Any

from metasd.bandits.router import PromptClassifier
from metasd.core import MetaSDError, refuse
from metasd.target import Target
from metasd.training.answers import Answer, read_rows, split_answers
from metasd.training.distill import is_wanted, text_of
from metasd.training.job import Job


def train(job: Job) -> dict[str, Any]:
    """Count the prompts' tokens by domain.

    Args:
        job: answers, of which the prompts are looked at, and the file for the classifier.

    Returns:
        facts of the run, `held_out_accuracy` among them.

    Raises:
        UsageError: there are fewer than two domains.
        MetaSDError: the file cannot be written.
    """
    domains = sorted({answer.domain for answer in job.answers})
    if len(domains) < 2:
        raise refuse("data", "prompts of at least two domains", ", ".join(domains) or "none")
    train_answers, held_out = split_answers(job.answers)
    job.advance("counting", 0, len(train_answers), "")
    classifier = PromptClassifier.fit((answer.domain, answer.prompt_ids) for answer in train_answers)
    hits = sum(classifier.label_of(answer.prompt_ids) == answer.domain for answer in held_out)
    try:
        job.output.parent.mkdir(parents=True, exist_ok=True)
        classifier.save(job.output)
    except OSError as error:
        raise MetaSDError(f"--output: cannot write {str(job.output)!r}: {error.strerror}") from None
    job.advance("counting", len(train_answers), len(train_answers), "")
    return {
        "kind": "router",
        "num_prompts": len(train_answers),
        "num_held_out": len(held_out),
        "held_out_accuracy": round(hits / len(held_out), 4) if held_out else None,
        **job.metadata,
        "domains": ", ".join(domains),
        "use": f"--bandit router:path={job.output},{domains[0]}=ARM,other=ARM",
    }


def prompts_of(target: Target, path: Path, domains: tuple[str, ...]) -> list[Answer]:
    """The prompts of a file, through the target's template, as answers without an answer.

    Raises:
        MetaSDError: the file cannot be read.
        UsageError: no row is left.
    """
    rows = [row for _, row in read_rows(path) if is_wanted(row, domains)]
    if not rows:
        raise refuse("domains", f"some that {path.name} holds", ", ".join(domains))
    return [Answer(str(row.get("domain", "")), "", 0.0, tuple(_encoded(target, text_of(row))), ()) for row in rows]


def _encoded(target: Target, text: str) -> list[int]:
    has_template = target.tokenizer.chat_template is not None
    return target.encode([{"role": "user", "content": text}] if has_template else text)
