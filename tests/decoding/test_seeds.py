"""Row 11: with a seed, neither clocks nor past requests choose tokens; nobody advances a stream of random numbers."""

import pytest
import torch
from bandit_specs import specs
from toys import PROMPT, Asleep, Clock, engine_of, install_clock, lm, toy_llama, toy_target

from metasd import MetaSD, SamplingParams

PARAMS = SamplingParams(max_new_tokens=40, temperature=0.8, top_p=0.95, seed=7)
OTHER = SamplingParams(max_new_tokens=25, temperature=1.2)


def make_engine(bandit: str, length: int | str = "auto") -> MetaSD:
    target = toy_target()
    drafters = [lm(target, toy_llama(noise=0.03), "near"), "ngram", lm(target, toy_llama(noise=1.0), "far")]
    drafters[0].nominal_cost = 0.05
    return engine_of(target, drafters, bandit=bandit, num_draft_tokens=length)


@pytest.mark.parametrize("length", ["auto", 3])
@pytest.mark.parametrize("bandit", specs("near"))
def test_row_11_same_seed_same_tokens(bandit: str, length: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ran before and whatever the clocks say; arms and block lengths are the same as well."""
    answers = []
    for noise in (0.001, 100.0):
        engine = make_engine(bandit, length)
        install_clock(monkeypatch, Clock(noise, seed=int(noise)))
        for before in range(2):
            for seed in range(3 * before):
                engine.generate(PROMPT[seed:], OTHER)
                engine.generate_plain(PROMPT, OTHER)
            torch.manual_seed(before)
            answers.append(engine.generate(PROMPT, PARAMS))
    assert len({tuple(answer.token_ids) for answer in answers}) == 1
    choices = [[(record.arm, record.num_draft_tokens) for record in answer.rounds] for answer in answers]
    assert choices.count(choices[0]) == len(choices)
    assert 0 < answers[0].stats.acceptance_rate < 1


def test_row_11_a_seeded_request_leaves_what_was_learned_alone() -> None:
    engine = make_engine("ucb")
    engine.generate(PROMPT, OTHER)
    before = engine.bandit.state()
    engine.generate(PROMPT, PARAMS)
    assert engine.bandit.state() == before
    engine.generate(PROMPT, OTHER)
    assert engine.bandit.state() != before


def test_row_11_other_seeds_give_other_tokens() -> None:
    engine = make_engine("ucb")
    seeded = [SamplingParams(max_new_tokens=20, temperature=1.0, seed=seed) for seed in (0, 1, 2**32, 2**63 - 1)]
    answers = [tuple(engine.generate(PROMPT, params).token_ids) for params in seeded]
    unseeded = [tuple(engine.generate(PROMPT, OTHER).token_ids) for _ in range(2)]
    assert len({*answers, *unseeded}) == 6


def test_row_11_torch_seed_decides_where_none_is_given() -> None:
    engine = make_engine("fixed:arm=near", 4)
    answers = []
    for _ in range(2):
        torch.manual_seed(3)
        answers.append(engine.generate(PROMPT, OTHER).token_ids)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("offers", [False, True])
def test_row_11_an_empty_draft_advances_nobodys_stream(offers: bool) -> None:
    """A pool with one more drafter that never drafts gives the same tokens as the pool without it."""
    target = toy_target()
    near = lm(target, toy_llama(noise=0.03), "near")
    alone = engine_of(target, [near], bandit="fixed:arm=near").generate(PROMPT, PARAMS)
    asleep = Asleep(target, offers=offers)
    both = engine_of(target, [asleep, near], bandit="fixed:arm=near").generate(PROMPT, PARAMS)
    assert both.token_ids == alone.token_ids
    plain = engine_of(target, ["null"]).generate(PROMPT, PARAMS).token_ids
    assert engine_of(target, [asleep], bandit="fixed").generate(PROMPT, PARAMS).token_ids == plain
