"""The target's features of answers, computed once, kept in a file: training reads them in every epoch."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metasd.core import MetaSDError
from metasd.features import LAST, FeatureTap
from metasd.training.answers import Answer

CONTEXT = 512
"""So many of a prompt's last tokens are kept beside the answer's: a head's attention sees what is near."""
_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Sample:
    """One answer with the last tokens of its prompt, T tokens; the last `num_outputs` of them are the answer's."""

    token_ids: Tensor  # [T] int64
    features: Tensor  # [T, H] the target's, behind its final norm
    num_outputs: int


class FeatureStore:
    """Features of answers, in `folder`; what a run before left there is not computed again.

    Args:
        folder: where the files lie.
        size: H of the target.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size
        folder.mkdir(parents=True, exist_ok=True)
        self._data, self._index = folder / "features.f16", folder / "index.jsonl"
        self._places: dict[str, tuple[int, int]] = {}
        if self._index.exists():
            for line in self._index.read_text().splitlines():
                row = json.loads(line)
                self._places[row["key"]] = row["start"], row["length"]
        self._map: np.memmap[Any, Any] | None = None
        self._end = max((start + length for start, length in self._places.values()), default=0)

    def fill(self, model: Any, answers: Sequence[Answer], advance: Callable[[int], None]) -> None:
        """Compute what is missing, in batches of about equal length; `advance` hears how many tokens."""
        todo = [answer for answer in answers if _key(answer) not in self._places]
        for answer in answers:
            if _key(answer) in self._places:
                advance(_num_tokens(answer))
        todo.sort(key=lambda answer: len(answer.prompt_ids) + len(answer.output_ids))
        tap = FeatureTap(model, (LAST,))
        tap.is_on = True
        decoder = model.get_decoder()
        first = 0
        with torch.inference_mode(), self._data.open("r+b" if self._data.exists() else "w+b") as data:
            data.seek(self._end * self._size * 2)
            with self._index.open("a") as index:
                while first < len(todo):
                    batch = [todo[first]]
                    while (
                        first + len(batch) < len(todo)
                        and (len(batch) + 1) * _num_tokens(todo[first + len(batch)]) <= _BATCH_TOKENS
                    ):
                        batch.append(todo[first + len(batch)])
                    first += len(batch)
                    hidden = _forward(decoder, tap, batch)
                    for answer, row in zip(batch, hidden, strict=True):
                        length = min(len(answer.prompt_ids), CONTEXT) + len(answer.output_ids)
                        kept = row[_num_tokens(answer) - length : _num_tokens(answer)].to(torch.float16)
                        if not torch.isfinite(kept).all():
                            raise MetaSDError("the target's features do not fit into 16 bits")
                        data.write(kept.cpu().numpy().tobytes())
                        index.write(json.dumps({"key": _key(answer), "start": self._end, "length": length}) + "\n")
                        self._places[_key(answer)] = self._end, length
                        self._end += length
                        advance(_num_tokens(answer))
                    data.flush()
                    index.flush()

    def sample(self, answer: Answer) -> Sample:
        """The stored features of an answer that `fill` has seen."""
        start, length = self._places[_key(answer)]
        if self._map is None or self._map.shape[0] < self._end:
            self._map = np.memmap(self._data, dtype=np.float16, mode="r", shape=(self._end, self._size))
        features = torch.from_numpy(np.asarray(self._map[start : start + length], dtype=np.float32))
        ids = (answer.prompt_ids + answer.output_ids)[-length:]
        return Sample(torch.tensor(ids), features, len(answer.output_ids))


def _forward(decoder: Any, tap: FeatureTap, batch: Sequence[Answer]) -> Tensor:
    device = next(decoder.parameters()).device
    longest = max(map(_num_tokens, batch))
    ids = torch.zeros(len(batch), longest, dtype=torch.int64)
    for row, answer in zip(ids, batch, strict=True):  # padding behind: with causal attention nobody sees it
        row[: _num_tokens(answer)] = torch.tensor(answer.prompt_ids + answer.output_ids)
    decoder(input_ids=ids.to(device), use_cache=False)
    return tap.take()[LAST]


def _num_tokens(answer: Answer) -> int:
    return len(answer.prompt_ids) + len(answer.output_ids)


def _key(answer: Answer) -> str:
    return hashlib.sha256(json.dumps([answer.prompt_ids, answer.output_ids]).encode()).hexdigest()[:24]
