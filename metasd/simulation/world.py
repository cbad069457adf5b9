"""Made-up answers: what each arm's blocks are worth at every token, drawn beforehand and the same for all policies."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metasd.core import TokenScores, refuse

Rates = tuple[float, ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """A kind of world.

    Attributes:
        name: of the setting.
        segments: acceptance rates of the arms, one tuple for each segment of the answer, which take turns.
        segment_tokens: length of a segment.
        is_greedy: whether laws are points: a position matches or not. Else overlaps are Beta around the rate.
        switch_rounds: what a switch costs, in rounds.
        free_arms: how many of the last arms are asked for every token.
        concentration: of the Beta laws.
    """

    name: str
    segments: tuple[Rates, ...]
    segment_tokens: int = 10**9
    is_greedy: bool = True
    switch_rounds: float = 0.0
    free_arms: int = 0
    concentration: float = 6.0

    def __post_init__(self) -> None:
        if not self.segments or not self.segments[0]:
            raise refuse("segments", "at least one arm", self.segments)
        for rates in self.segments:
            if len(rates) != len(self.segments[0]) or not all(0 <= rate <= 1 for rate in rates):
                raise refuse("segments", f"{len(self.segments[0])} rates from 0 to 1 in each", rates)

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(f"arm{i}" for i in range(len(self.segments[0])))

    def rates_at(self, num_tokens: int) -> Floats:
        """Acceptance rates `[num_tokens, arms]`."""
        which = np.arange(num_tokens) // self.segment_tokens % len(self.segments)
        return np.asarray(self.segments)[which]


@dataclass
class World:
    """One answer of a setting.

    On the emitted tokens each arm has an overlap 1 - TV and a ratio min(1, q(y)/p(y)), whose mean is the overlap;
    behind a rejection a draft leaves the answer, and its overlaps there are drawn anew.

    Args:
        setting: the kind.
        num_tokens: B, after which the answer ends.
        seed: of everything that is drawn.
        block: N.
    """

    setting: Setting
    num_tokens: int
    seed: int
    block: int = 5
    _scores: dict[tuple[int, int], dict[str, TokenScores]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng([self.seed, 7])
        size = (self.num_tokens + self.block + 1, len(self.setting.arms))
        rates = self.setting.rates_at(size[0])
        if self.setting.is_greedy:
            overlap = (generator.random(size) < rates).astype(float)
            ratio, accept, accepted = overlap, overlap, overlap
        else:
            overlap = _beta(generator, rates, self.setting.concentration)
            ratio = _beta(generator, overlap, 2.0)
            accept = _beta(generator, overlap, 2.0)
            accepted = (generator.random(size) < accept).astype(float)
        elsewhere = (
            (generator.random(size) < rates).astype(float)
            if self.setting.is_greedy
            else _beta(generator, rates, self.setting.concentration)
        )
        self._tables(overlap, ratio, accept, accepted, elsewhere)

    def _tables(self, overlap: Floats, ratio: Floats, accept: Floats, accepted: Floats, elsewhere: Floats) -> None:
        """For each token and arm, what a block from there would be."""
        block, length = self.block, self.num_tokens + 1
        windows = np.lib.stride_tricks.sliding_window_view
        alive = np.cumprod(windows(accepted, block, axis=0)[:length], axis=-1)  # [tokens, arms, N]
        count = alive.sum(-1).astype(int)
        reached = np.concatenate([np.ones_like(alive[..., :1]), alive[..., :-1]], axis=-1).astype(bool)
        along = np.where(reached, windows(overlap, block, axis=0)[:length], windows(elsewhere, block, axis=0)[:length])
        on = np.where(reached, windows(accept, block, axis=0)[:length], along)
        reach = np.concatenate([np.ones_like(on[..., :1]), np.cumprod(on, axis=-1)[..., :-1]], axis=-1)
        self.accepted: list[list[int]] = count.tolist()
        self.bd: list[list[float]] = along.mean(-1).tolist()
        self.rb: list[list[float]] = (reach * along).sum(-1).tolist()
        self.tv: list[list[list[float]]] = (1 - along).tolist()
        self.accept: list[list[list[float]]] = on.tolist()
        self._overlap, self._ratio = overlap, ratio
        self._free = range(len(self.setting.arms) - self.setting.free_arms, len(self.setting.arms))

    def scores(self, start: int, count: int) -> dict[str, TokenScores]:
        """What the free arms say to the tokens from `start` on."""
        if not self.setting.free_arms:
            return {}
        key = start, count
        if key not in self._scores:
            ratio, overlap = (each[start : start + count].T.tolist() for each in (self._ratio, self._overlap))
            self._scores[key] = {
                self.setting.arms[i]: TokenScores(tuple(ratio[i]), tuple(overlap[i])) for i in self._free
            }
        return self._scores[key]


def _beta(generator: np.random.Generator, mean: Floats, concentration: float) -> Floats:
    clipped = np.clip(mean, 1e-3, 1 - 1e-3)
    return generator.beta(clipped * concentration, (1 - clipped) * concentration)


_EIGHT: Rates = (0.35, 0.45, 0.40, 0.72, 0.30, 0.50, 0.55, 0.42)
_TURNED: Rates = (0.72, 0.45, 0.40, 0.35, 0.30, 0.50, 0.55, 0.42)
SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("stationary", (_EIGHT,)),
        Setting("stationary-sampled", (_EIGHT,), is_greedy=False),
        Setting("drifting", (_EIGHT, _TURNED), segment_tokens=150),
        Setting("switching-cost", (_EIGHT,), switch_rounds=1.0),
        Setting("free-arms", (_EIGHT,), free_arms=5),
    )
}
"""Those of the suite: eight arms, of which one is a specialist for the text at hand."""
