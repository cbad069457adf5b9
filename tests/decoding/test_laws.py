"""The output law is exactly the target's: the joint law of the first three tokens against full enumeration, by
chi-square at an error rate of 1e-9 a test, for every kind of drafter, every bandit and both rules.

Two negative controls must fail it: a drafter that hands over another law than it drew from, and coins that are keyed by
the absolute token position, seen by a bandit that learns from block divergence.
"""

import copy
import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from bandit_specs import specs
from made_drafters import NAMES, made
from scipy.stats import chi2
from toys import Clock, Forgetful, TableDrafter, TableTarget, engine_of, install_clock, lm, toy_llama

from metasd import MetaSD, SamplingParams, verification
from metasd import round as rounds
from metasd.bandits import Context
from metasd.core import Choice, Coins, Offer, RoundRecord
from metasd.drafters import Drafter
from metasd_kernels import VerifyOutput, verify

ERROR_RATE = 1e-9
NUM_ANSWERS = 700
NUM_TOKENS = 3
VOCAB_SIZE = 4
PROMPT = [0, 1, 2, 0, 1, 3, 0, 2, 2, 0, 1]  # what follows 0 1 has two answers, so copying drafters are awake


def table(seed: int, dims: int = 2, size: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randn((size,) * dims, generator=torch.Generator().manual_seed(seed)) * 1.2


def exact_law(target: TableTarget, prompt: Sequence[int], temperature: float, top_p: float) -> dict[Any, float]:
    """Probability of each continuation, enumerated in float64: temperature, then the smallest set with mass top_p."""
    joint = {(): 1.0}
    for _ in range(NUM_TOKENS):
        longer = {}
        for tokens, mass in joint.items():
            x = target.row([*prompt, *tokens]).double().numpy() / temperature
            p = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
            order = np.argsort(-p)
            before = np.cumsum(p[order]) - p[order]
            assert np.abs(before[1:] - top_p).min() > 1e-4, "a tie at the edge of the set: choose another toy"
            p[order[before >= top_p]] = 0
            for token, share in enumerate(p / p.sum()):
                longer[(*tokens, token)] = mass * share
        joint = longer
    return joint


def chi_square(
    engine: MetaSD, prompt: Sequence[int], law: Mapping[Any, float], num_answers: int = NUM_ANSWERS, **params: Any
) -> tuple[float, float]:
    """The statistic of so many answers, and its limit. Cells that expect fewer than 5 answers are put together."""
    torch.manual_seed(0)
    request = SamplingParams(max_new_tokens=NUM_TOKENS + 1, **params)
    answers = (engine.generate(list(prompt), request).token_ids for _ in range(num_answers))
    seen = Counter(tuple(answer[:NUM_TOKENS]) for answer in answers)
    assert all(law[tokens] > 0 for tokens in seen), "a token that the law excludes"
    large = [tokens for tokens, mass in law.items() if mass * num_answers >= 5]
    expected = [law[tokens] * num_answers for tokens in large]
    observed = [seen[tokens] for tokens in large]
    pairs = [*zip(observed, expected, strict=True), (num_answers - sum(observed), num_answers - sum(expected))]
    statistic = sum((o - e) ** 2 / e for o, e in pairs if e > 1e-6)
    return statistic, float(chi2.isf(ERROR_RATE, len(pairs) - 1))


SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9}


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> TableTarget:
    """A target that looks two tokens back; the loop's clock is noise, so that costs choose at random."""
    install_clock(monkeypatch, Clock(0.01))
    target = TableTarget(table(3, dims=3))
    target.model = toy_llama(seed=2, vocab_size=VOCAB_SIZE)  # its vocabulary's matrices, which heads share
    return target


def drafter(kind: str, target: TableTarget) -> Drafter:
    if kind == "table":
        return TableDrafter(target, table(11))
    return made(kind, target)


def check(engine: MetaSD, target: TableTarget, **params: Any) -> None:
    statistic, limit = chi_square(engine, PROMPT, exact_law(target, PROMPT, **SAMPLED), **SAMPLED, **params)
    assert statistic < limit


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("kind", [*NAMES, "table"])
def test_law_for_each_drafter(kind: str, rule: str, target: TableTarget) -> None:
    engine = engine_of(target, [drafter(kind, target)], bandit="fixed", num_draft_tokens=3, rule=rule)
    check(engine, target)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("bandit", specs("suffix"))
def test_law_for_each_bandit(bandit: str, rule: str, target: TableTarget) -> None:
    """The bandit learns from answer to answer, by block divergence; with the block rule it chooses the length too."""
    pool = [drafter("table", target), "ngram", "suffix", TableDrafter(target, table(12), "other")]
    length = 3 if rule == "token" else "auto"
    check(engine_of(target, pool, bandit=bandit, reward="bd", num_draft_tokens=length, rule=rule), target)


def test_law_where_the_cutoffs_cut_much(target: TableTarget) -> None:
    """Both laws lose about half of their mass, and not the same half: catches a cutoff that verification ignores."""
    flat = copy.deepcopy(toy_llama(seed=2, vocab_size=VOCAB_SIZE))
    flat.lm_head.weight.data.mul_(0.25)
    engine = engine_of(target, [lm(target, flat, "flat")], bandit="fixed", num_draft_tokens=3)
    law = {"temperature": 1.6, "top_p": 0.55}
    statistic, limit = chi_square(engine, PROMPT, exact_law(target, PROMPT, **law), **law)
    assert statistic < limit


