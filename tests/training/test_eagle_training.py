"""Training of heads: it sees what drafting sees, learns, goes on where it stopped, and writes what drafts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toys import toy_llama, toy_target

from metasd.core import Coins, MetaSDError, Request, SamplingLaw, UsageError
from metasd.drafters.eagle.checkpoint import LoadedHead, load_head
from metasd.drafters.eagle.drafter import EagleDrafter
from metasd.drafters.eagle.head import EagleHead
from metasd.target import Target
from metasd.training import eagle_run
from metasd.training.answers import Answer, split_answers
from metasd.training.eagle import (
    Batch,
    EagleRecipe,
    Vocabulary,
    _target_laws,
    choose_draft_ids,
    held_out_acceptance,
    loss_of,
    unroll,
)
from metasd.training.feature_store import CONTEXT, FeatureStore, Sample
from metasd.training.job import Job

PROMPTS = 40


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """Greedy answers of the toy target to prompts of three tokens."""
    model, made = toy_llama(), []
    for seed in range(PROMPTS):
        ids = torch.tensor([[70 + seed, 71, 72]])
        with torch.inference_mode():
            whole = model.generate(ids, do_sample=False, max_new_tokens=24, eos_token_id=None, pad_token_id=0)
        made.append(Answer("toy", "", 0.0, (70 + seed, 71, 72), tuple(whole[0, 3:].tolist())))
    return made


def new_head(target: Target, seed: int = 0) -> EagleHead:
    torch.manual_seed(seed)
    head = EagleHead(eagle_run.head_config(target))
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape) / weight.shape[-1] ** 0.5)
    return head


def vocabulary(target: Target, draft_ids: torch.Tensor | None = None) -> Vocabulary:
    model = target.model
    ids = torch.arange(target.vocab_size) if draft_ids is None else draft_ids
    return Vocabulary(model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach(), ids)


def loaded_head(target: Target, folder: Path) -> LoadedHead:
    return load_head(folder, target.model.config, dtype=torch.float32, device="cpu")


def samples_of(target: Target, answers: list[Answer], folder: Path) -> list[Sample]:
    store = FeatureStore(folder, 48)
    store.fill(target.model, answers, lambda count: None)
    return [store.sample(answer) for answer in answers]


def test_stored_features_are_the_targets(answers: list[Answer], tmp_path: Path) -> None:
    """Also of an answer behind a long prompt, of which the last tokens are kept."""
    target = toy_target()
    long = Answer("", "", 0.0, tuple(i % 300 + 1 for i in range(CONTEXT + 39)), (5, 6, 7))
    samples = samples_of(target, [*answers[:3], long], tmp_path)
    for answer, sample in zip([*answers[:3], long], samples, strict=True):
        ids = torch.tensor([answer.prompt_ids + answer.output_ids])
        with torch.inference_mode():
            hidden = target.model.model(ids)[0][0]
        assert sample.token_ids.tolist() == ids[0, -len(sample.token_ids) :].tolist()
        assert torch.allclose(sample.features, hidden[-len(sample.token_ids) :], atol=2e-3, rtol=2e-3)
    assert len(samples[-1].token_ids) == CONTEXT + 3
    assert len(samples[0].token_ids) == 27


def test_features_are_computed_once(answers: list[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = toy_target()
    first = samples_of(target, answers[:4], tmp_path)
    store = FeatureStore(tmp_path, 48)
    heard: list[int] = []
    monkeypatch.setattr(type(target.model), "forward", None)  # would fail if it were asked
    monkeypatch.setattr(type(target.model.model), "forward", None)
    store.fill(target.model, answers[:4], heard.append)
    assert sum(heard) == 4 * 27
    assert torch.equal(store.sample(answers[2]).features, first[2].features)


@pytest.mark.parametrize("start", [4, 9, 15])
def test_unrolling_sees_what_drafting_sees(answers: list[Answer], tmp_path: Path, start: int) -> None:
    """The head's outputs at depth s and index t, in training, are those of a draft that began s tokens earlier."""
    target, answer = toy_target(), answers[0]
    head = new_head(target)
    eagle_run.save_head(tmp_path / "head", head, None, {})
    drafter = EagleDrafter(target, str(tmp_path / "head"))
    text = [*answer.prompt_ids, *answer.output_ids]
    with torch.inference_mode():
        hidden = target.model.model(torch.tensor([text]))[0][0]
        sample = Sample(torch.tensor(text), hidden, len(answer.output_ids))
        drafter.reset(Request(text[:start], SamplingLaw(), 100, hidden[: start - 1]))
        made = drafter.draft(3, Coins(torch.zeros(1, dtype=torch.int64), 0))
        assert made is not None
        # Teacher-forced with the draft's own tokens, training unrolls the same chain.
        drafted = [*text[:start], *made.token_ids[0].tolist(), 0, 0]
        forced = Sample(torch.tensor(drafted), torch.cat([hidden[:start], torch.zeros(5, 48)]), 5)
        matrix = target.model.get_output_embeddings().weight
        longer = Sample(torch.arange(9, 23), torch.randn(14, 48), 5)  # pads the prompt of the other
        batch = Batch.of([forced, longer], target.device)
        for first in (0, start - 2):
            index = start - 2 + int(batch.num_padded[0]) - first
            for step, out in enumerate(unroll(head, batch, vocabulary(target).embedding, 3, first)):
                assert int((out[0, index + step] @ matrix.T).argmax()) == made.token_ids[0, step]
    assert sample.num_outputs == 24


