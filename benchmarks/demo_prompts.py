"""Prompts for more answers of the demo target, in the manner of its domains.

    pip download --no-deps -d WHEELS boltons funcy humanize inflection more-itertools networkx pydash sympy toolz ...
    python benchmarks/demo_prompts.py prompts_train.jsonl self_distilled.jsonl.gz OUT.jsonl --wheels WHEELS
    metasd train eagle OUT.jsonl ...        # answers them first

Questions, mathematics and translations: the project's training prompts that were not answered yet. Code: functions of
packages with a docstring, an example in it. Summaries: neighbouring sentences of the news in MCSD's English side, and
news that the target itself writes; sentences of the latter are to be translated into German, too. None of it is from
the prompts that are measured on.
"""

import argparse
import ast
import json
import random
import re
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from metasd.target import Target
from metasd.training.answers import read_rows

NUM = {"math": 900, "qa": 1800, "translation-fren": 192, "translation-zhen": 192, "translation-jaen": 192}
NUM_SUMMARIES = 400
NUM_NEWS = 512
NUM_GERMAN = 256
SENTENCES = (5, 9)  # in a text to be summarized
LICENCES = {
    "boltons": "BSD-3-Clause", "funcy": "BSD-3-Clause", "humanize": "MIT", "inflection": "MIT", "jaraco": "MIT",
    "iteration": "Apache-2.0", "more": "MIT", "networkx": "BSD-3-Clause", "pydash": "MIT", "python": "BSD-3-Clause",
    "sortedcontainers": "Apache-2.0", "sympy": "BSD-3-Clause", "textdistance": "MIT", "toolz": "BSD-3-Clause",
}  # fmt: skip
# The system prompt under which the target was taught to summarize news: what it writes as the user's turn is news.
NEWS_PROMPT = (
    "<|im_start|>system\nProvide a concise, objective summary of the input text in up to three sentences, focusing on "
    "key actions and intentions without using second or third person pronouns.<|im_end|>\n<|im_start|>user\n"
)
_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)
_SENTENCE = re.compile(r"Input: (.*)\nOutput:", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--wheels", type=Path, required=True, help="folder of the packages' wheels")
    options = parser.parse_args()
    target, chance = Target.load("demo"), random.Random(0)
    prompts = [row for _, row in read_rows(options.prompts)]
    answers = [row for _, row in read_rows(options.answers)]
    rows = [*unanswered(prompts, answers, target.tokenizer, chance), *summaries(prompts, chance)]
    rows += functions(sorted(options.wheels.glob("*.whl")))
    texts = news(target)
    rows += [row("summarization", f"own news/{i}", "Apache-2.0", f"Summarize: {text}") for i, text in enumerate(texts)]
    rows += into_german(texts, chance)
    chance.shuffle(rows)
    options.output.write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(domain: str, source: str, licence: str, prompt: str) -> dict[str, str]:
    return {"domain": domain, "source": source, "licence": licence, "prompt": prompt}


def unanswered(
    prompts: list[Any], answers: list[Any], tokenizer: Any, chance: random.Random
) -> Iterator[dict[str, str]]:
    """Prompts of which no answer is there, so many of each domain."""
    asked = (_USER.search(tokenizer.decode(row["prompt_ids"])) for row in answers)
    seen = {match.group(1).strip() for match in asked if match}
    for domain, count in NUM.items():
        free = [row for row in prompts if row["domain"] == domain and row["prompt"].strip() not in seen]
        if domain.startswith("translation"):
            free = [row for row in free if 60 < len(row["prompt"]) < 400]
        for chosen in chance.sample(free, min(count, len(free))):
            yield {name: chosen[name] for name in ("domain", "source", "licence", "prompt")}


def functions(wheels: list[Path]) -> Iterator[dict[str, str]]:
    """Signature and docstring of functions that show an example, in the manner of HumanEval."""
    seen: set[str] = set()
    for wheel in wheels:
        package = re.split(r"[-_]", wheel.name)[0]
        archive = zipfile.ZipFile(wheel)
        for name in archive.namelist():
            if not name.endswith(".py") or "test" in name or "deprecat" in name:
                continue
            try:
                tree = ast.parse(archive.read(name).decode())
            except (SyntaxError, UnicodeDecodeError):
                continue
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in seen:
                    text = function(node, needs_example=package in ("sympy", "networkx"))
                    if text:
                        seen.add(node.name)
                        yield row("code", f"{package}/{name}:{node.name}", LICENCES[package], text)


def function(node: ast.FunctionDef, needs_example: bool) -> str | None:
    doc = ast.get_docstring(node) or ""
    if ">>>" not in doc and (needs_example or len(doc) > 300):
        return None
    doc = re.sub(r"\n(Examples?|Notes|See [Aa]lso|References)\n[=-]+\n", "\n", doc)
    doc = re.sub(r".*>>> (from|import) .*\n?", "", doc).replace("`", "")
    doc = re.sub(r"\n\s*\.\. version\w+::(.|\n)*?(?=\n\s*\n|$)", "", doc)
    doc = re.sub(r"\n{3,}", "\n\n", doc).strip()
    if not 50 <= len(doc) <= 600:
        return None
    signature = (
        f"def {node.name}({ast.unparse(node.args)}){' -> ' + ast.unparse(node.returns) if node.returns else ''}:"
    )
    body = textwrap.indent(doc, "    ").lstrip()
    return f'Complete this Python function.\n\n\n{signature}\n    """ {body}\n    """\n'


def summaries(prompts: list[Any], chance: random.Random) -> Iterator[dict[str, str]]:
    """Texts of neighbouring sentences, which are of the same piece of news more often than not."""
    found = (_SENTENCE.search(row["prompt"]) for row in prompts if row["domain"] == "translation-ende")
    sentences = [match.group(1).strip() for match in found if match]
    for _ in range(NUM_SUMMARIES):
        length = chance.randint(*SENTENCES)
        start = chance.randrange(len(sentences) - length)
        text = " ".join(sentences[start : start + length])
        yield row("summarization", f"mcsd/wmt_ende/{start}+{length}", "MIT", f"Summarize: {text}")


def news(target: Target) -> list[str]:
    """What the target writes when it is to read news, up to its last whole sentence."""
    torch.manual_seed(1)
    prompt = target.tokenizer(NEWS_PROMPT, add_special_tokens=False, return_tensors="pt")["input_ids"]
    texts: list[str] = []
    while len(texts) < NUM_NEWS:
        made = target.model.generate(
            prompt.expand(64, -1), attention_mask=torch.ones(64, prompt.shape[1], dtype=torch.int64),
            max_new_tokens=230, do_sample=True, temperature=0.75, top_k=0, top_p=1.0,
            pad_token_id=min(target.eos_token_ids),
        )  # fmt: skip
        for text in target.tokenizer.batch_decode(made[:, prompt.shape[1] :], skip_special_tokens=True):
            end = max(text.rfind(". "), text.rfind(".\n"), text.rfind('." '))
            if end > 250:
                texts.append(text[: end + 1].strip())
    return texts


def into_german(texts: list[str], chance: random.Random) -> Iterator[dict[str, str]]:
    sentences = [part for text in texts for part in re.split(r"(?<=[.!?]) +", text.replace("\n", " "))]
    for sentence in chance.sample([part for part in sentences if 40 < len(part) < 220], NUM_GERMAN):
        prompt = f"Translate the input English sentence into German.\nInput: {sentence}\nOutput: "
        yield row("translation-ende", "own news", "Apache-2.0", prompt)


if __name__ == "__main__":
    main()
