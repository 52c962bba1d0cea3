"""Dates in a query raise the rank of passages of those dates."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from mnemesh_archival.model.passages import Asking, Continuity, PassagePosition
from mnemesh_archival.model.ranking import date_parts, date_scores


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("What happened on 8 May 2023?", {("day", 8), ("month", 5), ("year", 2023)}),
        ("on the 21st of july", {("day", 21), ("month", 7)}),
        ("Who left in 1999?", {("year", 1999)}),
        ("What may I march for? 3 times, 2 of 4,000", set()),
        ("", set()),
    ],
)
def test_days_count_only_with_a_month(query: str, parts: set[tuple[str, int]]) -> None:
    assert set(date_parts(query)) == parts


def position(number: int, month: int) -> PassagePosition:
    created_at = datetime(2023, month, 8, tzinfo=UTC)
    return PassagePosition(UUID(int=number), "a", "s", number, created_at, Continuity.DIALOGUE, "", Asking.NONE)


def test_rarer_date_parts_score_higher() -> None:
    positions = [position(1, 5), *(position(number, 6) for number in range(2, 10))]
    found = date_scores("In May 2023 or June?", positions)
    assert found[UUID(int=1)] > 1 > found[UUID(int=2)]
    assert date_scores("in July", positions) == {}
    assert date_scores("the year's end", positions) == {}


def test_date_part_of_all_passages_scores_almost_nothing() -> None:
    assert all(score < 0.1 for score in date_scores("June", [position(number, 6) for number in range(9)]).values())
