"""The package flashspec, with its prompt lookup: it needs no second model."""

import importlib
import logging
from typing import Any, Self

import torch

from metasd.bench.answers import Answer
from metasd.bench.systems import System, Unavailable, Workshop, without_options
from metasd.bench.transformers_peers import now
from metasd.config import SamplingParams
from metasd.target import Target


class FlashSpec(System):
    """flashspec's engine over the same model object, with `NgramDrafter` and its other defaults.

    It tells seconds of each step, and reads the prompt in the first one.
    """

    name = "flashspec"

    def __init__(self, target: Target, package: Any, engine_parts: Any) -> None:
        self._target, self._package, self._parts = target, package, engine_parts
        self._engines: dict[float, Any] = {}

    @classmethod
    def build(cls, shop: Workshop, rest: str) -> Self:
        without_options("flashspec", rest)
        try:
            package: Any = importlib.import_module("flashspec")
            parts: Any = importlib.import_module("flashspec.engine")
        except ImportError as error:
            raise Unavailable(f"{error.name} is not installed: pip install flashspec") from None
        logging.getLogger("flashspec").setLevel(logging.ERROR)  # else its log lines go through the progress bar
        return cls(shop.target, package, parts)

    def decode(self, prompt_ids: list[int], params: SamplingParams) -> Answer:
        target = self._target
        engine = self._engine(params.temperature)
        begin = now(target.device)
        with torch.inference_mode():
            result = engine.generate(
                torch.tensor([prompt_ids], device=target.device),
                max_new_tokens=params.max_new_tokens,
                eos_token_ids=sorted(target.eos_token_ids),
            )
        end = now(target.device)
        token_ids = tuple(token for token in result.output_ids[0].tolist() if token >= 0)
        first = result.arm_steps[0]
        seconds = sum(step.seconds for step in result.arm_steps[1:])
        return Answer(
            token_ids=token_ids,
            num_timed_tokens=len(token_ids) - first.emitted,
            seconds=seconds,
            prefill_seconds=end - begin - seconds,
            steps=tuple(step.emitted for step in result.arm_steps),
            text=target.tokenizer.decode(token_ids, skip_special_tokens=True),
        )

    def _engine(self, temperature: float) -> Any:
        if temperature not in self._engines:
            package, parts, device = self._package, self._parts, self._target.device
            dtype = str(self._target.model.dtype).removeprefix("torch.")
            config = package.FlashSpecConfig(
                device=str(device),
                dtype=dtype,
                bandit=package.BanditConfig(n_arms=1),
                sampling=package.SamplingConfig(temperature=temperature),
            )
            target = parts.TargetModel("target", device, self._target.model.dtype, model=self._target.model)
            self._engines[temperature] = package.SpeculativeEngine(config, [parts.NgramDrafter()], target)
        return self._engines[temperature]
