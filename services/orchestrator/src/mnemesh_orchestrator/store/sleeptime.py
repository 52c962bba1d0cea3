"""Sleeptime runs: their starts by turns and otherwise, their transcripts, and the settings of organizations."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.conversations import ConversationState
from mnemesh_orchestrator.model.events import Lease, RunEvent
from mnemesh_orchestrator.model.groups import (
    BACKGROUND_TYPES,
    DEFAULT_MAX_STEPS,
    Group,
    SleeptimeProgress,
    SleeptimeSettings,
    SleeptimeTurn,
    TranscriptRange,
    due_at,
    has_timers,
    processed_by,
    range_after_turn,
    range_of_new,
)
from mnemesh_orchestrator.model.inputs import RunConfig
from mnemesh_orchestrator.model.runs import Lineage, Run, RunOrigin
from mnemesh_orchestrator.store.groups import (
    VISIBLE_STATES,
    decode_document,
    decode_groups,
    decode_record,
    group_missing,
)
from mnemesh_orchestrator.store.run_rows import decode_run, encode_document, insert_run, record_run
from mnemesh_orchestrator.store.tables import (
    agents,
    conversations,
    group_members,
    groups,
    request_ledger,
    runs,
    sleeptime_settings,
)

_g = groups.c
_SEQUENCE: Final = sa.bindparam("new_sequence", type_=sa.BigInteger)
_COUNT_TURN: Final = (
    groups.update()
    .where(
        _g.manager_agent_id == sa.bindparam("p_agent"),
        _g.manager_type.in_(BACKGROUND_TYPES),
        _g.state.in_(VISIBLE_STATES),
    )
    .values(
        turns_counter=_g.turns_counter + 1,
        seen_sequence_id=sa.case((_g.seen_sequence_id < _SEQUENCE, _SEQUENCE), else_=_g.seen_sequence_id),
        last_turn_at=sa.bindparam("new_last_turn_at", type_=_g.last_turn_at.type),
    )
    .returning(
        _g.document,
        _g.turns_counter,
        _g.seen_sequence_id,
        _g.processed_sequence_id,
        _g.last_turn_at,
        _g.last_sleeptime_at,
    )
)
_MEMBERS: Final = (
    sa.select(agents.c.id.label("agent_id"), conversations.c.id.label("conversation_id"))
    .select_from(group_members)
    .join(agents, agents.c.id == group_members.c.agent_id)
    .join(conversations, sa.and_(conversations.c.agent_id == agents.c.id, conversations.c.is_default))
    .where(
        group_members.c.group_id == sa.bindparam("p_group"),
        agents.c.state == AgentState.ACTIVE,
        conversations.c.state == ConversationState.ACTIVE,
    )
    .order_by(group_members.c.position)
)
_TAKE_NUMBER: Final = (
    conversations.update()
    .where(conversations.c.id == sa.bindparam("p_id"))
    .values(next_queue_number=conversations.c.next_queue_number + 1)
    .returning(conversations.c.next_queue_number - 1)
)
_ADVANCE: Final = (
    groups.update()
    .where(_g.id == sa.bindparam("p_group"))
    .values(
        processed_sequence_id=sa.bindparam("new_processed", type_=sa.BigInteger),
        last_sleeptime_at=sa.bindparam("new_last_sleeptime_at", type_=_g.last_sleeptime_at.type),
        sleeptime_due_at=sa.bindparam("new_due_at", type_=_g.sleeptime_due_at.type),
    )
)
_SET_DUE: Final = (
    groups.update()
    .where(_g.id == sa.bindparam("p_group"))
    .values(sleeptime_due_at=sa.bindparam("new_due_at", type_=_g.sleeptime_due_at.type))
)

_BY_CLOCK: Final = Lineage(origin=RunOrigin.SLEEPTIME)
_DUE: Final = Prepared(
    sa.select(groups)
    .where(
        _g.sleeptime_due_at <= sa.bindparam("p_now", type_=_g.sleeptime_due_at.type),
        sa.or_(*(_g.state == state for state in VISIBLE_STATES)),
    )
    .order_by(_g.sleeptime_due_at)
    .limit(sa.bindparam("p_limit", type_=sa.Integer))
)

_FIND: Final = sa.select(runs).where(runs.c.id == sa.bindparam("p_id"))


def progress_of(row: Any) -> SleeptimeProgress:
    """Returns the progress of a row of `groups`."""
    return SleeptimeProgress(
        row.turns_counter, row.seen_sequence_id, row.processed_sequence_id, row.last_turn_at, row.last_sleeptime_at
    )


def start_after_turn(conn: sa.Connection, turn: Run, facts: SleeptimeTurn) -> tuple[Run, ...]:
    """Counts a completed turn of a manager, and stores the runs that it starts. Returns them in the members' order.

    The ids of the runs are derived from the turn. `turn` has its time of completion.
    """
    now = turn.completed_at or turn.updated_at
    parameters = {"p_agent": facts.agent_id, "new_sequence": facts.newest_sequence_id, "new_last_turn_at": now}
    row = conn.execute(_COUNT_TURN, parameters).first()
    if row is None:
        return ()
    group, progress = decode_document(row.document), progress_of(row)
    range_ = range_after_turn(group, progress, facts)
    lineage = Lineage(turn.id, RunOrigin.SLEEPTIME, depth=turn.lineage.depth + 1)
    started: tuple[Run, ...] = ()
    if range_ is not None:
        started = start_members(
            conn, group, range_, lineage, turn.subject_id, now, lambda id_: derive_id("run", turn.id, id_)
        )
    if not started and has_timers(group.manager):
        set_due(conn, group.id, due_at(group, progress))
    return started


def start_members(
    conn: sa.Connection,
    group: Group,
    range_: TranscriptRange,
    lineage: Lineage,
    subject_id: str,
    now: datetime,
    run_id: Callable[[str], str],
) -> tuple[Run, ...]:
    """Stores a run of each member for a range of messages, and notes that the range is processed.

    Members that are deleted, or not created yet, are left out. If none remains, nothing is stored.

    Args:
        conn: The transaction.
        group: The group; its members are read.
        range_: The messages.
        lineage: Where the runs come from.
        subject_id: The subject on whose behalf they run.
        now: The time.
        run_id: Returns the id of the run of a member.
    """
    members = conn.execute(_MEMBERS, {"p_group": group.id}).all()
    if not members:
        return ()
    config = RunConfig(max_steps=group.manager.max_steps or DEFAULT_MAX_STEPS)
    started = tuple(
        Run(
            id=run_id(member.agent_id),
            organization_id=group.organization_id,
            subject_id=subject_id,
            agent_id=member.agent_id,
            conversation_id=member.conversation_id,
            created_at=now,
            updated_at=now,
            input=(),
            config=config,
            background=True,
            group_id=group.id,
            lineage=lineage,
            transcript=range_,
        )
        for member in members
    )
    for run in started:
        number = conn.execute(_TAKE_NUMBER, {"p_id": run.conversation_id}).scalar_one()
        insert_run(conn, None, run, number)
    advance = {"new_processed": processed_by(range_), "new_last_sleeptime_at": now, "new_due_at": None}
    conn.execute(_ADVANCE, {"p_group": group.id, **advance})
    return started


def set_due(conn: sa.Connection, group_id: str, due: datetime | None) -> None:
    """Stores the time at which the interval or the inactivity of a group is to be checked."""
    conn.execute(_SET_DUE, {"p_group": group_id, "new_due_at": due})


def started_by(conn: sa.Connection, run: Run) -> tuple[Run, ...]:
    """Returns the sleeptime runs that the end of a run started, in their order."""
    query = sa.select(runs).where(runs.c.id.in_(run.child_run_ids), runs.c.origin == RunOrigin.SLEEPTIME)
    found = {row.id: decode_run(row) for row in conn.execute(query)} if run.child_run_ids else {}
    return tuple(found[id_] for id_ in run.child_run_ids if id_ in found)


class SleeptimeStore:
    """Starts of sleeptime runs. The end of a turn starts them, too; see `RunStore.finish`.

    Example:
        >>> runs = await sleeptime.start(key, "me", group.organization_id, group.id, newest)
        >>> [run.agent_id for run in runs] == list(group.agent_ids)
        True
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(database, request_ledger, clock)

    async def progress(self, organization_id: str, group_id: str) -> SleeptimeProgress:
        """Returns how far a group is. Raises NotFound."""
        return await self._database.read(lambda conn: progress_of(_row(conn, organization_id, group_id)))

    async def start(
        self, key: RequestKey | None, subject_id: str, organization_id: str, group_id: str, until: int
    ) -> tuple[Run, ...]:
        """Stores a run of each member for all messages that no transcript has, and returns them in their order.

        Returns none if there are no such messages, or no members. A repeat returns the runs of the first call.

        Args:
            subject_id: The subject on whose behalf the runs execute.
            organization_id: The organization of the group.
            until: The newest sequence id of the manager. Newer messages of completed turns are included.
        """

        def effect(conn: sa.Connection) -> list[str]:
            row = _row(conn, organization_id, group_id)
            return [run.id for run in self._start(conn, row, subject_id, until)]

        def read(conn: sa.Connection, ids: Sequence[str]) -> tuple[Run, ...]:
            query = sa.select(runs).where(runs.c.organization_id == organization_id, runs.c.id.in_(ids))
            found = {row.id: decode_run(row) for row in conn.execute(query)} if ids else {}
            return tuple(found[id_] for id_ in ids if id_ in found)

        return await self._ledger.write_and_read(key, effect, read)

    def _start(self, conn: sa.Connection, row: Any, subject_id: str, until: int) -> tuple[Run, ...]:
        group, progress = decode_record(row), progress_of(row)
        range_ = range_of_new(group, progress.processed, max(progress.seen, until))
        if range_ is None:
            return ()
        now = self._clock.now()
        return start_members(conn, group, range_, _BY_CLOCK, subject_id, now, lambda _: new_id("run"))

    async def due(self, limit: int) -> tuple[Group, ...]:
        """Returns groups whose interval or inactivity is to be checked now, those that are due longest first."""
        parameters = {"p_now": self._clock.now(), "p_limit": limit}
        return await self._database.read(lambda conn: decode_groups(conn, _DUE.all(conn, parameters)))

    async def start_due(self, group: Group) -> tuple[Run, ...]:
        """Starts the members if the interval or the inactivity of a group has passed, and notes the next check.

        Of several processes, one starts them. Their subject is that of the manager's last run.
        """

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
        return await self._database.read(lambda conn: _settings(conn, organization_id))

    async def update_settings(
        self, key: RequestKey | None, organization_id: str, settings: SleeptimeSettings
    ) -> SleeptimeSettings:
        """Replaces the settings of an organization, and returns the current ones. A repeat changes nothing."""

        def effect(conn: sa.Connection) -> list[str]:
            row = {"max_concurrent_runs": settings.max_concurrent_runs, "updated_at": self._clock.now()}
            own = sleeptime_settings.c.organization_id == organization_id
            if conn.execute(sleeptime_settings.update().where(own).values(row)).rowcount == 0:
                conn.execute(sleeptime_settings.insert().values(**row, organization_id=organization_id))
            return []

        return await self._ledger.write_and_read(
            key, effect, lambda conn, _: _settings(conn, organization_id), name="sleeptime.update_settings"
        )


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


def store_transcript(
    conn: sa.Connection,
    lease: Lease,
    run: Run,
    events: Sequence[RunEvent],
    rest: Run | None,
    last_message_id: str | None,
) -> Run:
    row = conn.execute(_FIND, {"p_id": run.id}).one()
    stored = decode_run(row)
    if stored.input:
        return stored
    values: dict[str, object] = {"document": encode_document(run)}
    if rest is not None:
        # The rest takes the place of the run in the queue, so that later transcripts follow it.
        values["queue_number"] = row.queue_number - 1
        insert_run(conn, None, rest, row.queue_number)
    conn.execute(runs.update().where(runs.c.id == run.id).values(values))
    record_run(conn, lease, (), events)
    range_ = run.transcript
    if range_ is not None and rest is None and last_message_id is not None:
        # A run of an earlier range may begin later, in the queue of another member.
        newest = sa.and_(groups.c.id == range_.group_id, groups.c.processed_sequence_id == processed_by(range_))
        conn.execute(groups.update().where(newest).values(last_processed_message_id=last_message_id))
    return run