def test_loss_falls_and_acceptance_rises(answers: list[Answer], tmp_path: Path) -> None:
    target = toy_target()
    job = Job(target, answers, tmp_path / "head", tmp_path / "work")
    facts = eagle_run.train(job, epochs=30, learning_rate=5e-3, draft_vocab=320)
    assert facts["loss"][-1] < facts["loss"][0] - 1.0  # what is left is mostly the target's own entropy
    assert len(facts["loss"]) == 30
    train, _ = split_answers(answers)
    loaded = loaded_head(target, job.output)
    samples = samples_of(target, train, tmp_path / "work")
    before = held_out_acceptance(new_head(target), samples, vocabulary(target), 3, target.device)
    after = held_out_acceptance(loaded.head, samples, vocabulary(target), 3, target.device)
    assert after[0] > before[0] + 0.3
    assert after == sorted(after, reverse=True)


def test_measured_acceptance_is_that_of_decoding(answers: list[Answer], tmp_path: Path) -> None:
    """Rounds of one greedy draft token, from each token of the answers: the share that is accepted."""
    target = toy_target()
    eagle_run.train(Job(target, answers, tmp_path / "head", tmp_path / "work"), epochs=8, learning_rate=5e-3)
    loaded = loaded_head(target, tmp_path / "head")
    few = answers[:6]
    measured = held_out_acceptance(
        loaded.head,
        samples_of(target, few, tmp_path / "work"),
        vocabulary(target, loaded.draft_to_target),
        1,
        target.device,
    )[0]
    drafter, hits = EagleDrafter(target, str(tmp_path / "head")), 0
    for answer in few:
        text = [*answer.prompt_ids, *answer.output_ids]
        with torch.inference_mode():
            hidden = target.model.model(torch.tensor([text]))[0][0]
            drafter.reset(Request(text[:3], SamplingLaw(), 100, hidden[:2]))
            guesses = drafter.score(text[3:], hidden[2:-1]).token_ids[0].tolist()
        hits += sum(guess == token for guess, token in zip(guesses, answer.output_ids, strict=True))
    assert measured == pytest.approx(hits / (6 * 24), abs=0.02)


