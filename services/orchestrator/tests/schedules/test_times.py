"""When the runs of a schedule are due: cron expressions in time zones, also where the clock changes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.model.inputs import InputMessage, OnBusy, RunConfig
from mnemesh_orchestrator.model.schedules import (
    Schedule,
    after_run,
    after_skip,
    least_interval,
    planned,
    valid_schedule,
)
from mnemesh_types.messages import TextPart

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_schedule(**fields: Any) -> Schedule:
    """A schedule that is created at NOW."""
    values: dict[str, Any] = {"messages": (InputMessage((TextPart("Good morning"),)),)} | fields
    ids = (new_id("schedule"), new_id("org"), new_id("user"), new_id("agent"), new_id("conv"))
    return Schedule(*ids, created_at=NOW, updated_at=NOW, **values)


def times(count: int, start: str, **fields: Any) -> list[str]:
    """The first due times after a local time in Berlin, as local times."""
    schedule = a_schedule(time_zone="Europe/Berlin", **fields)
    schedule = planned(schedule, datetime.fromisoformat(start).astimezone(UTC))
    found = []
    while schedule.next_run_at is not None and len(found) < count:
        found.append(schedule.next_run_at.astimezone(ZoneInfo("Europe/Berlin")).isoformat(timespec="minutes"))
        schedule = after_run(schedule, new_id("run"), schedule.next_run_at)
    return found


def test_a_daily_run_keeps_its_local_time_over_the_year() -> None:
    assert times(2, "2026-03-28T12:00+01:00", cron="0 9 * * *") == ["2026-03-29T09:00+02:00", "2026-03-30T09:00+02:00"]


def test_a_time_that_the_clock_skips_is_due_after_the_gap() -> None:
    due = ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]
    assert times(3, "2026-03-28T00:00+01:00", cron="30 2 * * *") == due


def test_a_time_that_occurs_twice_is_due_once() -> None:
    due = ["2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]
    assert times(3, "2026-10-24T00:00+02:00", cron="30 2 * * *") == due
    # A process that begins in the second of the two hours does not go back to the first.
    assert times(1, "2026-10-25T02:10+01:00", cron="30 2 * * *") == ["2026-10-26T02:30+01:00"]


def test_an_hourly_run_is_due_every_hour_that_passes() -> None:
    due = ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"]
    assert times(3, "2026-10-25T01:30+02:00", cron="0 * * * *") == due
    due = ["2026-03-29T01:00+01:00", "2026-03-29T03:00+02:00"]
    assert times(2, "2026-03-29T00:30+01:00", cron="0 * * * *") == due


def test_a_schedule_ends_by_number_or_by_time() -> None:
    assert len(times(9, "2026-01-01T00:00+01:00", cron="0 9 * * *", max_runs=3)) == 3
    until = datetime(2026, 1, 2, 8, tzinfo=UTC)
    assert len(times(9, "2026-01-01T00:00+01:00", cron="0 9 * * *", ends_at=until)) == 2
    assert times(9, "2026-01-01T00:00+01:00", due_at=NOW) == ["2026-01-01T01:00+01:00"]


def test_missed_times_are_one_and_skipped_times_do_not_count_as_runs() -> None:
    schedule = planned(a_schedule(cron="*/10 * * * *", max_runs=2), NOW)
    late = NOW + timedelta(hours=5, minutes=3)
    assert after_run(schedule, new_id("run"), late).next_run_at == NOW + timedelta(hours=5, minutes=10)
    skipped = after_skip(schedule, "why", late)
    assert (skipped.run_count, skipped.skipped_count, skipped.last_skip) == (0, 1, "why")
    assert skipped.next_run_at == NOW + timedelta(hours=5, minutes=10)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("schedule.cron", {"cron": "61 * * * *"}),
        ("schedule.cron", {"cron": "* * * * * *"}),
        ("schedule.cron", {"cron": "every day"}),
        ("schedule.cron", {"cron": "0 0 30 2 *"}),
        ("schedule.cron", {"cron": None}),
        ("schedule.cron", {"due_at": NOW}),
        ("schedule.time_zone", {"time_zone": "Europe/Atlantis"}),
        ("schedule.messages", {"messages": ()}),
        ("schedule.max_runs", {"max_runs": 0}),
        ("schedule.config.on_busy", {"config": RunConfig(on_busy=OnBusy.REJECT)}),
        ("schedule.due_time", {"cron": None, "due_at": NOW - timedelta(minutes=2)}),
        ("schedule.cron", {"ends_at": NOW}),
    ],
)
def test_bad_values_are_refused_by_field(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        planned(valid_schedule(replace(a_schedule(cron="0 9 * * *"), **changes)), NOW)
    assert refused.value.field == field


def test_interval_is_the_shortest_one() -> None:
    assert least_interval(a_schedule(cron="0,3 9 1 1 *"), NOW) == timedelta(minutes=3)
    assert least_interval(a_schedule(cron="59,0 * * * *"), NOW) == timedelta(minutes=1)
    assert least_interval(a_schedule(due_at=NOW), NOW) is None
