"""Starts of sleeptime runs other than by a turn, and the settings of organizations."""

from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.model.groups import BACKGROUND_TYPES, Group
from mnemesh_orchestrator.model.lineage import Lineage, RunOrigin
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.model.sleeptime import SleeptimeProgress, SleeptimeSettings, due_at, range_of_new
from mnemesh_orchestrator.store.sql.group_rows import VISIBLE_STATES, decode_groups, decode_record, group_missing
from mnemesh_orchestrator.store.sql.run_rows import decode_run
from mnemesh_orchestrator.store.sql.sleeptime_runs import progress_of, set_due, start_members
from mnemesh_orchestrator.store.sql.tables import groups, request_ledger, runs, sleeptime_settings

_g = groups.c
_BY_CLOCK: Final = Lineage(origin=RunOrigin.SLEEPTIME)
_DUE: Final = (
    sa.select(groups)
    .where(_g.sleeptime_due_at <= sa.bindparam("p_now", type_=_g.sleeptime_due_at.type), _g.state.in_(VISIBLE_STATES))
    .order_by(_g.sleeptime_due_at)
    .limit(sa.bindparam("p_limit", type_=sa.Integer))
)


class SqlSleeptimeStore:
    """SleeptimeStore on SQLite or PostgreSQL."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(request_ledger, clock)

    async def progress(self, organization_id: str, group_id: str) -> SleeptimeProgress:
        """See SleeptimeStore."""
        return await self._database.read(lambda conn: progress_of(_row(conn, organization_id, group_id)))

    async def start(
        self, key: RequestKey | None, subject_id: str, organization_id: str, group_id: str, until: int
    ) -> tuple[Run, ...]:
        """See SleeptimeStore."""

        def effect(conn: sa.Connection) -> list[str]:
            row = _row(conn, organization_id, group_id)
            return [run.id for run in self._start(conn, row, subject_id, until)]

        def write(conn: sa.Connection) -> tuple[Run, ...]:
            ids, _ = self._ledger.once(conn, key, lambda: effect(conn))
            query = sa.select(runs).where(runs.c.organization_id == organization_id, runs.c.id.in_(ids))
            found = {row.id: decode_run(row) for row in conn.execute(query)} if ids else {}
            return tuple(found[id_] for id_ in ids if id_ in found)

        return await self._database.write(write, name="sleeptime.start")

    def _start(self, conn: sa.Connection, row: Any, subject_id: str, until: int) -> tuple[Run, ...]:
        group, progress = decode_record(row), progress_of(row)
        range_ = range_of_new(group, progress.processed, max(progress.seen, until))
        if range_ is None:
            return ()
        now = self._clock.now()
        return start_members(conn, group, range_, _BY_CLOCK, subject_id, now, lambda _: new_id("run"))

    async def due(self, limit: int) -> tuple[Group, ...]:
        """See SleeptimeStore."""
        parameters = {"p_now": self._clock.now(), "p_limit": limit}
        return await self._database.read(lambda conn: decode_groups(conn, conn.execute(_DUE, parameters).all()))

    async def start_due(self, group: Group) -> tuple[Run, ...]:
        """See SleeptimeStore."""

        def write(conn: sa.Connection) -> tuple[Run, ...]:
            now = self._clock.now()
            row = conn.execute(_visible(group.organization_id, group.id)).first()
            if row is None or row.sleeptime_due_at is None or row.sleeptime_due_at > now:
                return ()
            current, progress = decode_record(row), progress_of(row)
            due = due_at(current, progress)
            started: tuple[Run, ...] = ()
            if due is not None and due <= now:
                subject_id = _last_subject(conn, current)
                started = self._start(conn, row, subject_id, progress.seen)
            if not started:
                # Without members the messages wait for the next turn.
                set_due(conn, current.id, due if due is not None and due > now else None)
            return started

        return await self._database.write(write, name="sleeptime.start_due")

    async def settings(self, organization_id: str) -> SleeptimeSettings:
        """See SleeptimeStore."""
        return await self._database.read(lambda conn: _settings(conn, organization_id))

    async def update_settings(
        self, key: RequestKey | None, organization_id: str, settings: SleeptimeSettings
    ) -> SleeptimeSettings:
        """See SleeptimeStore."""

        def effect(conn: sa.Connection) -> list[str]:
            row = {"max_concurrent_runs": settings.max_concurrent_runs, "updated_at": self._clock.now()}
            own = sleeptime_settings.c.organization_id == organization_id
            if conn.execute(sleeptime_settings.update().where(own).values(row)).rowcount == 0:
                conn.execute(sleeptime_settings.insert().values(**row, organization_id=organization_id))
            return []

        def write(conn: sa.Connection) -> SleeptimeSettings:
            self._ledger.once(conn, key, lambda: effect(conn))
            return _settings(conn, organization_id)

        return await self._database.write(write, name="sleeptime.update_settings")


def _visible(organization_id: str, group_id: str) -> sa.Select[Any]:
    return sa.select(groups).where(
        _g.organization_id == organization_id,
        _g.id == group_id,
        _g.manager_type.in_(BACKGROUND_TYPES),
        _g.state.in_(VISIBLE_STATES),
    )


def _row(conn: sa.Connection, organization_id: str, group_id: str) -> Any:
    row = conn.execute(_visible(organization_id, group_id)).first()
    if row is None:
        raise group_missing(group_id)
    return row


def _last_subject(conn: sa.Connection, group: Group) -> str:
    """Returns the subject of the manager's last run; an empty one if its runs were deleted."""
    query = (
        sa.select(runs.c.subject_id)
        .where(runs.c.agent_id == group.manager.manager_agent_id)
        .order_by(runs.c.creation_number.desc())
        .limit(1)
    )
    return conn.execute(query).scalar() or ""


def _settings(conn: sa.Connection, organization_id: str) -> SleeptimeSettings:
    query = sa.select(sleeptime_settings.c.max_concurrent_runs).where(
        sleeptime_settings.c.organization_id == organization_id
    )
    return SleeptimeSettings(conn.execute(query).scalar())