def test_an_interrupted_run_goes_on(answers: list[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in mid-epoch and started again, it ends with the very weights of a run that was not."""
    monkeypatch.setattr(eagle_run, "_SAVE_EVERY", 3)
    target = toy_target()
    eagle_run.train(Job(target, answers, tmp_path / "whole", tmp_path / "work"), epochs=3)

    class Stop(Exception):
        pass

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if stage == "steps" and done == 8:
            raise Stop

    with pytest.raises(Stop):
        eagle_run.train(Job(target, answers, tmp_path / "parts", tmp_path / "work", advance=stop), epochs=3)
    assert (tmp_path / "parts" / eagle_run.STATE_FILE).exists()
    heard: list[int] = []
    job = Job(target, answers, tmp_path / "parts", tmp_path / "work")
    job = replace(job, advance=lambda stage, done, total, note: heard.append(done) if stage == "steps" else None)
    eagle_run.train(job, epochs=3)
    assert heard[0] == 7  # the state is that of step 6
    heads = [
        load_head(tmp_path / name, target.model.config, dtype=torch.float32, device="cpu")
        for name in ("whole", "parts")
    ]
    for a, b in zip(heads[0].head.parameters(), heads[1].head.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not (tmp_path / "parts" / eagle_run.STATE_FILE).exists()


def test_a_specialist_starts_from_a_generalist(answers: list[Answer], tmp_path: Path) -> None:
    target = toy_target()
    eagle_run.train(
        Job(target, answers, tmp_path / "all", tmp_path / "work"), epochs=10, learning_rate=5e-3, draft_vocab=64
    )
    job = Job(target, answers, tmp_path / "some", tmp_path / "work", {"data_licence": "MIT"})
    facts = eagle_run.train(job, epochs=1, learning_rate=1e-6, start_from=tmp_path / "all")
    assert facts["start_from"] == "all"
    assert json.loads((tmp_path / "some" / "training.json").read_text())["data_licence"] == "MIT"
    heads = [
        load_head(tmp_path / name, target.model.config, dtype=torch.float32, device="cpu") for name in ("all", "some")
    ]
    assert torch.equal(heads[0].draft_to_target, heads[1].draft_to_target)
    assert heads[0].draft_to_target.numel() == 64
    for a, b in zip(heads[0].head.parameters(), heads[1].head.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-2)
    job = replace(job, output=tmp_path / "wider")
    eagle_run.train(job, epochs=1, learning_rate=1e-6, start_from=tmp_path / "all", draft_vocab=90)
    wider = load_head(tmp_path / "wider", target.model.config, dtype=torch.float32, device="cpu").draft_to_target
    assert wider is not None
    assert wider.numel() == 90
    seen = {token for answer in job.answers for token in (*answer.prompt_ids, *answer.output_ids)}
    assert len(seen - set(wider.tolist())) == max(len(seen) - 90, 0)


def test_gradients_reach_every_weight(answers: list[Answer], tmp_path: Path) -> None:
    target = toy_target()
    head = new_head(target)
    batch = Batch.of(samples_of(target, answers[:4], tmp_path), target.device)
    loss_of(head, batch, vocabulary(target), EagleRecipe()).backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in head.parameters())


def test_draft_vocabulary_is_the_most_frequent_then_the_lowest() -> None:
    assert choose_draft_ids([[7, 7, 9], [9, 9, 3]], 3, 12).tolist() == [3, 7, 9]
    assert choose_draft_ids([[7]], 4, 12).tolist() == [0, 1, 2, 7]
    assert choose_draft_ids([[7, 7], [5]], 4, 12, torch.tensor([9, 11])).tolist() == [5, 7, 9, 11]


def test_candidates_hold_what_the_target_may_say() -> None:
    """Catches a loss among tokens that leave out the target's own choice, or among other rows than it says."""
    torch.manual_seed(0)
    features, head = torch.randn(30, 8), torch.randn(500, 8)
    whole = vocabulary_of(head)
    laws = _target_laws(features, whole, EagleRecipe(num_candidates=120))
    best = (features @ head.T).argmax(-1)
    assert laws.warm.shape[1] == len(laws.rows) <= 120
    assert torch.equal(laws.rows[laws.warm.argmax(-1)], head[best])
    torch.testing.assert_close(laws.warm, (features @ laws.rows.T).softmax(-1))
    everything = _target_laws(features, whole, EagleRecipe(num_candidates=500))
    assert torch.equal(everything.rows, head)


def vocabulary_of(head: torch.Tensor) -> Vocabulary:
    return Vocabulary(head, head, torch.arange(len(head)))


def test_what_training_refuses(answers: list[Answer], tmp_path: Path) -> None:
    target = toy_target()
    with pytest.raises(UsageError, match="data: expected at least 8 answers"):
        eagle_run.train(Job(target, answers[:3], tmp_path / "head", tmp_path / "work"))
    with pytest.raises(MetaSDError, match="no folder"):
        eagle_run.train(Job(target, answers, tmp_path / "head", tmp_path / "work"), start_from=tmp_path / "none")
