"""What each arm would have said to the emitted tokens: the same numbers in the loop, teacher-forced, and by hand."""

import math
from typing import Any

import pytest
import torch
from made_drafters import made
from toys import PROMPT, engine_of, toy_target

from metasd import SamplingParams
from metasd.core import Draft, SamplingLaw
from metasd.matrix import score_answer
from metasd.scores import TargetLaws, first_tokens, score_round, score_tokens
from metasd.training.answers import Answer

ARMS = ["eagle", "eagle-3", "lm", "ngram-lm", "early-exit", "suffix"]
LAWS: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 0.9, "seed": 3}}


@pytest.mark.parametrize("bandit", ["round-robin", "fixed:arm=eagle", "fixed:arm=null"])
@pytest.mark.parametrize("law", LAWS)
def test_the_loop_says_what_teacher_forcing_says(law: str, bandit: str) -> None:
    """Every arm at every emitted token, whoever drafted; the drafting arm behind its first token excepted."""
    target = toy_target()
    engine = engine_of(target, [made(arm, target) for arm in ARMS], bandit=bandit, token_scores="all")
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=30, **LAWS[law]))
    answer = Answer("", "", LAWS[law].get("temperature", 0.0), tuple(PROMPT), tuple(result.token_ids))
    drafters = {arm: made(arm, target) for arm in ARMS}
    with torch.inference_mode():
        forced = {record.arm: record.scores for record in score_answer(target, drafters, answer)}
    at = 0
    for record in result.rounds:
        assert set(record.token_scores) == set(ARMS)
        for arm, scores in record.token_scores.items():
            assert len(scores.overlap) == len(scores.ratio) == record.num_output_tokens
            for k, (ratio, overlap) in enumerate(zip(scores.ratio, scores.overlap, strict=True)):
                assert ratio == pytest.approx(forced[arm].ratio[at + k], abs=2e-4)
                assert overlap == pytest.approx(forced[arm].overlap[at + k], abs=2e-4)
        at += record.num_output_tokens


@pytest.mark.parametrize("law", LAWS)
def test_free_asks_those_that_cost_nothing_and_the_drafting_arm(law: str) -> None:
    target = toy_target()
    engine = engine_of(target, [made(arm, target) for arm in ARMS], bandit="fixed:arm=lm", token_scores="free")
    result = engine.generate(PROMPT, SamplingParams(max_new_tokens=20, **LAWS[law]))
    for record in result.rounds[:-1]:
        assert set(record.token_scores) == {"ngram-lm", "early-exit", "suffix", "lm"}
        overlap = record.token_scores["lm"].overlap
        assert len(overlap) == min(record.num_draft_tokens, record.num_output_tokens)
        assert overlap == pytest.approx([1 - tv for tv in record.tv_distance[: len(overlap)]], abs=1e-6)


def test_nothing_is_recorded_unless_asked() -> None:
    """By the user, or by a bandit that learns from them."""
    for options, is_kept in (({"bandit": "ucb"}, False), ({"bandit": "ucb", "reward": "cf"}, True), ({}, True)):
        engine = engine_of(toy_target(), ["suffix"], **options)
        result = engine.generate(PROMPT, SamplingParams(max_new_tokens=12))
        assert any(record.token_scores for record in result.rounds) == is_kept


def test_by_hand() -> None:
    """p = (1/2, 1/4, 1/4), q = (1/4, 3/4) over the tokens 2 and 0: TV = 1/4 at each position."""
    rows = torch.tensor([[0.5, 0.25, 0.25]]).log().expand(3, -1).contiguous()
    laws = Draft(
        torch.tensor([[0, 0, -1]]), torch.tensor([[0.25, 0.75]] * 3).log().unsqueeze(0), 1.0, None, torch.tensor([2, 0])
    )
    scores = score_tokens(TargetLaws(rows, SamplingLaw(1.0)), laws, [0, 1, 0])
    assert scores.overlap == pytest.approx([0.75, 0.75, 0.0])  # sum of min(p, q); asleep at the third
    assert scores.ratio == pytest.approx([1.0, 0.0, 0.0])  # min(1, 0.75 / 0.5); q(1) = 0
    lists = torch.tensor([[[2, 0, -1]] * 3])  # the same laws as lists with an empty place
    listed = Draft(laws.token_ids, torch.tensor([[[0.25, 0.75, 0.0]] * 3]).log(), 1.0, None, lists)
    assert score_tokens(TargetLaws(rows, SamplingLaw(1.0)), listed, [0, 1, 0]) == scores
    point = score_tokens(TargetLaws(rows, SamplingLaw(1.0)), Draft(torch.tensor([[0, 2, 1]])), [0, 1, 1])
    assert point.overlap == pytest.approx([0.5, 0.25, 0.25])  # p(x)
    assert point.ratio == pytest.approx([1.0, 0.0, 1.0])
    greedy = score_tokens(TargetLaws(rows, SamplingLaw(0.0)), Draft(torch.tensor([[0, 2, -1]])), [0, 0, 0])
    assert greedy.overlap == greedy.ratio == (1.0, 0.0, 0.0)
    assert math.isclose(sum(point.overlap), 1.0)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_arms_side_by_side_have_the_scores_they_have_alone(temperature: float) -> None:
    """Point masses, lists of two widths and temperatures, whole vocabularies, and one that was drafted, hence short."""
    torch.manual_seed(0)
    law, tokens = SamplingLaw(temperature, top_k=5 if temperature else 0), [3, 1, 4, 1, 5]

    def point(num_tokens: int = 5) -> Draft:
        return Draft(torch.randint(-1, 9, (1, num_tokens)))

    def listed(width: int, own_temperature: float = 0.7) -> Draft:
        lists = torch.stack([torch.randperm(9)[:width] for _ in range(5)])
        lists[:, -1] = -1
        logits = torch.randn(1, 5, width)
        logits[..., -1] = -torch.inf
        return Draft(lists[None, :, 0], logits, own_temperature, None, lists.unsqueeze(0))

    laws = {"a": point(), "b": point(), "drafted": point(3)}
    if temperature:
        laws |= {"c": listed(4), "d": listed(4), "wide": listed(6), "cool": listed(4, 0.35)}
        laws |= {"whole": Draft(torch.randint(9, (1, 5)), torch.randn(1, 5, 9), 0.7)}
    rows = torch.randn(1, 6, 9)
    together = score_round(rows, laws, tokens, law)
    assert list(together) == list(laws)
    target = TargetLaws(rows[0, :5], law)
    for arm, draft in laws.items():
        count = draft.num_tokens
        alone = score_tokens(target, first_tokens(draft, count), tokens[:count])
        assert together[arm].ratio == pytest.approx(alone.ratio, abs=1e-6), arm
        assert together[arm].overlap == pytest.approx(alone.overlap, abs=1e-6), arm