def test_law_position_by_position(target: TableTarget) -> None:
    """With a processor that must see committed tokens only, a block is verified row by row."""
    engine = engine_of(target, [drafter("table", target)], bandit="fixed", num_draft_tokens=3)
    check(engine, target, logits_processors=[lambda ids, scores: scores])


def test_negative_control_a_drafter_that_lies_about_its_law(target: TableTarget) -> None:
    liar = TableDrafter(target, table(11), claims=table(12))
    engine = engine_of(target, [liar], bandit="fixed", num_draft_tokens=3)
    statistic, limit = chi_square(engine, PROMPT, exact_law(target, PROMPT, **SAMPLED), **SAMPLED)
    print(f"wrong q: chi-square {statistic:.0f}, limit {limit:.0f}")
    assert statistic > 2 * limit


# ---- coins keyed by position ----


class FollowsDivergence(Forgetful):
    """Plays "a" while the last block divergence was high, else "b": it sees coins of positions after the rejection."""

    def start(self, reproducible: bool = False, context: Context = Context()) -> None:  # noqa: B008
        self._next = "a"

    def select(self, available: Mapping[str, Offer]) -> Choice:
        return Choice(self._next, available[self._next].max_num_draft_tokens)

    def update(self, round_id: int, feedback: RoundRecord) -> None:
        self._next = "a" if feedback.bd > 0.6 else "b"


class PositionCoins(TableDrafter):
    """Draws with coins of (nonce, position), or, with nonce and position added, of the absolute token position."""

    is_absolute = False

    def uniform(self, coins: Coins, position: int) -> float:
        where = coins.nonce + position if self.is_absolute else (coins.nonce, position)
        return random.Random(f"draft {int(coins.seed)} {where}").random()


def divergence_toy() -> tuple[TableTarget, list[Drafter]]:
    """Behind 0, drafter a is mostly rejected; its second draft token then decides about the block divergence (behind 0
    the laws differ, elsewhere not), so about the next arm, and the very coin that drew it draws again there."""

    def logits(*rows: tuple[float, float, float]) -> torch.Tensor:
        return torch.tensor(rows).log()

    target = TableTarget(logits((0.6, 0.3, 0.1), (0.5, 0.3, 0.2), (0.4, 0.3, 0.3)))
    a = PositionCoins(target, logits((0.04, 0.04, 0.92), (0.5, 0.3, 0.2), (0.4, 0.3, 0.3)), "a")
    b = PositionCoins(target, logits((0.6, 0.3, 0.1), (0.02, 0.49, 0.49), (0.4, 0.3, 0.3)), "b")
    return target, [a, b]


def use_position_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nonce becomes the number of tokens before the round, and every coin is addressed by nonce + position."""
    num_before = [0]
    play_round = rounds.play_round

    def play(sequence: rounds.Sequence) -> rounds.Round:
        num_before[0] = len(sequence.stops.token_ids)
        return play_round(sequence)

    def verify_by_position(*arguments: Any, seed: torch.Tensor, offset: int, **options: Any) -> VerifyOutput:
        def coin(domain: str, position: int) -> float:
            return random.Random(f"{domain} {int(seed)} {offset + position}").random()

        accept = [coin("accept", k) for k in range(arguments[1].shape[1])]
        first = verify(*arguments, **{**options, "uniform_samples": torch.tensor([[*accept, 0.5, 0.5]])})
        num_accepted = int(first.num_accepted_tokens)
        final = [coin("tile", num_accepted), coin("id", num_accepted)]
        return verify(*arguments, **{**options, "uniform_samples": torch.tensor([[*accept, *final]])})

    monkeypatch.setattr(rounds, "play_round", play)
    monkeypatch.setattr(rounds, "Coins", lambda seed, nonce: Coins(seed, num_before[0]))
    monkeypatch.setattr(verification, "verify", verify_by_position)
    monkeypatch.setattr(PositionCoins, "is_absolute", True)


@pytest.mark.parametrize("coins", ["of the round", "of the position"])
def test_negative_control_coins_of_the_position(coins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh coins each round pass; coins of the absolute position fail: they are used again behind a rejection, by an
    arm that was chosen because of them."""
    target, pool = divergence_toy()
    if coins == "of the position":
        use_position_coins(monkeypatch)
    engine = engine_of(target, pool, bandit=FollowsDivergence(), num_draft_tokens=3)
    law = exact_law(target, [0], temperature=1.0, top_p=1.0)
    statistic, limit = chi_square(engine, [0], law, num_answers=1500, temperature=1.0)
    print(f"coins {coins}: chi-square {statistic:.0f}, limit {limit:.0f}")
    if coins == "of the round":
        assert statistic < limit
    else:
        assert statistic > 2 * limit


def test_the_enumerated_law_is_one() -> None:
    law = exact_law(TableTarget(table(3, dims=3)), PROMPT, **SAMPLED)
    assert sum(law.values()) == pytest.approx(1)
    assert set(law) == set(itertools.product(range(VOCAB_SIZE), repeat=NUM_TOKENS))
    assert 8 < sum(mass > 0.01 for mass in law.values()) < 50
