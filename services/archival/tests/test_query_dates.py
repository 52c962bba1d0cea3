"""Days that a query names count for the passages that are of them."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from mnemesh_archival.model.passages import PassagePosition
from mnemesh_archival.model.query_dates import matching, named


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
def test_days_are_read_where_a_month_is_named(query: str, parts: set[tuple[str, int]]) -> None:
    assert set(named(query)) == parts


def place(number: int, month: int) -> PassagePosition:
    return PassagePosition(UUID(int=number), "a", "s", number, datetime(2023, month, 8, tzinfo=UTC))


def test_a_day_counts_the_more_the_fewer_have_it() -> None:
    places = [place(1, 5), *(place(number, 6) for number in range(2, 10))]
    found = matching("In May 2023 or June?", places)
    assert found[UUID(int=1)] > 1 > found[UUID(int=2)]
    assert matching("in July", places) == {}
    assert matching("the year's end", places) == {}


def test_a_day_that_all_have_tells_next_to_nothing() -> None:
    assert all(score < 0.1 for score in matching("June", [place(number, 6) for number in range(9)]).values())
