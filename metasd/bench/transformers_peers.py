"""transformers' own decoding: `generate`, the same compiled, its prompt lookup, and its assisted decoding."""

import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch

from metasd.bench.answers import Answer
from metasd.bench.systems import System, Unavailable, Workshop, without_options
from metasd.config import SamplingParams
from metasd.core import refuse
from metasd.target import Target, load_model

LOOKUP_TOKENS = 5


class _Steps:
    """A stopping criterion that never stops: it notes when each step ends, and how long the text is then."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.ends: list[tuple[float, int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.ends.append((now(self._device), input_ids.shape[1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def now(device: torch.device) -> float:
    """Seconds, when the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Generate(System):
    """`model.generate`.

    Args:
        target: whose model is used.
        name: in every table.
        options: more arguments of `generate`.
    """

    def __init__(self, target: Target, name: str, **options: Any) -> None:
        self._target, self.name, self._options = target, name, options

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        without_options("transformers", rest)
        return cls(shop.target, "transformers")

    def decode(self, prompt_ids: list[int], params: SamplingParams) -> Answer:
        target = self._target
        prompt, steps = torch.tensor([prompt_ids], device=target.device), _Steps(target.device)
        sampling: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if params.temperature:
            sampling = {"do_sample": True, "temperature": params.temperature, "top_p": 1.0, "top_k": 0}
        begin = now(target.device)
        with torch.inference_mode():
            output = target.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=params.max_new_tokens,
                eos_token_id=sorted(target.eos_token_ids) or None,
                pad_token_id=0,
                stopping_criteria=[steps],
                **sampling,
                **self._options,
            )
        end = now(target.device)
        token_ids = output[0, len(prompt_ids) :].tolist()
        first_end, first_length = steps.ends[0]
        lengths = [len(prompt_ids), *(min(length, output.shape[1]) for _, length in steps.ends)]
        return Answer(
            token_ids=tuple(token_ids),
            num_timed_tokens=output.shape[1] - first_length,
            seconds=end - first_end,
            prefill_seconds=first_end - begin,
            steps=tuple(after - before for before, after in pairwise(lengths)),
            text=target.tokenizer.decode(token_ids, skip_special_tokens=True),
        )


class PromptLookup(Generate):
    """transformers' prompt lookup: `prompt-lookup`, with five tokens, or `prompt-lookup:TOKENS`."""

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        name = f"prompt-lookup:{rest}" if rest else "prompt-lookup"
        if rest and not (rest.isdigit() and int(rest)):
            raise refuse("--systems", "prompt-lookup or prompt-lookup:TOKENS", repr(name))
        return cls(shop.target, name, prompt_lookup_num_tokens=int(rest or LOOKUP_TOKENS))


class Compiled(Generate):
    """`model.generate` with a static cache and a compiled forward pass."""

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        from transformers import CompileConfig

        without_options("compiled", rest)
        if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
            raise Unavailable("torch.compile needs a C++ compiler, and none is in the path")
        config: Any = CompileConfig(mode="reduce-overhead" if shop.target.device.type == "cuda" else "default")
        config._compile_all_devices = True  # transformers' own switch for devices other than GPUs
        return cls(shop.target, "compiled", cache_implementation="static", compile_config=config)


class Assistant(Generate):
    """transformers' assisted decoding with a smaller model, or with the target's own first layers: `assistant:8`."""

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        source = rest or shop.assistant
        if not source:
            raise Unavailable("it needs --assistant MODEL, a smaller model with the same tokenizer")
        if source.isdigit():
            return cls(shop.target, f"assistant:{source}", assistant_early_exit=int(source))
        model, tokenizer = load_model(source, "--assistant", shop.target.device, shop.target.model.dtype)
        if tokenizer.get_vocab() != shop.target.tokenizer.get_vocab():
            raise refuse("--assistant", "a model with the target's tokenizer", repr(source))
        return cls(shop.target, f"assistant:{Path(source).name}", assistant_model=model)
