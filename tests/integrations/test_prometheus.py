"""The metrics are sums over rounds, in a format that Prometheus' own parser reads."""

import sys
from pathlib import Path

import pytest
from made_drafters import made
from prometheus_client.parser import text_string_to_metric_families
from toys import PROMPT, engine_of, toy_target

from metasd import SamplingParams
from metasd.core import MetaSDError, UsageError
from metasd.integrations.prometheus import PrometheusMetrics
from metasd.metrics import GenerationResult

Samples = dict[tuple[str, tuple[str, ...]], float]


def answers() -> list[GenerationResult]:
    target = toy_target()
    engine = engine_of(target, [made("lm", target), "suffix"], bandit="round-robin")
    plain = engine.generate_plain(PROMPT, SamplingParams(max_new_tokens=9))
    return [engine.generate(PROMPT, SamplingParams(max_new_tokens=40, temperature=0.8, seed=1, n=2)), plain]


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_sums_over_all_rounds() -> None:
    metrics, given = PrometheusMetrics(), answers()
    for answer in given:
        metrics.observe(answer)
    found = samples(metrics.text())
    whole = [given[0], *given[0].alternatives, given[1]]
    rounds = [record for answer in whole for record in answer.rounds]
    assert found["metasd:generation_tokens_total", ()] == sum(len(answer.token_ids) for answer in whole) == 89
    assert found["metasd:prompt_tokens_total", ()] == 3 * len(PROMPT)
    assert found["metasd:request_success_total", ("length",)] == 3
    assert found["metasd:acceptance_length_count", ()] == len(rounds)
    assert found["metasd:acceptance_length_sum", ()] == len(rounds) + sum(r.num_accepted_tokens for r in rounds)
    for arm in ("lm", "suffix", "null"):
        own = [record for record in rounds if record.arm == arm]
        assert own
        assert found["metasd:rounds_total", (arm,)] == len(own)
        assert found["metasd:switches_total", (arm,)] == sum(record.switched for record in own)
        for phase in ("draft", "verify", "catch_up", "overhead"):
            seconds = sum(getattr(record, f"{phase}_seconds") for record in own)
            assert found["metasd:round_seconds_total", (arm, phase)] == pytest.approx(seconds)
        drafted = [record for record in own if record.num_draft_tokens]
        if not drafted:
            assert ("metasd:spec_decode_num_drafts_total", (arm,)) not in found
            continue
        assert found["metasd:spec_decode_num_drafts_total", (arm,)] == len(drafted)
        assert found["metasd:spec_decode_num_draft_tokens_total", (arm,)] == sum(r.num_draft_tokens for r in drafted)
        accepted = sum(record.num_accepted_tokens for record in drafted)
        assert found["metasd:spec_decode_num_accepted_tokens_total", (arm,)] == accepted
        by_position = [
            value
            for (name, labels), value in found.items()
            if name == "metasd:spec_decode_num_accepted_tokens_per_pos_total" and labels[0] == arm
        ]
        assert sum(by_position) == accepted
        assert by_position == sorted(by_position, reverse=True)
        assert found["metasd:block_divergence_total", (arm,)] == pytest.approx(sum(record.bd for record in drafted))


def test_two_engines_do_not_collide_and_the_prefix_is_the_users() -> None:
    """Each has a registry of its own; in one registry the names tell them apart."""
    first, second = PrometheusMetrics(), PrometheusMetrics()
    assert first.registry is not second.registry
    other = PrometheusMetrics(first.registry, prefix="vllm")
    assert "vllm:spec_decode_num_drafts_total" in other.text().replace("_created", "")
    with pytest.raises(UsageError, match=r"prefix: .*got 'a b'"):
        PrometheusMetrics(prefix="a b")


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MetaSDError, match=r"pip install 'metasd\[metrics\]'"):
        PrometheusMetrics()


def test_the_command_line_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from metasd import cli

    target = toy_target()
    monkeypatch.setattr(cli, "_load", lambda *names, **options: engine_of(target, ["suffix"]))
    file = tmp_path / "metrics.txt"
    arguments = ["generate", "1 2 3", "--raw", "--max-new-tokens", "7", "--no-stream", "--metrics", str(file)]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert samples(file.read_text())["metasd:generation_tokens_total", ()] == 7
