"""The cost table: what was measured, and what is assumed where nothing was."""

import json

import pytest

from metasd.bandits import CostTable


def test_nominal_costs_until_something_is_measured() -> None:
    table = CostTable({"a": 0.25})
    assert table.plain() == 1.0
    assert table.verify(5) == pytest.approx(1 + 5 * 0.06)
    assert table.round("a", 4) == pytest.approx(4 * 0.25 + 1.24)
    assert table.round("unknown", 4) == pytest.approx(1.24)
    assert table.round("a", 0) == 1.0


def test_measured_costs() -> None:
    table = CostTable({"a": 0.25})
    table.add_verify(0, 2.0)
    table.add_round("a", 4, draft_seconds=2.0, verify_seconds=3.0, catch_up_seconds=0.5)
    assert table.plain() == 2.0
    assert table.round("a", 4) == pytest.approx(4 * 0.5 + 0.5 + 3.0)
    assert table.verify(2) == pytest.approx(2.5)  # between what was measured
    assert table.verify(8) == pytest.approx(3.0 * (1 + 8 * 0.06) / (1 + 4 * 0.06))  # beyond it
    assert table.round("b", 4) == pytest.approx(3.0)  # nothing is known of b's drafts


def test_an_unmeasured_drafter_costs_its_share_of_a_measured_forward_pass() -> None:
    table = CostTable({"a": 0.25})
    table.add_verify(0, 8.0)
    assert table.round("a", 2) == pytest.approx(2 * 0.25 * 8 + 8 * 1.12)


def test_means_forget_and_outliers_count_for_little() -> None:
    table = CostTable()
    for _ in range(50):
        table.add_verify(0, 1.0)
    table.add_verify(0, 1000.0)
    assert table.plain() < 1.05
    for _ in range(300):
        table.add_verify(0, 3.0)
    assert table.plain() == pytest.approx(3.0, rel=0.01)


def test_a_nominal_copy_knows_no_clock() -> None:
    table = CostTable({"a": 0.25})
    table.add_round("a", 4, 9.0, 9.0, 9.0)
    assert table.nominal().state() == {"verify": {}, "draft": {}, "catch_up": {}}
    assert table.nominal().round("a", 4) == pytest.approx(2.24)


def test_no_cost_is_zero() -> None:
    table = CostTable()
    table.add_round("a", 4, 0.0, 0.0, 0.0)
    table.add_verify(0, -1.0)
    assert table.plain() > 0
    assert table.round("a", 4) > 0
    for _ in range(40):
        table.add_verify(0, 1.0)
    assert table.plain() > 0


def test_state_as_json() -> None:
    table = CostTable({"a": 0.25})
    table.add_round("a", 4, 2.0, 3.0, 0.5)
    table.add_verify(0, 1.5)
    other = CostTable({"a": 0.25})
    other.load(json.loads(json.dumps(table.state())))
    assert other.state() == table.state()
    assert [other.round("a", n) for n in range(9)] == [table.round("a", n) for n in range(9)]
