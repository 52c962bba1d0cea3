"""Timestamps, time zones and date ranges."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import (
    DateRange,
    date_range,
    optional_timestamp_from_proto,
    optional_timestamp_to_proto,
    timestamp_from_proto,
    timestamp_to_proto,
    zone_from_name,
)

BERLIN = "Europe/Berlin"
INSTANTS = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))])).filter(
    lambda moment: 1 < moment.year < 9999
)


@given(INSTANTS)
def test_timestamp_keeps_the_instant(instant: datetime) -> None:
    timestamp = timestamp_to_proto(instant)
    reference = Timestamp()
    reference.FromDatetime(instant)
    assert timestamp == reference
    assert timestamp_from_proto(timestamp, "at") == instant
    assert timestamp_from_proto(timestamp, "at").tzinfo is UTC


@pytest.mark.parametrize(
    "timestamp",
    [
        Timestamp(seconds=1 << 60),
        Timestamp(seconds=-(1 << 60)),
        Timestamp(seconds=253_402_300_800),
        Timestamp(seconds=-62_135_596_801),
        Timestamp(nanos=-1),
        Timestamp(nanos=1_000_000_000),
    ],
)
def test_timestamp_that_no_datetime_can_hold_is_refused(timestamp: Timestamp) -> None:
    with pytest.raises(InvalidArgument) as refused:
        timestamp_from_proto(timestamp, "filter.at")
    assert refused.value.field == "filter.at"


def test_first_and_the_last_instant_are_kept() -> None:
    for instant in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        assert timestamp_from_proto(timestamp_to_proto(instant), "at") == instant


def test_unset_timestamp_is_none() -> None:
    block = blocks_pb2.Block()
    assert optional_timestamp_from_proto(block, "create_time") is None
    block.create_time.seconds = 5
    assert optional_timestamp_from_proto(block, "create_time") == datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    block.create_time.nanos = -1
    with pytest.raises(InvalidArgument) as refused:
        optional_timestamp_from_proto(block, "create_time", "block.create_time")
    assert refused.value.field == "block.create_time"
    assert optional_timestamp_to_proto(None) is None
    assert optional_timestamp_to_proto(datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)) == Timestamp(seconds=5)


def test_no_zone_name_means_utc() -> None:
    assert zone_from_name("", "time_zone") is UTC
    assert zone_from_name(None, "time_zone") is UTC
    assert str(zone_from_name(BERLIN, "time_zone")) == BERLIN


@pytest.mark.parametrize("name", ["Nowhere/Here", "../etc/passwd", "Europe", "UTC\0", "x" * 300, " ", "/UTC", "Ü"])
def test_zone_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        zone_from_name(name, "agent.time_zone")
    assert refused.value.field == "agent.time_zone"
    assert len(refused.value.message) < 200


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "zone", "instant"),
    [
        ("2026-01-20", None, "2026-01-20"),
        ("2026-01-20", BERLIN, "2026-01-19 23:00"),
        ("2026-01-20T10:00", BERLIN, "2026-01-20 09:00"),
        ("2026-01-20 10:00", BERLIN, "2026-01-20 09:00"),
        ("2026-01-20T10:00Z", BERLIN, "2026-01-20 10:00"),
        ("2026-01-20T10:00:59.5+0130", BERLIN, "2026-01-20 08:30:59.5"),
        ("2026-01-20 10:00:00-05:00", None, "2026-01-20 15:00"),
    ],
)
def test_start_is_the_given_instant(text: str, zone: str | None, instant: str) -> None:
    assert date_range(text, None, zone) == DateRange(utc(instant), None)


@pytest.mark.parametrize(
    ("text", "zone", "instant"),
    [
        ("2026-01-20", None, "2026-01-21"),
        ("2026-01-20", BERLIN, "2026-01-20 23:00"),
        # Summer time begins: the local day has 23 hours.
        ("2026-03-29", BERLIN, "2026-03-29 22:00"),
        ("2026-01-20T10:00", BERLIN, "2026-01-20 09:00:00.000001"),
        ("2026-01-20 10:00", None, "2026-01-20 10:00:00.000001"),
    ],
)
def test_end_includes_the_given_day_or_microsecond(text: str, zone: str | None, instant: str) -> None:
    assert date_range(None, text, zone) == DateRange(None, utc(instant))


def test_last_possible_day_is_a_valid_bound() -> None:
    """Searches of messages accepted 9999-12-31, and searches of passages refused it, before both used one parser."""
    assert date_range(None, "9999-12-31") == DateRange(None, None)
    assert date_range(None, "9999-12-31T23:59:59.999999") == DateRange(None, None)
    assert date_range("9999-12-31", None) == DateRange(utc("9999-12-31"), None)


def test_bounds_outside_of_the_supported_times_do_not_widen_a_range() -> None:
    tokyo, los_angeles = "Asia/Tokyo", "America/Los_Angeles"
    assert date_range("0001-01-01", None, tokyo) == DateRange(None, None)
    assert date_range("2026-01-01", "0001-01-01T01:00", tokyo).is_empty
    assert date_range("9999-12-31T23:00", None, los_angeles).start == datetime.max.replace(tzinfo=UTC)


def test_range_that_ends_before_it_starts_is_empty() -> None:
    assert date_range("2026-01-02", "2026-01-01").is_empty
    assert not date_range("2026-01-01", "2026-01-01").is_empty
    assert not date_range("2026-01-01T10:00", "2026-01-01T10:00").is_empty
    assert not date_range(None, None).is_empty


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-13-01",
        "2026-02-30",
        "20260120",
        "2026-01-20T24:00",
        "2026-1-2",
        "2026-01-20T10",
        "٢٠٢٦-٠١-٢٠",
    ],
)
@pytest.mark.parametrize("field", ["start_date", "end_date"])
def test_other_texts_are_refused_with_the_field_and_the_format(field: str, text: str) -> None:
    start, end = (text, None) if field == "start_date" else (None, text)
    with pytest.raises(InvalidArgument, match="Use ISO 8601 format") as refused:
        date_range(start, end, prefix="filter.")
    assert refused.value.field == f"filter.{field}"


def test_bad_zone_is_refused_also_without_dates() -> None:
    with pytest.raises(InvalidArgument) as refused:
        date_range(None, None, "Mars/Olympus", prefix="filter.")
    assert refused.value.field == "filter.time_zone"
