"""What can run, what cannot and why, and that every system answers as plain decoding does."""

import json
import sys
from pathlib import Path

import pytest
from bench_toys import PROMPTS, toy_bench

from metasd.bandits.router import PromptClassifier
from metasd.bench.engines import specialists
from metasd.bench.systems import DEFAULT, SHORT, expand, resolve
from metasd.config import SamplingParams
from metasd.core import UsageError
from metasd.drafters.demo import Entry


def test_all_systems_answer_as_plain_and_tell_their_steps() -> None:
    bench = toy_bench("transformers,prompt-lookup,arm:suffix,random,auto,metasd-paper,ucb:beta=0.1")
    systems, not_run = resolve(bench.request.systems, bench.shop)
    assert next(iter(systems)) == "plain"
    assert len(systems) == 8
    assert not_run == {}
    params = SamplingParams(max_new_tokens=24)
    for _, ids in bench.prompts[:2]:
        answers = {name: system.decode(ids, params) for name, system in systems.items()}
        for name, answer in answers.items():
            assert answer.token_ids == answers["plain"].token_ids, name
            assert sum(answer.steps) == len(answer.token_ids), name
            assert answer.num_timed_tokens == len(answer.token_ids) - answer.steps[0], name
            assert answer.seconds > 0, name
            assert answer.prefill_seconds > 0, name


def test_one_peer_with_two_settings_is_two_systems() -> None:
    systems, _ = resolve("prompt-lookup,prompt-lookup:2,assistant:1", toy_bench("plain").shop)
    assert list(systems) == ["plain", "prompt-lookup", "prompt-lookup:2", "assistant:1"]
    params = SamplingParams(max_new_tokens=12)
    ids = toy_bench("plain").prompts[0][1]
    answers = [system.decode(ids, params) for system in systems.values()]
    assert len({answer.token_ids for answer in answers}) == 1
    assert len(answers[3].steps) < 12  # the first of two layers is right now and then


def test_a_restarted_policy_forgets_prompts_but_not_what_the_machine_costs() -> None:
    bench = toy_bench("auto")
    auto = resolve("auto", bench.shop)[0]["auto"]
    before = auto.state()
    auto.decode(bench.prompts[0][1], SamplingParams(max_new_tokens=24))
    learned = auto.state()
    assert before is not None
    assert learned is not None
    assert learned["num_rounds"] != before["num_rounds"]
    assert learned["costs"] != before["costs"]
    auto.load(None)
    again = auto.state()
    assert again is not None
    assert again["num_rounds"] == before["num_rounds"]
    assert again["costs"] == learned["costs"]


def test_groups_name_single_systems_once() -> None:
    shop = toy_bench("plain").shop
    assert expand("singles,arm:ngram,oracle,plain", shop) == ["plain", "arm:ngram", "arm:suffix"]
    names = expand(DEFAULT, shop)
    assert {"thompson", "metasd-paper", "flashspec", "round-robin", "router", "arm:suffix"} <= set(names)
    assert len(names) == len(set(names))
    assert {"auto", "random", "generalist", "specialist"} <= set(expand(SHORT, shop))


def test_what_cannot_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashspec", None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    systems, not_run = resolve("flashspec,compiled,assistant,router,specialist,generalist", toy_bench("plain").shop)
    assert list(systems) == ["plain"]
    assert "pip install flashspec" in not_run["flashspec"]
    assert "C++ compiler" in not_run["compiled"]
    assert "--assistant" in not_run["assistant"]
    assert "--router" in not_run["router"]
    assert "--arm-of" in not_run["specialist"]
    assert "generalist" in not_run["generalist"]


@pytest.mark.parametrize(
    ("systems", "message"),
    [
        ("plain,nonsense", r"--systems: expected names among plain, .*got 'nonsense'"),
        ("arm:eagle", r"arm:NAME with a name among ngram, suffix, got 'arm:eagle'"),
        ("prompt-lookup:0", r"prompt-lookup:TOKENS, got 'prompt-lookup:0'"),
        ("transformers:fast", r"transformers without options"),
        ("ucb:speed=1", r"options among"),
        ("specialist:code", r"specialist without options"),
        ("plain:fast", r"plain without options"),
    ],
)
def test_wrong_names_are_refused(systems: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(systems, toy_bench("plain").shop)


def test_the_specialist_plays_the_arm_of_the_label_and_the_router_that_of_the_prompt(tmp_path: Path) -> None:
    """Domain a has ngram, b has suffix; the classifier is taught to mistake every prompt for b."""
    PromptClassifier.fit([("b", [1, 2, 3])]).save(tmp_path / "router.json")
    bench = toy_bench("specialist,router", arm_of={"a": "ngram", "b": "suffix"}, router=tmp_path / "router.json")
    systems, not_run = resolve(bench.request.systems, bench.shop)
    assert not_run == {}
    for prompt, ids in bench.prompts[:2]:
        params = SamplingParams(max_new_tokens=24, label=prompt.domain)
        drafted = {"a": "ngram", "b": "suffix"}[prompt.domain]
        rounds = systems["specialist"].decode(ids, params).rounds
        assert {record.arm for record in rounds} - {"null"} <= {drafted}
        routed = systems["router"].decode(ids, params).rounds
        assert {record.arm for record in routed} - {"null"} <= {"suffix"}


def test_a_label_of_the_router_without_an_arm_is_refused(tmp_path: Path) -> None:
    PromptClassifier.fit([("b", [1]), ("poetry", [2])]).save(tmp_path / "router.json")
    bench = toy_bench("router", arm_of={"b": "suffix"}, router=tmp_path / "router.json")
    with pytest.raises(UsageError, match=r"--router: expected .*--arm-of poetry=ARM.* got 'poetry'"):
        resolve("router", bench.shop)
    with pytest.raises(UsageError, match=r"--arm-of a: expected one of ngram, suffix, got 'lm'"):
        toy_bench("router", arm_of={"a": "lm"})


def test_the_arm_made_for_a_domain() -> None:
    """By the manifest's domains, by the name, the narrower first, then by acceptance on held-out answers."""

    def entry(name: str, domains: str, length: float) -> Entry:
        return Entry(name, "ngram-lm", name, {}, 0, {"domains": domains, "mean_acceptance_length": length})

    listed = [
        entry("ngram-lm-fren", "translation-fren", 1.2),
        entry("eagle-translation", "translation", 1.9),
        entry("ngram-lm-code", "code", 1.6),
        entry("eagle-code", "code", 1.7),
        entry("eagle-generalist", "all", 1.8),
    ]
    arms = [each.name for each in listed] + ["own-poetry", "suffix"]
    found = specialists(arms, ["translation-fren", "translation-ende", "code", "poetry", "chat"], listed)
    assert found == {
        "translation-fren": "ngram-lm-fren",
        "translation-ende": "eagle-translation",
        "code": "eagle-code",
        "poetry": "own-poetry",
        "other": "eagle-generalist",
    }
    assert specialists(arms, ["code"], listed, {"code": "suffix"})["code"] == "suffix"


def test_the_prompts_ids_are_unique() -> None:
    assert len({prompt.id for prompt in PROMPTS}) == len(PROMPTS)
    assert json.dumps([prompt.domain for prompt in PROMPTS]) == '["a", "b", "a", "b"]'
