"""A prompt classifier that picks the arm once: the static baseline with which the paper compares."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from metasd.bandits.base import Setting
from metasd.bandits.oracle import Oracle
from metasd.core import UsageError, refuse

_MAX_TOKENS_OF_A_LABEL = 4096  # the most frequent ones are kept


class PromptClassifier:
    """Multinomial naive Bayes over token ids.

    Args:
        counts: by label, how often each token id was seen in its prompts.
        num_prompts: by label.
    """

    def __init__(self, counts: Mapping[str, Mapping[int, int]], num_prompts: Mapping[str, int]) -> None:
        self.counts = {label: dict(tokens) for label, tokens in counts.items()}
        self.num_prompts = dict(num_prompts)
        self._known = set().union(*self.counts.values())
        self._totals = {label: sum(tokens.values()) for label, tokens in self.counts.items()}

    @classmethod
    def fit(cls, examples: Iterable[tuple[str, Sequence[int]]]) -> Self:
        """Learn from pairs of a label and a prompt's token ids."""
        counts: dict[str, Counter[int]] = {}
        num_prompts: Counter[str] = Counter()
        for label, ids in examples:
            counts.setdefault(label, Counter()).update(ids)
            num_prompts[label] += 1
        if not counts:
            raise refuse("examples", "at least one prompt", "none")
        kept = {label: dict(tokens.most_common(_MAX_TOKENS_OF_A_LABEL)) for label, tokens in counts.items()}
        return cls(kept, num_prompts)

    def label_of(self, prompt_ids: Sequence[int]) -> str:
        """The most likely label."""
        seen = [(token, count) for token, count in Counter(prompt_ids).items() if token in self._known]
        size, num_prompts = len(self._known), sum(self.num_prompts.values())

        def score(label: str) -> float:
            counts, total = self.counts[label], self._totals[label] + size
            prior = math.log(self.num_prompts[label] / num_prompts)
            return prior + sum(count * math.log((counts.get(token, 0) + 1) / total) for token, count in seen)

        return max(self.counts, key=score)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps({"counts": self.counts, "num_prompts": self.num_prompts}))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            UsageError: the file is missing or broken.
        """
        try:
            data = json.loads(path.read_text())
            counts = {
                label: {int(token): int(count) for token, count in tokens.items()}
                for label, tokens in data["counts"].items()
            }
            return cls(counts, {label: int(data["num_prompts"][label]) for label in counts})
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise UsageError(f"router: expected a file from `metasd train router`, got {path} ({error!r})") from error


class Router(Oracle):
    """Like the oracle, but the label comes from a classifier of prompts: `router:path=FILE,code=eagle-code,...`.

    Args:
        setting: what it plays for.
        path: the classifier's file.
        arm_by_label: an arm for each label that the classifier knows; that of "other" for those not named.
        options: of `Policy`.
    """

    def __init__(self, setting: Setting, path: str | Path, arm_by_label: Mapping[str, str], **options: Any) -> None:
        self.classifier = PromptClassifier.load(Path(path))
        if "other" not in arm_by_label:
            missing = [label for label in self.classifier.counts if label not in arm_by_label]
            if missing:
                raise refuse(
                    "router", f"an arm for {', '.join(missing)}, or for other", ", ".join(arm_by_label) or "none"
                )
        super().__init__(setting, arm_by_label, **options)

    @classmethod
    def from_options(cls, setting: Setting, options: Mapping[str, Any]) -> Self:
        if "path" not in options:
            raise refuse("router", "path=FILE, from `metasd train router`", "none")
        own = cls.checked({key: value for key, value in options.items() if key in ("path", "carry", "decay")})
        return cls(setting, arm_by_label={key: str(value) for key, value in options.items() if key not in own}, **own)

    def begin(self) -> None:
        if self.context.prompt_ids:
            self._arm = self.arm_of(self.classifier.label_of(self.context.prompt_ids))
