"""Expressions of time in queries: the ranges that they denote, and the questions that have none."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from mnemesh_retrieval.time_expressions.resolver import MAX_RANGES, TimeRange, resolve, resolve_all

ZONE = ZoneInfo("Europe/Berlin")
FRIDAY = datetime(2023, 8, 25, 13, tzinfo=ZONE)
"""The reference time, unless a test says otherwise."""
NOW = "2023-08-25 13:00"

DAYS = [
    ("What did she do today?", "today", "2023-08-25", "2023-08-26"),
    ("What did she do yesterday?", "yesterday", "2023-08-24", "2023-08-25"),
    ("yesterday's concert", "yesterday", "2023-08-24", "2023-08-25"),
    ("the day before yesterday", "day before yesterday", "2023-08-23", "2023-08-24"),
    ("any plans for tomorrow", "for tomorrow", "2023-08-26", "2023-08-27"),
    ("the day after tomorrow", "day after tomorrow", "2023-08-27", "2023-08-28"),
    ("yesterday evening", "yesterday evening", "2023-08-24 18:00", "2023-08-25"),
    ("What happened last night?", "last night", "2023-08-24 18:00", "2023-08-25 06:00"),
    ("this morning", "this morning", "2023-08-25 04:00", "2023-08-25 12:00"),
    ("tonight", "tonight", "2023-08-25 18:00", "2023-08-26 06:00"),
    ("earlier today", "earlier today", "2023-08-25", NOW),
    ("the other day", "other day", "2023-08-18", "2023-08-25"),
    ("What happened on 7 May?", "on 7 May", "2023-05-07", "2023-05-08"),
    ("on the 7th of May", "on the 7th of May", "2023-05-07", "2023-05-08"),
    ("May 7", "May 7", "2023-05-07", "2023-05-08"),
    ("May the 7th", "May the 7th", "2023-05-07", "2023-05-08"),
    ("the first of May", "first of May", "2023-05-01", "2023-05-02"),
    ("may 7th 2022", "may 7th 2022", "2022-05-07", "2022-05-08"),
    ("May 7th, 2023", "May 7th, 2023", "2023-05-07", "2023-05-08"),
    ("7 May 2023", "7 May 2023", "2023-05-07", "2023-05-08"),
    ("Sunday, 7 May 2023", "Sunday, 7 May 2023", "2023-05-07", "2023-05-08"),
    ("Sept. 5, 2022", "Sept. 5, 2022", "2022-09-05", "2022-09-06"),
    ("on December 24", "on December 24", "2022-12-24", "2022-12-25"),
    ("29 February", "29 February", "2020-02-29", "2020-03-01"),
    ("29 February 2024", "29 February 2024", "2024-02-29", "2024-03-01"),
    ("on the 7th", "on the 7th", "2023-08-07", "2023-08-08"),
    ("on the 31st", "on the 31st", "2023-07-31", "2023-08-01"),
    ("last day of February 2024", "last day of February 2024", "2024-02-29", "2024-03-01"),
]
WEEKS = [
    ("last week", "last week", "2023-08-14", "2023-08-21"),
    ("in this week's call", "in this week", "2023-08-21", "2023-08-28"),
    ("next week", "next week", "2023-08-28", "2023-09-04"),
    ("the week before last", "week before last", "2023-08-07", "2023-08-14"),
    ("in the last week", "in the last week", "2023-08-18", NOW),
    ("the past week", "past week", "2023-08-18", NOW),
    ("earlier this week", "earlier this week", "2023-08-21", NOW),
    ("the week of 7 May 2023", "week of 7 May 2023", "2023-05-01", "2023-05-08"),
    ("the first week of May", "first week of May", "2023-05-01", "2023-05-08"),
    ("the last week of May 2022", "last week of May 2022", "2022-05-25", "2022-06-01"),
    ("What changed since Tuesday?", "since Tuesday", "2023-08-22", NOW),
    ("on Tuesday", "on Tuesday", "2023-08-22", "2023-08-23"),
    ("what happened tuesday", "tuesday", "2023-08-22", "2023-08-23"),
    ("Friday", "Friday", "2023-08-25", "2023-08-26"),
    ("last Friday", "last Friday", "2023-08-18", "2023-08-19"),
    ("this Sunday", "this Sunday", "2023-08-27", "2023-08-28"),
    ("next Friday", "next Friday", "2023-09-01", "2023-09-02"),
    ("Tuesday morning", "Tuesday morning", "2023-08-22 04:00", "2023-08-22 12:00"),
    ("last Tuesday evening", "last Tuesday evening", "2023-08-22 18:00", "2023-08-23"),
    ("on Mon", "on Mon", "2023-08-21", "2023-08-22"),
    ("two Fridays ago", "two Fridays ago", "2023-08-11", "2023-08-12"),
    ("last weekend", "last weekend", "2023-08-19", "2023-08-21"),
    ("this weekend", "this weekend", "2023-08-26", "2023-08-28"),
    ("over the weekend", "over the weekend", "2023-08-19", "2023-08-21"),
    ("this past weekend", "this past weekend", "2023-08-19", "2023-08-21"),
    ("from Monday to Wednesday", "from Monday to Wednesday", "2023-08-21", "2023-08-24"),
]
MONTHS = [
    ("What did she paint in May?", "in May", "2023-05-01", "2023-06-01"),
    ("in may", "in may", "2023-05-01", "2023-06-01"),
    ("in May 2023", "in May 2023", "2023-05-01", "2023-06-01"),
    ("May of last year", "May of last year", "2022-05-01", "2022-06-01"),
    ("last year in May", "last year in May", "2022-05-01", "2022-06-01"),
    ("the October trip", "October", "2022-10-01", "2022-11-01"),
    ("in August", "in August", "2023-08-01", "2023-09-01"),
    ("in September", "in September", "2022-09-01", "2022-10-01"),
    ("last May", "last May", "2023-05-01", "2023-06-01"),
    ("last August", "last August", "2022-08-01", "2022-09-01"),
    ("this May", "this May", "2023-05-01", "2023-06-01"),
    ("next March", "next March", "2024-03-01", "2024-04-01"),
    ("in Dec", "in Dec", "2022-12-01", "2023-01-01"),
    ("Jan 2023", "Jan 2023", "2023-01-01", "2023-02-01"),
    ("last month", "last month", "2023-07-01", "2023-08-01"),
    ("this month", "this month", "2023-08-01", "2023-09-01"),
    ("early May", "early May", "2023-05-01", "2023-05-11"),
    ("in mid-June 2023", "in mid-June 2023", "2023-06-11", "2023-06-21"),
    ("by the end of May", "by the end of May", "2023-05-21", "2023-06-01"),
    ("the second half of December 2022", "second half of December 2022", "2022-12-16", "2023-01-01"),
    ("between March and May", "between March and May", "2023-03-01", "2023-06-01"),
    ("between November and February", "between November and February", "2022-11-01", "2023-03-01"),
    ("from May to July 2022", "from May to July 2022", "2022-05-01", "2022-08-01"),
    ("between 7 and 9 May", "between 7 and 9 May", "2023-05-07", "2023-05-10"),
    ("from May 7 to 9", "from May 7 to 9", "2023-05-07", "2023-05-10"),
    ("since May", "since May", "2023-05-01", NOW),
    ("until March", "until March", None, "2023-04-01"),
]
YEARS = [
    ("last year", "last year", "2022-01-01", "2023-01-01"),
    ("this year", "this year", "2023-01-01", "2024-01-01"),
    ("in 2022", "in 2022", "2022-01-01", "2023-01-01"),
    ("the year 2021", "2021", "2021-01-01", "2022-01-01"),
    ("before 2020", "before 2020", None, "2020-01-01"),
    ("since 2019", "since 2019", "2019-01-01", NOW),
    ("between 2019 and 2021", "between 2019 and 2021", "2019-01-01", "2022-01-01"),
    ("late 2022", "late 2022", "2022-09-01", "2023-01-01"),
    ("late last year", "late last year", "2022-09-01", "2023-01-01"),
    ("the end of the year", "end of the year", "2023-09-01", "2024-01-01"),
    ("in the 1990s", "in the 1990s", "1990-01-01", "2000-01-01"),
    ("last summer", "last summer", "2022-06-01", "2022-09-01"),
    ("in the summer", "in the summer", "2023-06-01", "2023-09-01"),
    ("summer 2021", "summer 2021", "2021-06-01", "2021-09-01"),
    ("the winter of 2021", "winter of 2021", "2021-12-01", "2022-03-01"),
    ("last fall", "last fall", "2022-09-01", "2022-12-01"),
    ("this winter", "this winter", "2023-12-01", "2024-03-01"),
    ("Q1 2023", "Q1 2023", "2023-01-01", "2023-04-01"),
    ("in Q3", "in Q3", "2023-07-01", "2023-10-01"),
    ("in the third quarter of last year", "in the third quarter of last year", "2022-07-01", "2022-10-01"),
    ("the first half of 2023", "first half of 2023", "2023-01-01", "2023-07-01"),
    ("last quarter", "last quarter", "2023-04-01", "2023-07-01"),
    ("before Christmas", "before Christmas", None, "2022-12-24"),
    ("Christmas 2021", "Christmas 2021", "2021-12-24", "2021-12-27"),
    ("last Christmas", "last Christmas", "2022-12-24", "2022-12-27"),
    ("on New Year's Eve", "on New Year's Eve", "2022-12-31", "2023-01-01"),
    ("at Easter", "at Easter", "2023-04-07", "2023-04-11"),
    ("Thanksgiving 2022", "Thanksgiving 2022", "2022-11-24", "2022-11-25"),
    ("Valentine’s Day", "Valentine’s Day", "2023-02-14", "2023-02-15"),
    ("the week before Christmas", "week before Christmas", "2022-12-17", "2022-12-24"),
    ("two days after 7 May 2023", "two days after 7 May 2023", "2023-05-09", "2023-05-10"),
    ("after May 7, 2023", "after May 7, 2023", "2023-05-08", NOW),
]
AGO = [
    ("two weeks ago", "two weeks ago", "2023-08-08", "2023-08-15"),
    ("a week ago", "a week ago", "2023-08-15", "2023-08-22"),
    ("3 days ago", "3 days ago", "2023-08-22", "2023-08-23"),
    ("a few days ago", "a few days ago", "2023-08-19", "2023-08-24"),
    ("a couple of days ago", "a couple of days ago", "2023-08-22", "2023-08-24"),
    ("several weeks ago", "several weeks ago", "2023-06-13", "2023-08-08"),
    ("about a month ago", "a month ago", "2023-07-10", "2023-08-10"),
    ("two years ago", "two years ago", "2021-02-24", "2022-02-24"),
    ("half a year ago", "half a year ago", "2023-02-10", "2023-03-13"),
    ("3 hours ago", "3 hours ago", "2023-08-25 09:30", "2023-08-25 10:30"),
    ("half an hour ago", "half an hour ago", "2023-08-25 12:19:30", "2023-08-25 12:40:30"),
    ("in the past three days", "in the past three days", "2023-08-22", NOW),
    ("the last two months", "last two months", "2023-06-25", NOW),
    ("in the last 24 hours", "in the last 24 hours", "2023-08-24 13:00", NOW),
    ("over the last few weeks", "over the last few weeks", "2023-07-14", NOW),
    ("What happened since two weeks ago?", "since two weeks ago", "2023-08-08", NOW),
]
NUMERIC = [
    ("2023-05-07", "2023-05-07", "2023-05-07", "2023-05-08"),
    ("on 2023-05-07T22:30Z", "on 2023-05-07T22:30Z", "2023-05-07", "2023-05-08"),
    ("2023/5/7", "2023/5/7", "2023-05-07", "2023-05-08"),
    ("am 7.5.2023", "7.5.2023", "2023-05-07", "2023-05-08"),
    ("le 25/12/2022", "25/12/2022", "2022-12-25", "2022-12-26"),
    ("2023年5月7日に何をした", "2023年5月7日", "2023-05-07", "2023-05-08"),
    ("2023년 5월 7일", "2023년 5월 7일", "2023-05-07", "2023-05-08"),
    ("2023-05", "2023-05", "2023-05-01", "2023-06-01"),
    ("2023年5月", "2023年5月", "2023-05-01", "2023-06-01"),
    ("since 2023-05-07", "since 2023-05-07", "2023-05-07", NOW),
    ("between 2023-05-07 and 2023-05-09", "between 2023-05-07 and 2023-05-09", "2023-05-07", "2023-05-10"),
]
NO_EXPRESSION = [
    "",
    "How many children does Melanie have now?",
    "May I ask about the second trip?",
    "She may like it, and they may not.",
    "Going early may help.",
    "The last may be best.",
    "Did they march on the city for a second?",
    "How did the last march go?",
    "Who is April?",
    "What is April's favourite colour?",
    "What did May and June talk about?",
    "Did August call?",
    "Who lives with May?",
    "a letter for June",
    "Does Melanie believe in April?",
    "in April Smith's house",
    "Whom did Wednesday Addams meet?",
    "my Sunday best",
    "What does she do on Sundays?",
    "every Tuesday",
    "a Taco Tuesday recipe",
    "on a dry Tuesday",
    "10 March Street",
    "May. 7 people came.",
    "She works on May 5 days a week",
    "on the 7th floor",
    "the second quarter of the game",
    "2000 people came in 2000 cars",
    "Which room has the number 2012?",
    "192.168.1.10, version 1.2.2023.4, 555-2023",
    "the fall of the wall",
    "a summer job",
    "the hot spring",
    "the Christmas tree",
    "the end of the trip",
    "the next day",
    "the last time",
    "last minute changes",
    "in the last month of the pregnancy",
    "half past two",
    "two days back pain",
    "a long time ago",
    "What did I say in the morning?",
    "2023-13-01",
    "0000-05-07",
    "Is the mayor of Augusta decent?",
]


def local(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=ZONE)


@pytest.mark.parametrize(("query", "words", "start", "end"), [*DAYS, *WEEKS, *MONTHS, *YEARS, *AGO, *NUMERIC])
def test_expression(query: str, words: str, start: str | None, end: str | None) -> None:
    assert resolve(query, ZONE, FRIDAY) == (TimeRange(words, local(start), local(end)),)


@pytest.mark.parametrize("query", NO_EXPRESSION)
def test_a_question_without_an_expression_has_no_range(query: str) -> None:
    assert resolve(query, ZONE, FRIDAY) == ()


def test_an_ambiguous_numeric_date_has_both_ranges() -> None:
    may, july = resolve("05/07/2023", ZONE, FRIDAY)
    assert (may.start, july.start) == (local("2023-05-07"), local("2023-07-05"))
    assert len(resolve("05/05/2023", ZONE, FRIDAY)) == 1


def test_ranges_are_in_the_order_of_the_queries_and_each_once() -> None:
    found = resolve_all(["What changed last week, and in May?", "last week", "yesterday"], ZONE, FRIDAY)
    assert [each.expression for each in found] == ["last week", "in May", "yesterday"]


@pytest.mark.parametrize("query", ["2023-05-07", "7 May 2023", "May 7th, 2023", "Sunday, 7 May 2023", "7.5.2023"])
def test_a_complete_date_needs_no_reference_time(query: str) -> None:
    (found,) = resolve(f"What happened on {query}?", UTC, None)
    assert (found.start, found.end) == (datetime(2023, 5, 7, tzinfo=UTC), datetime(2023, 5, 8, tzinfo=UTC))


@pytest.mark.parametrize("query", ["last week", "in May 2023", "7 May", "in 2023", "7 May last year", "yesterday"])
def test_other_expressions_need_one(query: str) -> None:
    assert resolve(query, UTC, None) == ()


def test_without_a_reference_time_a_bound_stays_open() -> None:
    assert resolve("since 7 May 2023", UTC, None)[0].end is None


@pytest.mark.parametrize(
    ("reference", "query", "start", "end"),
    [
        # The year ends.
        ("2024-01-01 00:00", "yesterday", "2023-12-31", "2024-01-01"),
        ("2024-01-01 00:00", "last week", "2023-12-25", "2024-01-01"),
        ("2024-01-02 09:00", "last month", "2023-12-01", "2024-01-01"),
        ("2024-01-02 09:00", "last quarter", "2023-10-01", "2024-01-01"),
        ("2024-01-02 09:00", "in December", "2023-12-01", "2024-01-01"),
        ("2024-01-02 09:00", "between November and February", "2023-11-01", "2024-03-01"),
        ("2024-01-02 09:00", "this winter", "2023-12-01", "2024-03-01"),
        ("2024-01-02 09:00", "last Christmas", "2023-12-24", "2023-12-27"),
        ("2023-12-31 23:59", "this week", "2023-12-25", "2024-01-01"),
        # Leap years and short months.
        ("2024-03-31 12:00", "a month ago", "2024-02-14", "2024-03-16"),
        ("2024-02-29 12:00", "today", "2024-02-29", "2024-03-01"),
        ("2024-02-29 12:00", "on the 30th", "2024-01-30", "2024-01-31"),
        # On the day itself.
        ("2023-05-01 08:00", "in May", "2023-05-01", "2023-06-01"),
        ("2023-06-01 08:00", "last May", "2023-05-01", "2023-06-01"),
        ("2023-08-20 08:00", "last weekend", "2023-08-12", "2023-08-14"),
        ("2023-08-20 08:00", "over the weekend", "2023-08-19", "2023-08-21"),
    ],
)
def test_reference_times(reference: str, query: str, start: str, end: str) -> None:
    (found,) = resolve(query, ZONE, local(reference))
    assert (found.start, found.end) == (local(start), local(end))


@pytest.mark.parametrize(
    ("reference", "query", "hours"),
    [
        ("2023-03-27 12:00", "yesterday", 23),
        ("2023-10-30 12:00", "yesterday", 25),
        ("2023-03-27 12:00", "last week", 7 * 24 - 1),
        ("2023-10-29 12:00", "in the last 24 hours", 24),
        ("2023-03-26 12:00", "12 hours ago", 1),
    ],
)
def test_days_with_a_change_of_the_clock(reference: str, query: str, hours: int) -> None:
    (found,) = resolve(query, ZONE, local(reference))
    assert found.start is not None
    assert found.end is not None
    assert found.end - found.start == timedelta(hours=hours)


def test_a_day_without_midnight_begins_with_its_first_hour() -> None:
    (found,) = resolve("2023-09-03", ZoneInfo("America/Santiago"), None)
    assert found.start == datetime(2023, 9, 3, 4, tzinfo=UTC)
    assert found.end == datetime(2023, 9, 4, 3, tzinfo=UTC)


def test_the_day_is_that_of_the_zone() -> None:
    reference = datetime(2023, 8, 25, 22, 30, tzinfo=UTC)
    assert resolve("today", ZONE, reference)[0].start == local("2023-08-26")
    assert resolve("today", UTC, reference)[0].start == datetime(2023, 8, 25, tzinfo=UTC)


@pytest.mark.parametrize("year", [1, 9999])
def test_times_beyond_the_calendar_are_no_ranges(year: int) -> None:
    queries = [
        "last year",
        "next year",
        "9999 years ago",
        "in May",
        "last summer",
        "the past 9999 decades",
        "last night",
    ]
    for query in queries:
        for day in (datetime(year, 1, 1, tzinfo=UTC), datetime(year, 12, 31, 23, 59, tzinfo=UTC)):
            for found in resolve(query, ZoneInfo("Pacific/Kiritimati"), day):
                assert found.start is None or found.end is None or found.start < found.end


def test_a_long_query_is_read_in_part() -> None:
    assert len(resolve("yesterday and in May " * 500, ZONE, FRIDAY)) == MAX_RANGES
    assert resolve("x" * 2_000 + " yesterday", ZONE, FRIDAY) == ()
