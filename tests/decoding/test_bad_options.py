"""Unknown names and unusable values of an engine and of a request: the error names the argument and what is known."""

import pathlib
from typing import Any

import pytest
from toys import Asleep, toy_target

from metasd import MetaSD, SamplingParams, UsageError
from metasd.drafters import load_drafters


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafters": ["nrgam"]}, "drafters: expected one of null, ngram, suffix, lm"),
        ({"drafters": ["ngram:max=3"]}, "max_match, min_match, got 'max'"),
        ({"drafters": ["ngram:max_match=2.5"]}, "max_match: expected an integer"),
        ({"drafters": ["ngram:max_match=much"]}, "max_match: expected an integer, got 'much'"),
        ({"drafters": ["ngram:max_match"]}, "expected name:key=value"),
        ({"drafters": ["ngram:min_match=0"]}, "1 <= min_match <= max_match"),
        ({"drafters": ["suffix:min_match=0"]}, "min_match of at least 1"),
        ({"drafters": ["lm"]}, "the option path"),
        ({"drafters": ["ngram", "ngram"]}, "'ngram' twice"),
        ({"drafters": [7]}, "drafters: expected names, paths or Drafter objects, got int"),
        ({"drafters": 7}, "drafters: expected"),
        ({"drafters": ["null:x=1"]}, "options among none"),
        ({"bandit": "usb"}, "bandit: expected one of auto, ucb, discounted-ucb, sliding-ucb"),
        ({"bandit": "ucb:gamma=1"}, "options among beta, carry, decay, got 'gamma'"),
        ({"bandit": "ucb:options=1"}, "got 'options'"),
        ({"bandit": "ucb:beta=wide"}, "beta: expected a finite number"),
        ({"bandit": "ucb:beta=-1"}, "beta: expected a number of at least 0"),
        ({"bandit": "ucb:decay=0"}, "decay: expected a number above 0"),
        ({"bandit": "ucb:decay=slow"}, "decay: expected a finite number"),
        ({"bandit": "ucb:carry=always"}, "carry: expected query, decay or prompt"),
        ({"bandit": "random:seed=x"}, "seed: expected a finite number"),
        ({"bandit": "fixed:arm=other"}, "arm: expected one of ngram, suffix, null"),
        ({"bandit": 3}, "bandit: expected a name or a Bandit"),
        ({"reward": "tokens"}, "reward: expected one of auto, be, bd, rb"),
        ({"objective": "cost"}, "objective: expected one of speed, tokens"),
        ({"rule": "tree"}, "rule: expected one of token, block"),
        ({"scoring": "column"}, "scoring: expected one of block, row"),
        ({"scoring": "row"}, "scoring: expected none beside a ready Target"),
        ({"dtype": "bfloat16"}, "dtype: expected none beside a ready Target"),
        ({"preset": "paper"}, "preset: expected one of metasd-paper"),
        ({"num_draft_tokens": -1}, "num_draft_tokens: expected an integer of at least 0"),
        ({"num_draft_tokens": "many"}, '"auto" or an integer'),
        ({"num_draft_tokens": 2.0}, "num_draft_tokens: expected an integer"),
        ({"kv_budget": 0}, "kv_budget: expected an integer of at least 1"),
        ({"draft_length": 5}, "options among bandit, catch_up, delay, device, dtype, .*got 'draft_length'"),
    ],
)
def test_unknown_names_and_values_of_an_engine(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MetaSD.from_pretrained(toy_target(), **{"drafters": ["ngram", "suffix"], **options})


@pytest.mark.parametrize("device", ["gpu", "cuda:77", 3])
def test_unknown_devices(device: Any, toy_folder: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="device"):
        MetaSD.from_pretrained(str(toy_folder), drafters=["ngram"], device=device)


def test_unknown_dtype(toy_folder: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="dtype: expected one of auto, float32, bfloat16, float16, got 'int8'"):
        MetaSD.from_pretrained(str(toy_folder), drafters=["ngram"], dtype="int8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature: expected a number of at least 0, got 'hot'"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": None}, "temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens: expected an integer of at least 1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens"),
        ({"max_new_tokens": True}, "max_new_tokens"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0}, "top_p: expected a number above 0"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"n": 0}, "n: expected an integer"),
        ({"min_new_tokens": 129}, "min_new_tokens: expected an integer of at least 0 and at most 128"),
        ({"repetition_penalty": 0}, "repetition_penalty: expected a number above 0"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"logprobs": -1}, "logprobs"),
        ({"stop": [""]}, "stop: expected non-empty strings"),
        ({"stop": [3]}, "stop: expected non-empty strings"),
        ({"stop": 3}, "stop: expected a string or a sequence"),
        ({"logits_processors": [3]}, "logits_processors: expected callables"),
        ({"logits_processors": len}, "logits_processors: expected a sequence"),
        ({"stopping_criteria": [None]}, "stopping_criteria: expected callables"),
        ({"stopping_criteria": None}, "stopping_criteria: expected a sequence"),
        ({"num_beams": 4}, "num_beams: expected 1: a drafter speculates on one sequence"),
    ],
)
def test_unusable_parameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SamplingParams(**options)


def test_two_arms_with_one_name() -> None:
    target = toy_target()
    with pytest.raises(UsageError, match=r"arms with different names .*, got 'asleep' twice"):
        load_drafters([Asleep(target), Asleep(target)], target)
