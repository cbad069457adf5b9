"""Suffix decoding (Oliaro et al., 2024, in its spirit): follow the longest suffix that occurred before, by counts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metasd.core import Coins, Draft, MetaSDError, Offer, Request, refuse
from metasd.drafters.base import Drafter
from metasd.drafters.copying import copied_position
from metasd_kernels._C import SuffixAutomaton

if TYPE_CHECKING:
    from metasd.target import Target


class SuffixDrafter(Drafter):
    """Finds the longest suffix of prompt and answer that occurred before and follows its most frequent continuation.

    The automaton also says how often each continuation followed; from that share and the length of the match comes a
    prior for acceptance, which the bandit corrects by what it sees.

    With a datastore it also searches texts that the user gives, such as past answers, and every sequence that it has
    seen since: it grows with use, in memory.

    Args:
        target: what it drafts for.
        min_match: the shortest match; below it the arm sleeps.
        datastore: file of texts to search as well: `.jsonl` with "output_ids" or "text" in a row, or plain text, where
            an empty line ends a text.
        max_tokens: of the datastore; beyond them it begins again with the file.
        name: of the arm.

    Raises:
        MetaSDError: the datastore cannot be read.
    """

    follows = True

    def __init__(
        self,
        target: "Target",
        min_match: int = 1,
        datastore: str = "",
        max_tokens: int = 4_000_000,
        name: str = "suffix",
    ) -> None:
        super().__init__(target)
        self.name = name
        if min_match < 1:
            raise refuse("suffix", "min_match of at least 1", min_match)
        self._min_match = min_match
        self._texts = read_datastore(Path(datastore).expanduser(), target) if datastore else None
        self._max_tokens = max_tokens
        num_given = sum(map(len, self._texts or ()))
        if num_given > max_tokens:
            raise refuse("max_tokens", f"at least the datastore's {num_given}", max_tokens)
        self._automaton = SuffixAutomaton()
        self._begin_datastore()

    def _begin_datastore(self) -> None:
        self._automaton.clear()
        self._separator = self.target.vocab_size  # each text has its own behind it, so that no match crosses two texts
        for text in self._texts or ():
            self._automaton.extend(text)
            self._separate()

    def _separate(self) -> None:
        self._automaton.extend([self._separator])
        self._separator += 1

    def reset(self, request: Request) -> None:
        if self._texts is None:
            self._automaton.clear()
        elif self._automaton.size() + request.max_num_tokens > self._max_tokens:
            self._begin_datastore()
        else:
            self._separate()
        self._path: list[int] = []
        self.commit(request.prompt_ids)

    def commit(self, token_ids: Sequence[int], features: Tensor | None = None) -> None:
        self._automaton.extend(list(token_ids))

    def offer(self, max_num_draft_tokens: int) -> Offer | None:
        self._path, shares, match_length = self._automaton.draft(max_num_draft_tokens, self._min_match)
        end = next((k for k, token in enumerate(self._path) if token >= self.target.vocab_size), len(self._path))
        self._path, shares = self._path[:end], shares[:end]  # a text of the datastore ended there
        if not self._path:
            return None
        return Offer(tuple(copied_position(match_length + k, share) for k, share in enumerate(shares)))

    def draft(self, num_draft_tokens: int, coins: Coins) -> Draft | None:
        if not self._path:
            return None
        return Draft(torch.tensor([self._path[:num_draft_tokens]], device=self.target.device))

    def memory_bytes(self) -> dict[str, int]:
        return {"index": self._automaton.memory_bytes()}


def read_datastore(path: Path, target: "Target") -> list[list[int]]:
    """Token ids of each text of a file.

    Raises:
        MetaSDError: the file cannot be read, or a row has neither "output_ids" nor "text".
    """
    texts: list[list[int]] = []
    try:
        content = path.read_text(encoding="utf-8")
        if path.suffix != ".jsonl":
            return [list(target.tokenizer(part)["input_ids"]) for part in content.split("\n\n") if part.strip()]
        for number, line in enumerate(content.splitlines(), start=1):
            row = json.loads(line)
            ids = row.get("output_ids")
            if ids is None and isinstance(row.get("text"), str):
                ids = list(target.tokenizer(row["text"])["input_ids"])
            if not isinstance(ids, list) or not all(
                type(item) is int and 0 <= item < target.vocab_size for item in ids
            ):
                raise MetaSDError(
                    f'datastore {path}, line {number}: expected "output_ids" below {target.vocab_size}, or "text"'
                )
            texts.append(ids)
    except (OSError, UnicodeDecodeError) as error:
        raise MetaSDError(f"datastore: cannot read {str(path)!r}: {error}") from None
    except (ValueError, AttributeError) as error:
        raise MetaSDError(f"datastore {path}, line {len(texts) + 1}: expected a JSON object ({error})") from None
    return texts
