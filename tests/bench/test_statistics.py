"""Numbers of the tables against numbers computed by hand."""

import pytest
from bench_toys import record, row

from metasd.bench.curves import arm_shares, cumulative_reward
from metasd.bench.statistics import OVERALL, find_oracle, ratio, resampled, table, timing


def test_a_rate_is_all_tokens_over_all_seconds() -> None:
    """Not the mean of rates: 10 tokens in 1 s and 2 tokens in 4 s are 12 / 5, not 5.25."""
    own = timing([row("x", "p", 10, 1.0), row("x", "q", 2, 4.0)], ["p", "q"])
    assert float(own.rate()) == pytest.approx(12 / 5)


def test_repetitions_give_a_median_and_seeds_add_up() -> None:
    rows = [row("x", "p", 4, seconds, repetition=index) for index, seconds in enumerate((1.0, 9.0, 2.0))]
    assert timing(rows, ["p"]).seconds.tolist() == [2.0]
    rows += [row("x", "p", 6, 3.0, seed=1)]
    both = timing(rows, ["p"])
    assert (both.tokens.tolist(), both.seconds.tolist()) == ([10.0], [5.0])


def test_an_answer_of_one_step_counts_for_nothing() -> None:
    rows = [row("x", "p", 0, 0.0), row("x", "q", 4, 2.0)]
    assert float(timing(rows, ["p", "q"]).rate()) == 2.0
    assert ratio(timing(rows[:1], ["p"]), timing(rows[1:], ["q"]), ["a"]) is None


def test_speed_ups_are_paired_ratios_with_an_interval() -> None:
    """Twice as fast on one prompt and four times on the other: every resample lies between, and its ends are met."""
    rows = [row("plain", "p", 10, 10.0), row("plain", "q", 10, 20.0)]
    rows += [row("x", "p", 10, 5.0), row("x", "q", 10, 5.0)]
    cell = table(rows)[OVERALL]["x"]
    assert cell.speed_up is not None
    assert cell.speed_up.value == pytest.approx(30 / 10)
    assert cell.speed_up.interval == pytest.approx((2.0, 4.0))
    alone = table([each for each in rows if each.prompt_id == "p"])[OVERALL]["x"]
    assert alone.speed_up is not None
    assert alone.speed_up.interval is None


def test_what_slows_both_alike_does_not_widen_the_interval() -> None:
    """Negative control of pairing: prompts differ by a factor of 50, the ratio by nothing."""
    rows = [row("plain", str(k), 10, 1.0 + 50 * k) for k in range(8)]
    rows += [row("x", str(k), 10, 0.5 * (1.0 + 50 * k)) for k in range(8)]
    estimate = table(rows)[OVERALL]["x"].speed_up
    assert estimate is not None
    assert estimate.interval == pytest.approx((2.0, 2.0))


def test_resamples_keep_the_number_of_prompts_of_a_domain() -> None:
    draws = resampled(["a", "b", "a", "b", "b"])
    in_a = (draws == 0) | (draws == 2)
    assert set(in_a.sum(1).tolist()) == {2}
    assert {tuple(sorted(line)) for line in draws[:, :2].tolist()} == {(0, 0), (0, 2), (2, 2)}
    mixed = resampled(["a", "b", "b"])  # one prompt of a domain could never vary
    assert set((mixed == 0).sum(1).tolist()) == {0, 1, 2, 3}


def test_the_oracle_is_chosen_on_the_other_half() -> None:
    """An arm that is fast on one prompt only is chosen for the others, and never for that one."""
    pace = {"arm:x": [0.1, 9.0, 9.0, 9.0], "arm:y": [2.0, 2.0, 2.0, 2.0], "plain": [3.0, 3.0, 3.0, 3.0]}
    rows = [row(name, str(k), 10, seconds[k]) for name, seconds in pace.items() for k in range(4)]
    oracle = find_oracle(rows)
    # the even half: x takes 9.1 s, y 4 s; the odd half: x 18 s, y 4 s
    assert set(oracle.system_by_prompt.values()) == {"arm:y"}
    pace["arm:x"][2] = 0.1  # now x takes 0.2 s on the even half, and is played on the odd one, where it is bad
    rows = [row(name, str(k), 10, seconds[k]) for name, seconds in pace.items() for k in range(4)]
    oracle = find_oracle(rows)
    assert oracle.system_by_prompt == {"0": "arm:y", "2": "arm:y", "1": "arm:x", "3": "arm:x"}
    cells = table(rows)[OVERALL]
    assert cells["oracle"].tokens_per_second == pytest.approx(40 / (2 + 2 + 9 + 9))
    over = cells["arm:y"].over_oracle
    assert over is not None
    assert over.value == pytest.approx(22 / 8)


def test_where_no_drafter_pays_the_oracle_is_plain_and_one_prompt_has_none() -> None:
    rows = [row(name, p, 10, seconds) for name, seconds in (("plain", 1.0), ("arm:x", 2.0)) for p in "pq"]
    assert set(find_oracle(rows).system_by_prompt.values()) == {"plain"}
    rows += [row(name, "r", 10, 1.0, domain="b") for name in ("plain", "arm:x")]
    assert find_oracle(rows).missing == ["b"]
    found = table(rows)
    assert "oracle" in found["a"]
    assert "oracle" not in found[OVERALL]


def test_what_the_rounds_tell() -> None:
    rounds = [
        record("x", 2, 2, 0, bd=0.8, draft_seconds=1.0, verify_seconds=5.0),
        record("y", 2, 1, 1, bd=0.4, catch_up_seconds=2.0, verify_seconds=1.0, switched=True),
        record("null", 0, 0, 2, overhead_seconds=1.0, switched=True),
        record("x", 4, 0, 3, bd=0.3, switched=True),
    ]
    rows = [row(name, p, 8, 1.0) for p in "pq" for name in ("plain", "arm:x", "arm:y")]
    rows = [each if each.system != "arm:y" else row("arm:y", each.prompt_id, 8, 5.0) for each in rows]
    rows = [each if each.system != "arm:x" else row("arm:x", each.prompt_id, 8, 0.5) for each in rows]
    cell = table([*rows, *(row("auto", p, 7, 1.0, rounds=rounds) for p in "pq")])[OVERALL]["auto"]
    assert cell.acceptance_length == pytest.approx(1 + 3 / 4)
    assert cell.acceptance_rate == pytest.approx(3 / 8)
    assert cell.acceptance_by_position == pytest.approx((2 / 3, 1 / 3, 0.0, 0.0))
    assert cell.block_divergence == pytest.approx(0.5)
    assert cell.switches == 3
    assert cell.catch_up_share == pytest.approx(0.2)
    assert cell.overhead_share == pytest.approx(0.1)
    assert cell.best_arm_share == pytest.approx(0.5)  # the oracle plays x


def test_curves() -> None:
    def answer(arms: str) -> list[object]:
        return [record(arm, 1, 1, index, bd=0.5) for index, arm in enumerate(arms)]

    rows = [row("auto", "p", 9, 1.0, rounds=answer("xxyy")), row("auto", "q", 9, 1.0, rounds=answer("xyx"))]
    shares = arm_shares(rows, width=2)
    assert shares.first_round == [1, 3]
    assert shares.share == {"x": [0.75, pytest.approx(1 / 3)], "y": [0.25, pytest.approx(2 / 3)]}
    again = row("auto", "p", 9, 1.0, repetition=1, rounds=answer("xxxx"))
    assert cumulative_reward([*rows, again]).values == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
