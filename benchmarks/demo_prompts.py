"""Prompts for more answers of the demo target, in the manner of its domains, from the project's training data.

    python benchmarks/demo_prompts.py prompts_train.jsonl self_distilled.jsonl.gz OUT.jsonl
    metasd train eagle OUT.jsonl ...        # answers them first

Mathematics, questions and code: prompts that were not answered yet. Summaries: texts of consecutive sentences of the
news in MCSD's English side (MIT), since the documents of the training data speak of Python alone. Translations into
English: what the target itself made of these sentences in German.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metasd.target import Target
from metasd.training.answers import read_rows

NUM = {"math": 900, "qa": 1800, "code": 900}
NUM_SUMMARIES = 1000
SENTENCES = (5, 9)  # in a text to be summarized
_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)
_SENTENCE = re.compile(r"Input: (.*)\nOutput:", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    tokenizer = Target.load("demo").tokenizer
    chance = random.Random(0)
    prompts = [row for _, row in read_rows(options.prompts)]
    answers = [row for _, row in read_rows(options.answers)]
    rows = [*unanswered(prompts, answers, tokenizer, chance), *summaries(prompts, chance), *back(answers, tokenizer)]
    chance.shuffle(rows)
    options.output.write_text("".join(json.dumps(row) + "\n" for row in rows))


def unanswered(
    prompts: list[Any], answers: list[Any], tokenizer: Any, chance: random.Random
) -> Iterator[dict[str, str]]:
    """Prompts of which no answer is there, so many of each domain."""
    asked = (_USER.search(tokenizer.decode(row["prompt_ids"])) for row in answers)
    seen = {match.group(1).strip() for match in asked if match}
    for domain, count in NUM.items():
        free = [row for row in prompts if row["domain"] == domain and row["prompt"].strip() not in seen]
        for row in chance.sample(free, count):
            yield {name: row[name] for name in ("domain", "source", "licence", "prompt")}


def sentences_of(prompts: list[Any]) -> list[str]:
    found = (_SENTENCE.search(row["prompt"]) for row in prompts if row["domain"] == "translation-ende")
    return [match.group(1).strip() for match in found if match]


def summaries(prompts: list[Any], chance: random.Random) -> Iterator[dict[str, str]]:
    """Texts of neighbouring sentences, which are of the same piece of news more often than not."""
    sentences = sentences_of(prompts)
    for _ in range(NUM_SUMMARIES):
        length = chance.randint(*SENTENCES)
        start = chance.randrange(len(sentences) - length)
        text = " ".join(sentences[start : start + length])
        source = f"mcsd/wmt_ende/{start}+{length}"
        yield {"domain": "summarization", "source": source, "licence": "MIT", "prompt": f"Summarize: {text}"}


def back(answers: list[Any], tokenizer: Any) -> Iterator[dict[str, str]]:
    """The target's German into English."""
    for row in answers:
        if row["domain"] == "translation-ende":
            text = tokenizer.decode(row["output_ids"], skip_special_tokens=True).strip()
            if text:
                prompt = f"Translate German to English: {text}"
                yield {"domain": "translation-deen", "source": row["source"], "licence": "MIT", "prompt": prompt}


if __name__ == "__main__":
    main()
