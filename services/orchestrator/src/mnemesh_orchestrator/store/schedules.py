"""Schedules, and the runs that they start."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import FailedPrecondition, NotFound
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import matching, paginate
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.runs import Run, RunStatus
from mnemesh_orchestrator.model.schedules import (
    MOST_SCHEDULES,
    Schedule,
    ScheduleFilter,
    after_run,
    after_skip,
    overlap_of,
)
from mnemesh_orchestrator.store import approvals
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.groups import VISIBLE_STATES, group_missing
from mnemesh_orchestrator.store.leases import find_conversation, missing_error
from mnemesh_orchestrator.store.run_rows import insert_run
from mnemesh_orchestrator.store.tables import request_ledger, runs, schedules
from mnemesh_orchestrator.store.turn_statements import LeaseClock

_ENCODE = msgspec.json.Encoder().encode
_SCHEDULE = msgspec.json.Decoder(Schedule)
_c = schedules.c
_LONGEST_DUE: Final = (_c.next_run_at, _c.id)
_NEXT: Final = Prepared(sa.select(sa.func.min(_c.next_run_at).label("at")).where(_c.next_run_at.is_not(None)))


class ScheduleStore:
    """Schedules, and the runs that they start.

    Example:
        >>> schedule = await schedules.create(key, planned(schedule, now))
        >>> (due,) = await schedules.list_due(schedule.next_run_at, 10)
        >>> run = await schedules.fire(due, run, None)
    """

    def __init__(self, database: Database, clock: Clock, lease_clock: LeaseClock) -> None:
        self._database = database
        self._clock = clock
        self._lease_clock = lease_clock
        self._ledger = Ledger(database, request_ledger, clock)

    async def create(self, key: RequestKey | None, schedule: Schedule, *, most_of_agent: int | None = None) -> Schedule:
        """Stores a schedule and returns it; for a repeat, the first one. One with the same id is returned as it is.

        Raises:
            NotFound: The agent, the conversation or the group does not exist.
            FailedPrecondition: The agent has `most_of_agent` schedules of its own that have not ended, or the
                organization has too many.
        """

        def effect(conn: sa.Connection) -> Sequence[str]:
            if conn.execute(sa.select(_c.id).where(_c.id == schedule.id)).first() is not None:
                return [schedule.id]
            self._require_conversation(conn, schedule)
            _require_place(conn, schedule.organization_id)
            if most_of_agent is not None:
                _require_fewer(conn, schedule, most_of_agent)
            conn.execute(schedules.insert().values(_row(schedule)))
            return [schedule.id]

        organization_id = schedule.organization_id
        return await self._ledger.write_and_read(
            key, effect, lambda conn, ids: _find(conn, organization_id, ids[0]), name="schedules.create"
        )

    def _require_conversation(self, conn: sa.Connection, schedule: Schedule) -> Any:
        """Returns the row of the conversation of a schedule. Raises NotFound."""
        target = (schedule.organization_id, schedule.agent_id, schedule.conversation_id)
        found = find_conversation(conn, self._lease_clock, *target, queued=True).first()
        if not schedule.agent_id and (found is None or found.group_state not in VISIBLE_STATES):
            raise group_missing(schedule.group_id or "")
        if found is None:
            raise missing_error(conn, *target)
        return found

    async def get(self, organization_id: str, schedule_id: str) -> Schedule:
        """Returns a schedule. Raises NotFound."""
        return await self._database.read(lambda conn: _find(conn, organization_id, schedule_id))

    async def list(self, organization_id: str, filter_: ScheduleFilter, page: PageQuery) -> Page[Schedule]:
        """Returns a page of schedules ordered by creation."""
        scope = _c.organization_id == organization_id
        conditions = matching(((_c.agent_id, filter_.agent_id), (_c.group_id, filter_.group_id)))
        query = sa.select(schedules).where(scope, *conditions)

        def read(conn: sa.Connection) -> Page[Schedule]:
            return paginate(conn, query, page, key=_c.created_at, id=_c.id, scope=scope).map(_decode)

        return await self._database.read(read)

    async def list_open(self, organization_id: str, agent_id: str) -> tuple[Schedule, ...]:
        """Returns the schedules of an agent that it created itself and that have not ended, oldest first."""
        return await self._database.read(lambda conn: _open_of_agent(conn, organization_id, agent_id))

    async def update(
        self, key: RequestKey | None, organization_id: str, schedule_id: str, change: Callable[[Schedule], Schedule]
    ) -> Schedule:
        """Applies a pure function to a schedule, stores the result, and returns it. Raises NotFound.

        One that has ended begins again only if the organization has a place for it. Raises FailedPrecondition.
        """

        def effect(conn: sa.Connection) -> Sequence[str]:
            found = _find(conn, organization_id, schedule_id)
            changed = change(found)
            if found.has_ended and not changed.has_ended:
                _require_place(conn, organization_id)
            _store(conn, changed, self._clock.now())
            return [schedule_id]

        return await self._ledger.write_and_read(key, effect, lambda conn, _: _find(conn, organization_id, schedule_id))

    async def delete(
        self, key: RequestKey | None, organization_id: str, schedule_id: str, *, of_agent: str | None = None
    ) -> bool:
        """Deletes a schedule. Returns False, and changes nothing, if it is missing. A repeat returns the first result.

        With `of_agent`, a schedule that this agent has not created itself is missing.
        """

        def effect(conn: sa.Connection) -> Sequence[str]:
            try:
                found = _find(conn, organization_id, schedule_id)
            except NotFound:
                return ()
            if of_agent is not None and (found.agent_id != of_agent or not found.created_by_agent):
                return ()
            conn.execute(schedules.delete().where(_c.id == schedule_id))
            return [schedule_id]

        return bool((await self._ledger.write_once(key, effect))[0])

    async def next_time(self) -> datetime | None:
        """Returns the first time at which a schedule of any organization is due."""
        row = await self._database.read(lambda conn: _NEXT.first(conn, {}))
        return None if row is None else row.at

    async def list_due(self, now: datetime, limit: int) -> tuple[Schedule, ...]:
        """Returns schedules that are due, longest due first, in turns of the organizations."""
        turn = sa.func.row_number().over(partition_by=_c.organization_id, order_by=_LONGEST_DUE)
        query = sa.select(schedules).where(_c.next_run_at <= now).order_by(turn, *_LONGEST_DUE).limit(limit)
        rows = await self._database.read(lambda conn: conn.execute(query).all())
        return tuple(map(_decode, rows))

    async def fire(self, due: Schedule, run: Run | None, refusal: str | None) -> Run | None:
        """Sets the next time of a schedule that is due and, unless the time is skipped, stores its run in the queue.

        Of several processes, one does this. Returns the run; None if the time is skipped, or if the schedule has
        changed since it was read.

        Args:
            due: The schedule as it was read.
            run: The run of this time; None if it cannot start.
            refusal: Why it cannot.
        """

        def write(conn: sa.Connection) -> Run | None:
            row = conn.execute(sa.select(schedules).where(_c.id == due.id)).first()
            if row is None or _decode(row) != due:
                return None
            now = self._clock.now()
            skip = refusal if run is None else self._skip(conn, due, run)
            if run is None or skip is not None:
                _store(conn, after_skip(due, skip or "", now), now)
                return None
            _store(conn, after_run(due, run.id, now), now)
            return run

        return await self._database.write(write, name="schedules.fire", contended=True)

    def _skip(self, conn: sa.Connection, due: Schedule, run: Run) -> str | None:
        """Stores a run at the end of its queue. Returns why it does not start, if it does not."""
        status = conn.execute(sa.select(runs.c.status).where(runs.c.id == due.last_run_id)).scalar()
        awaits = approvals.pending_id(conn, run.conversation_id) is not None
        skip = overlap_of(due, None if status is None else RunStatus(status), awaits_approval=awaits)
        if skip is not None:
            return skip
        target = replace(due, agent_id=run.agent_id, conversation_id=run.conversation_id)
        try:
            number = self._require_conversation(conn, target).next_queue_number
        except NotFound as error:
            return error.message
        insert_run(conn, None, run, number)
        conn.execute(sql.ADVANCE_QUEUE, {"p_id": run.conversation_id, "new_next_queue_number": number + 1})
        return None

    async def erase_sender(self, organization_id: str, sender_id: str) -> int:
        """Deletes the schedules of an organization that send a message of a sender. Returns their number."""
        query = sa.select(_c.id, _c.document).where(_c.organization_id == organization_id)

        def write(conn: sa.Connection) -> int:
            sending = [row.id for row in conn.execute(query) if sender_id.encode() in row.document]
            for id_ in sending:
                conn.execute(schedules.delete().where(_c.id == id_))
            return len(sending)

        return await self._database.write(write)

    async def purge(self, before: datetime) -> int:
        """Deletes the schedules that ended before a time. Returns their number."""
        deletion = schedules.delete().where(_c.ended_at < before)
        return await self._database.write(lambda conn: conn.execute(deletion).rowcount)


def _row(schedule: Schedule, ended_at: datetime | None = None) -> dict[str, Any]:
    return {
        "id": schedule.id,
        "organization_id": schedule.organization_id,
        "agent_id": schedule.agent_id,
        "conversation_id": schedule.conversation_id,
        "group_id": schedule.group_id,
        "document": _ENCODE(schedule),
        "next_run_at": schedule.next_run_at,
        "ended_at": ended_at,
        "created_at": schedule.created_at,
    }


def _decode(row: Any) -> Schedule:
    return _SCHEDULE.decode(row.document)


def _find(conn: sa.Connection, organization_id: str, schedule_id: str) -> Schedule:
    query = sa.select(schedules).where(_c.organization_id == organization_id, _c.id == schedule_id)
    row = conn.execute(query).first()
    if row is None:
        raise NotFound(f"There is no schedule {schedule_id}.", resource_id=schedule_id)
    return _decode(row)


def _store(conn: sa.Connection, schedule: Schedule, now: datetime) -> None:
    ended_at = now if schedule.has_ended else None
    conn.execute(schedules.update().where(_c.id == schedule.id).values(_row(schedule, ended_at)))


def _open_of_agent(conn: sa.Connection, organization_id: str, agent_id: str) -> tuple[Schedule, ...]:
    own = (_c.organization_id == organization_id, _c.agent_id == agent_id, _c.ended_at.is_(None))
    rows = conn.execute(sa.select(schedules).where(*own).order_by(_c.created_at, _c.id))
    return tuple(found for row in rows if (found := _decode(row)).created_by_agent)


def _require_place(conn: sa.Connection, organization_id: str) -> None:
    open_ = sa.select(sa.func.count()).where(_c.organization_id == organization_id, _c.ended_at.is_(None))
    if conn.execute(open_).scalar_one() >= MOST_SCHEDULES:
        raise FailedPrecondition(
            f"The organization has {MOST_SCHEDULES:,} schedules that have not ended. Delete one first."
        )


def _require_fewer(conn: sa.Connection, schedule: Schedule, most: int) -> None:
    if len(_open_of_agent(conn, schedule.organization_id, schedule.agent_id)) >= most:
        raise FailedPrecondition(f"The agent has {most} schedules of its own. Cancel one first.")
