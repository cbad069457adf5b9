"""When an answer ends, exactly at the token where plain decoding would end it; and its text, as it becomes certain."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from metasd.config import SamplingParams
from metasd.core import FinishReason


class Detokenizer:
    """Text of a growing list of tokens; a character that is split over tokens is held back until it is whole."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = self._read = 0  # decode from _start; up to _read, and maybe more, has been returned
        self._returned = ""  # what has been returned of the text from _start on

    def push(self, token_id: int) -> str:
        """The text that this token makes certain."""
        self._ids.append(token_id)
        text = self._decode()
        certain = text.rstrip("�")
        if len(certain) <= len(self._returned):
            return ""
        piece = certain[len(self._returned) :]
        if certain != text:
            self._returned = certain
            return piece
        self._start, self._read = self._read, len(self._ids)
        self._returned = self._tokenizer.decode(
            self._ids[self._start : self._read], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return piece

    def flush(self) -> str:
        """What was held back, at the end of the answer."""
        piece = self._decode()[len(self._returned) :]
        self._start = self._read = len(self._ids)
        self._returned = ""
        return piece

    def _decode(self) -> str:
        text: str = self._tokenizer.decode(
            self._ids[self._start :], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


class StopScanner:
    """Cuts each round's tokens at the first one that ends the answer.

    A token that ends the answer is the last of `token_ids`; the text ends before a stop string. Where a stop and the
    length limit meet at one token, the reason is "stop".

    Args:
        params: of the request.
        prompt_ids: what stopping criteria see before the answer.
        tokenizer: of the target.
        eos_token_ids: of the target.
        device: where stopping criteria expect their ids.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        tokenizer: Any,
        eos_token_ids: frozenset[int],
        device: torch.device,
    ) -> None:
        self._params, self._device = params, device
        special = set(getattr(tokenizer, "all_special_tokens", ()))
        self._end_ids = set() if params.ignore_eos else set(eos_token_ids)
        self._end_ids |= {tokenizer.convert_tokens_to_ids(text) for text in params.stop if text in special}
        self._stop = [text for text in params.stop if text not in special]  # special tokens never show in the text
        self._criteria: Sequence[Callable[..., Any]] = params.stopping_criteria
        self._prompt_ids = list(prompt_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._is_cut = False  # the text ends before a stop string

    def scan(self, token_ids: Sequence[int]) -> list[int]:
        """Take a round's tokens; returns those that belong to the answer; `finish_reason` tells if it ended."""
        for index, token in enumerate(token_ids):
            if self._take(token):
                return list(token_ids[: index + 1])
        return list(token_ids)

    def _take(self, token: int) -> bool:
        self.token_ids.append(token)
        searched = len(self.text)
        self.text += self._detokenizer.push(token)
        is_long_enough = len(self.token_ids) >= self._params.min_new_tokens
        is_end = is_long_enough and (self._ends_text(searched) or token in self._end_ids)
        if self._criterion_fires() or is_end:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self._params.max_new_tokens:
            self.finish_reason = "length"
        if self.finish_reason is None:
            return False
        if not self._is_cut:
            self.text += self._detokenizer.flush()
        return True

    def _ends_text(self, searched: int) -> bool:
        """Cut the text before the first stop string that ends in what is new."""
        hits = [self.text.find(stop, max(0, searched - len(stop) + 1)) for stop in self._stop]
        found = [hit for hit in hits if hit >= 0]
        if found:
            self.text, self._is_cut = self.text[: min(found)], True
        return bool(found)

    def _criterion_fires(self) -> bool:
        if not self._criteria:
            return False
        ids = torch.tensor([self._prompt_ids + self.token_ids], device=self._device)
        # Every criterion is asked every time: one with a state must see every token.
        verdicts = [bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in self._criteria]
        return any(verdicts)

    def certain_text(self) -> str:
        """The text so far, without an end that might yet become a stop string."""
        if self.finish_reason is not None:
            return self.text
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:size]):
                    longest = size
                    break
        return self.text[: len(self.text) - longest]
