"""Schedules: when their runs are due, and which of the due runs start."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, pairwise
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_no_controls
from mnemesh_kit.time import zone_from_name

from mnemesh_orchestrator.model.inputs import InputMessage, OnBusy, RunConfig, require_valid_inputs, valid_config
from mnemesh_orchestrator.model.runs import RunStatus

ON_TIME: Final = timedelta(minutes=1)
"""How late a run may be without having been missed: the time of a restart."""
MOST_SCHEDULES: Final = 1_000
"""The largest number of schedules of an organization that have not ended."""
_MAX_NAME: Final = 200
_MAX_CRON: Final = 200
_FIELDS: Final = 5
_AN_HOUR_OF_MINUTES: Final = 62
"""So many due times in a row have every distance between minutes of an expression, also over the end of an hour."""
MISSED: Final = "It was missed: no orchestrator was running."
LATE: Final = (
    "It was missed: the orchestrator was too busy to start it within a minute, or its database was not available."
)
RUNS_STILL: Final = "The run before had not ended."
WAITS_STILL: Final = "A run of the schedule was still waiting in the queue of the conversation."
AWAITS_APPROVAL: Final = "The conversation was waiting for an approval."


class MissedRunRule(StrEnum):
    """What happens to a run that is late."""

    RUN_ONCE = "run_once"
    SKIP = "skip"


class OverlapRule(StrEnum):
    """What happens to a run that is due before the end of the run before."""

    SKIP = "skip"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of an agent's conversation or, with a `group_id`, of a group. See the contract for its fields."""

    id: str
    organization_id: str
    subject_id: str
    agent_id: str
    conversation_id: str
    messages: tuple[InputMessage, ...]
    created_at: datetime
    updated_at: datetime
    name: str = ""
    group_id: str | None = None
    config: RunConfig = RunConfig()  # noqa: RUF009 -- frozen
    cron: str | None = None
    due_at: datetime | None = None
    time_zone: str = ""
    missed_runs: MissedRunRule = MissedRunRule.RUN_ONCE
    overlap: OverlapRule = OverlapRule.SKIP
    max_runs: int | None = None
    ends_at: datetime | None = None
    paused: bool = False
    created_by_agent: bool = False
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    last_run_id: str | None = None
    run_count: int = 0
    skipped_count: int = 0
    last_skip: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether no time will be due any more."""
        return self.next_run_at is None and not self.paused


@dataclass(frozen=True, slots=True)
class ScheduleFilter:
    """The conditions of a list; a schedule must meet all that are set."""

    agent_id: str | None = None
    group_id: str | None = None


class ScheduleOrder(StrEnum):
    """The keys that lists of schedules can be sorted by."""

    CREATED_AT = "created_at"


def valid_schedule(schedule: Schedule) -> Schedule:
    """Returns a schedule with completed values if each follows its rule. Raises InvalidArgument."""
    require_no_controls(schedule.name, "schedule.name", max_chars=_MAX_NAME)
    messages = require_valid_inputs(schedule.messages, "schedule.messages", min_messages=1)
    config = valid_config(schedule.config, "schedule.config")
    if config.on_busy is not OnBusy.WAIT:
        field = "schedule.config.on_busy"
        raise InvalidArgument(f"{field} must be WAIT. Set schedule.overlap instead.", field=field)
    if (schedule.cron is None) == (schedule.due_at is None):
        raise InvalidArgument("Exactly one of schedule.cron and schedule.due_time must be set.", field="schedule.cron")
    zone_from_name(schedule.time_zone, "schedule.time_zone")
    if schedule.cron is not None:
        _cron_times(schedule, schedule.created_at)
    if schedule.max_runs is not None and schedule.max_runs < 1:
        raise InvalidArgument("schedule.max_runs must be at least 1.", field="schedule.max_runs")
    return replace(schedule, messages=messages, config=replace(config, otids_repeat=True))


def planned(schedule: Schedule, now: datetime) -> Schedule:
    """Returns a new or changed schedule with its next time. Raises InvalidArgument if none will be due."""
    if schedule.paused:
        return replace(schedule, next_run_at=None)
    if schedule.due_at is not None:
        is_over = schedule.due_at <= now - ON_TIME or schedule.due_at == schedule.last_run_at
        found = None if is_over else schedule.due_at
    else:
        found = _next_of_cron(schedule, now)
    found = _unless_ended(schedule, found)
    if found is None:
        field = "schedule.cron" if schedule.due_at is None else "schedule.due_time"
        raise InvalidArgument(
            f"{field} is never due: it is over, does not occur, or schedule.end_time or max_runs comes first.",
            field=field,
        )
    return replace(schedule, next_run_at=found)


def after_run(schedule: Schedule, run_id: str, now: datetime) -> Schedule:
    """Returns a schedule whose due time has started a run."""
    started = replace(
        schedule,
        last_run_at=schedule.next_run_at,
        last_run_id=run_id,
        run_count=schedule.run_count + 1,
        last_skip=None,
    )
    return _advanced(started, now)


def after_skip(schedule: Schedule, reason: str, now: datetime) -> Schedule:
    """Returns a schedule whose due time has started no run, for a reason."""
    return _advanced(replace(schedule, skipped_count=schedule.skipped_count + 1, last_skip=reason), now)


def _advanced(schedule: Schedule, now: datetime) -> Schedule:
    """Returns a schedule with the first time after its due time and now, so that missed times are not repeated.

    One whose time zone this machine does not know, as after a restore on another one, is paused.
    """
    due = schedule.next_run_at or now
    try:
        found = None if schedule.cron is None else _next_of_cron(schedule, max(due, now))
    except InvalidArgument as error:
        return replace(schedule, next_run_at=None, paused=True, last_skip=error.message)
    return replace(schedule, next_run_at=_unless_ended(schedule, found))


def _unless_ended(schedule: Schedule, found: datetime | None) -> datetime | None:
    if schedule.max_runs is not None and schedule.run_count >= schedule.max_runs:
        return None
    return None if found is None or (schedule.ends_at is not None and found > schedule.ends_at) else found


def is_missed(schedule: Schedule, now: datetime) -> bool:
    """Returns whether the due run is too late for a schedule that skips missed runs."""
    is_late = schedule.next_run_at is not None and schedule.next_run_at < now - ON_TIME
    return is_late and schedule.missed_runs is MissedRunRule.SKIP


def overlap_of(schedule: Schedule, last: RunStatus | None, *, awaits_approval: bool) -> str | None:
    """Returns why the due run is skipped; None if it starts, or waits in the queue.

    Args:
        schedule: The schedule.
        last: The status of the run that it started last; None if there is none.
        awaits_approval: Whether the conversation waits for an approval.
    """
    if schedule.overlap is OverlapRule.QUEUE:
        return WAITS_STILL if last is RunStatus.CREATED else None
    if last is not None and not last.ended:
        return RUNS_STILL
    return AWAITS_APPROVAL if awaits_approval else None


def least_interval(schedule: Schedule, now: datetime) -> timedelta | None:
    """Returns the shortest time between due times that follow each other; None for at most one due time."""
    if schedule.cron is None:
        return None
    times = islice(_cron_times(schedule, now), _AN_HOUR_OF_MINUTES)
    return min((later - earlier for earlier, later in pairwise(times)), default=None)


def _next_of_cron(schedule: Schedule, after: datetime) -> datetime | None:
    return next(_cron_times(schedule, after), None)


def _cron_times(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """Returns the due times of a cron expression after a time, in UTC. Raises InvalidArgument if it is malformed."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 -- only for those who have schedules

    expression, zone = schedule.cron or "", zone_from_name(schedule.time_zone, "schedule.time_zone")
    try:
        if len(expression) > _MAX_CRON or len(expression.split()) != _FIELDS:
            raise CronSimError("it must have five fields")
        times = CronSim(expression, after.astimezone(zone))
    except CronSimError as error:
        field = "schedule.cron"
        problem = str(error)
        raise InvalidArgument(
            f"{field} is not a cron expression: {problem[:1].lower()}{problem[1:]}.", field=field
        ) from None
    # In the hour that occurs twice, the library begins with times of the first occurrence.
    return (utc for time in times if (utc := time.astimezone(after.tzinfo)) > after)
