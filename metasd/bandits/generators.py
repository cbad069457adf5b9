"""The state of a random generator as plain JSON types."""

import random
from collections.abc import Sequence
from typing import Any


def state_of_generator(generator: random.Random) -> list[Any]:
    version, words, gauss = generator.getstate()
    return [version, list(words), gauss]


def load_generator(generator: random.Random, state: Sequence[Any]) -> None:
    version, words, gauss = state
    generator.setstate((version, tuple(words), gauss))
