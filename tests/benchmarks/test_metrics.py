"""Scores of searches: shares, reciprocal ranks, intervals, differences."""

from collections.abc import Sequence

import pytest

from benchmarks.metrics import Outcome, by_category, mean, outcome, scores, share


def test_some_and_all_evidence_are_scored_apart() -> None:
    found = outcome("d", "q", "c", ["x", "a", "a", "y", "b"], {"a", "b"})
    assert found.ranks == (2, 4), "a repeated hit counts once"
    assert (found.any_at(1), found.any_at(2), found.all_at(2), found.all_at(4)) == (False, True, False, True)
    assert found.reciprocal_rank == 0.5
    missed = outcome("d", "q", "c", ["x"], {"a"})
    assert (missed.ranks, missed.any_at(10), missed.reciprocal_rank) == ((None,), False, 0.0)
    with pytest.raises(ValueError, match="no evidence"):
        outcome("d", "q", "c", ["x"], ())


def test_wilson_interval() -> None:
    # 8 of 10; the limits are those of the published formula.
    found = share([True] * 8 + [False] * 2)
    assert (found.value, found.count) == (0.8, 10)
    assert found.low == pytest.approx(0.4902, abs=1e-4)
    assert found.high == pytest.approx(0.9433, abs=1e-4)
    sure = share([True] * 10)
    assert sure.high == pytest.approx(1.0)
    assert sure.low == pytest.approx(0.7225, abs=1e-4), "ten successes do not make the share certain"
    assert (share([]).low, share([]).high, share([]).count) == (0.0, 1.0, 0)


def test_bootstrap_interval_covers_the_mean_and_narrows_with_questions() -> None:
    few, many = mean([0.0, 1.0] * 10), mean([0.0, 1.0] * 1_000)
    assert few.low < 0.5 < few.high
    assert many.high - many.low < (few.high - few.low) / 5
    assert few == mean([0.0, 1.0] * 10), "the same values give the same interval"
    assert mean([]).count == 0


def some(ranks: Sequence[int | None], category: str = "c") -> list[Outcome]:
    return [Outcome("d", str(number), category, (rank,)) for number, rank in enumerate(ranks)]


def test_scores_and_categories() -> None:
    found = scores(some([1, 3, None, 7]))
    assert [found.any_at[depth].value for depth in (1, 5, 10)] == [0.25, 0.5, 0.75]
    assert found.all_at[5].value == 0.5
    assert found.reciprocal_rank.value == pytest.approx((1 + 1 / 3 + 1 / 7) / 4)
    groups = by_category([*some([1], "when"), *some([2], "who")])
    assert {name: len(group) for name, group in groups.items()} == {"when": 1, "who": 1}
