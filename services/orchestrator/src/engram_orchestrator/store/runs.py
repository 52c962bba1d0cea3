"""Runs in SQL: the queue of each conversation, leases, the journal, events and steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from engram_kit.clock import Clock
from engram_kit.errors import NotFound, RequestIdReused
from engram_kit.idempotency import Ledger, RequestKey
from engram_kit.paging import Page, PageQuery, paginate
from engram_kit.sql import Database

from engram_orchestrator.errors import ConversationBusy, LeaseLost, RunUnderWay
from engram_orchestrator.model.agents import AgentState, Conversation
from engram_orchestrator.model.events import DurableBody, RunEvent
from engram_orchestrator.model.messages import Usage
from engram_orchestrator.model.runs import (
    InputMessage,
    JournalEntry,
    Lease,
    Run,
    RunConfig,
    RunError,
    RunStatus,
    Step,
    StopReason,
)
from engram_orchestrator.store.agents import agent_missing, decode_agent
from engram_orchestrator.store.base import Claim, RunFilter, StartedRun, StepFilter
from engram_orchestrator.store.tables import (
    agents,
    conversations,
    events,
    journal,
    request_ledger,
    run_otids,
    runs,
    steps,
)

LEASE_TIME = timedelta(seconds=30)
"""How long a lease holds without a write or a renewal."""

_UNFINISHED = sa.text("status IN ('created', 'running')")  # literally the predicate of the partial index


@dataclass(frozen=True, slots=True)
class _Document:
    """What of a run is fixed at its start."""

    input: tuple[InputMessage, ...]
    config: RunConfig
    takes_up: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What of a run is known at its end."""

    usage: Usage
    step_count: int
    last_sequence: int
    completed_at: datetime
    error: RunError | None = None
    first_token_ms: int | None = None
    total_ms: int | None = None


_ENCODE = msgspec.json.Encoder().encode
_DOCUMENT = msgspec.json.Decoder(_Document)
_OUTCOME = msgspec.json.Decoder(_Outcome)
_CONVERSATION = msgspec.json.Decoder(Conversation)
_ENTRY = msgspec.json.Decoder(JournalEntry)
_BODY = msgspec.json.Decoder(DurableBody)
_STEP = msgspec.json.Decoder(Step)


class SqlRunStore:
    """RunStore on SQLite or PostgreSQL."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(request_ledger, clock)

    async def start(self, key: RequestKey | None, run: Run, owner: str, *, reject_busy: bool) -> StartedRun:
        """See RunStore."""

        def write(conn: sa.Connection) -> StartedRun:
            before = self._replayed(conn, key, run)
            if before is not None:
                return StartedRun(before, replayed=True)
            place = _conversation(conn, run.organization_id, run.agent_id, run.conversation_id)
            if place is None:
                raise agent_missing(run.agent_id)
            ahead = _first_unfinished(conn, run.conversation_id)
            if ahead is not None and reject_busy:
                raise ConversationBusy(f"Run {ahead.id} holds the conversation.", run_id=ahead.id)
            _insert_run(conn, key, run, place.next_queue_number)
            if ahead is not None:
                _advance_queue(conn, place)
                return StartedRun(run)
            lease = self._take(conn, place, run.id, owner, next_queue_number=place.next_queue_number + 1)
            running = replace(run, status=RunStatus.RUNNING)
            return StartedRun(
                running, claim=Claim(running, decode_agent(place), _CONVERSATION.decode(place.thread), lease)
            )

        return await self._database.write(write)

    def _replayed(self, conn: sa.Connection, key: RequestKey | None, run: Run) -> Run | None:
        if key is not None:
            query = sa.select(runs).where(
                runs.c.organization_id == key.organization_id,
                runs.c.request_method == key.method,
                runs.c.request_id == key.request_id,
            )
            found = conn.execute(query).first()
            if found is not None and found.request_fingerprint != key.fingerprint:
                raise RequestIdReused(
                    "This request_id was used before with other content.", field="request_id", request_id=key.request_id
                )
            if found is not None:
                return _decode_run(found)
        otids = [message.otid for message in run.input if message.otid]
        if not otids:
            return None
        query = (
            sa.select(runs)
            .join(run_otids, run_otids.c.run_id == runs.c.id)
            .where(
                runs.c.organization_id == run.organization_id,
                run_otids.c.conversation_id == run.conversation_id,
                run_otids.c.otid.in_(otids),
            )
            .order_by(runs.c.queue_number)
            .limit(1)
        )
        found = conn.execute(query).first()
        return None if found is None else _decode_run(found)

    def _take(self, conn: sa.Connection, place: Any, run_id: str, owner: str, **columns: Any) -> Lease:
        """Gives the conversation's lease to `owner`, under a new epoch, and marks the run as running."""
        epoch = place.epoch + 1
        conn.execute(
            conversations.update()
            .where(conversations.c.id == place.conversation_id)
            .values(
                epoch=epoch,
                lease_owner=owner,
                lease_run_id=run_id,
                lease_expires_at=self._clock.now() + LEASE_TIME,
                **columns,
            )
        )
        conn.execute(runs.update().where(runs.c.id == run_id).values(status=RunStatus.RUNNING))
        return Lease(run_id, place.conversation_id, owner, epoch)

    async def claim_next(self, conversation_id: str, owner: str) -> Claim | None:
        """See RunStore."""

        def write(conn: sa.Connection) -> Claim | None:
            first = _first_unfinished(conn, conversation_id)
            if first is None:
                return None
            place = _conversation(conn, first.organization_id, first.agent_id, conversation_id)
            if place is None or self._held_by_another(place, owner):
                return None
            lease = self._take(conn, place, first.id, owner)
            run = replace(_decode_run(first), status=RunStatus.RUNNING, last_sequence=_newest_event(conn, first.id))
            taken_up = first.status == RunStatus.RUNNING
            return Claim(run, decode_agent(place), _CONVERSATION.decode(place.thread), lease, taken_up)

        return await self._database.write(write)

    def _held_by_another(self, place: Any, owner: str) -> bool:
        return place.lease_owner not in (None, owner) and place.lease_expires_at > self._clock.now()

    async def claimable(self, owner: str) -> tuple[str, ...]:
        """See RunStore."""
        unfinished = sa.select(runs.c.conversation_id).where(_UNFINISHED).distinct()
        query = (
            sa.select(conversations.c.id)
            .join(agents, agents.c.id == conversations.c.agent_id)
            .where(
                conversations.c.id.in_(unfinished),
                agents.c.state == AgentState.ACTIVE,
                sa.or_(
                    conversations.c.lease_owner.is_(None),
                    conversations.c.lease_owner == owner,
                    conversations.c.lease_expires_at <= self._clock.now(),
                ),
            )
        )
        return await self._database.read(lambda conn: tuple(conn.execute(query).scalars()))

    async def renew(self, leases: Sequence[Lease]) -> None:
        """See RunStore."""
        expires = self._clock.now() + LEASE_TIME

        def write(conn: sa.Connection) -> None:
            for lease in leases:
                conn.execute(conversations.update().where(_holds(lease)).values(lease_expires_at=expires))

        await self._database.write(write)

    async def write(
        self,
        lease: Lease,
        *,
        entries: Sequence[JournalEntry] = (),
        events: Sequence[RunEvent] = (),
        steps: Sequence[Step] = (),
    ) -> None:
        """See RunStore."""

        def write(conn: sa.Connection) -> None:
            self._guard(conn, lease)
            self._record(conn, lease, entries, events, steps)

        await self._database.write(write)

    def _guard(self, conn: sa.Connection, lease: Lease, **columns: Any) -> None:
        """Fails where the lease no longer holds; otherwise puts off its expiry, or writes `columns`."""
        values = columns or {"lease_expires_at": self._clock.now() + LEASE_TIME}
        if conn.execute(conversations.update().where(_holds(lease)).values(**values)).rowcount == 0:
            raise LeaseLost(
                "Another holder took the conversation over.",
                conversation_id=lease.conversation_id,
                epoch=str(lease.epoch),
            )

    def _record(
        self,
        conn: sa.Connection,
        lease: Lease,
        entries: Sequence[JournalEntry],
        new_events: Sequence[RunEvent],
        new_steps: Sequence[Step],
    ) -> None:
        if entries:
            conn.execute(journal.insert(), [_entry_row(lease, entry) for entry in entries])
        if new_events:
            conn.execute(events.insert(), [_event_row(event) for event in new_events])
        if new_steps:
            organization_id = conn.execute(sa.select(runs.c.organization_id).where(runs.c.id == lease.run_id)).scalar()
            ids = [step.id for step in new_steps]
            conn.execute(steps.delete().where(steps.c.id.in_(ids)))
            conn.execute(steps.insert(), [_step_row(step, organization_id) for step in new_steps])

    async def finish(self, lease: Lease, run: Run, events: Sequence[RunEvent], steps: Sequence[Step]) -> bool:
        """See RunStore."""

        def write(conn: sa.Connection) -> bool:
            self._guard(conn, lease, lease_owner=None, lease_run_id=None, lease_expires_at=None)
            self._record(conn, lease, (), events, steps)
            conn.execute(runs.update().where(runs.c.id == run.id).values(**_ended_columns(run)))
            conn.execute(journal.delete().where(journal.c.run_id == run.id))
            conn.execute(
                agents.update()
                .where(agents.c.id == run.agent_id)
                .values(
                    last_stop_reason=run.stop_reason, last_run_completed_at=run.completed_at, last_run_ms=run.total_ms
                )
            )
            return _first_unfinished(conn, run.conversation_id) is not None

        return await self._database.write(write)

    async def journal(self, run_id: str) -> tuple[JournalEntry, ...]:
        """See RunStore."""
        query = sa.select(journal.c.entry).where(journal.c.run_id == run_id)
        rows = await self._database.read(lambda conn: conn.execute(query).scalars().all())
        return tuple(_ENTRY.decode(row) for row in rows)

    async def get(self, organization_id: str, run_id: str) -> Run:
        """See RunStore."""
        query = sa.select(runs).where(runs.c.organization_id == organization_id, runs.c.id == run_id)

        def read(conn: sa.Connection) -> Run:
            row = conn.execute(query).first()
            if row is None:
                raise NotFound(f"There is no run {run_id}.", resource_id=run_id)
            run = _decode_run(row)
            if run.status.ended:
                return run
            return replace(run, last_sequence=_newest_event(conn, run_id))

        return await self._database.read(read)

    async def list(self, organization_id: str, where: RunFilter, page: PageQuery) -> Page[Run]:
        """See RunStore."""
        mine = runs.c.organization_id == organization_id
        query = sa.select(runs).where(mine, *_run_conditions(where))

        def read(conn: sa.Connection) -> Page[Run]:
            return paginate(conn, query, page, key=runs.c.created_at, id=runs.c.id, scope=mine).map(_decode_run)

        return await self._database.read(read)

    async def cancel_waiting(self, run: Run, events: Sequence[RunEvent]) -> bool:
        """See RunStore."""

        def write(conn: sa.Connection) -> bool:
            waiting = sa.and_(runs.c.id == run.id, runs.c.status == RunStatus.CREATED)
            if conn.execute(runs.update().where(waiting).values(**_ended_columns(run))).rowcount == 0:
                return False
            self._record(conn, Lease(run.id, run.conversation_id, "", 0), (), events, ())
            return True

        return await self._database.write(write)

    async def delete(self, organization_id: str, run_id: str) -> None:
        """See RunStore."""
        mine = sa.and_(runs.c.organization_id == organization_id, runs.c.id == run_id)

        def write(conn: sa.Connection) -> None:
            status = conn.execute(sa.select(runs.c.status).where(mine)).scalar()
            if status is None:
                raise NotFound(f"There is no run {run_id}.", resource_id=run_id)
            if not RunStatus(status).ended:
                raise RunUnderWay("The run has not ended; cancel it first.", resource_id=run_id)
            conn.execute(runs.delete().where(mine))

        await self._database.write(write)

    async def events(self, run_id: str, after: int, limit: int) -> tuple[RunEvent, ...]:
        """See RunStore."""
        query = (
            sa.select(events)
            .where(events.c.run_id == run_id, events.c.sequence > after)
            .order_by(events.c.sequence)
            .limit(limit)
        )
        rows = await self._database.read(lambda conn: conn.execute(query).all())
        return tuple(
            RunEvent(row.run_id, row.created_at, _BODY.decode(row.body), row.sequence, row.step_id) for row in rows
        )

    async def step(self, organization_id: str, step_id: str) -> Step:
        """See RunStore."""
        query = sa.select(steps.c.document).where(steps.c.organization_id == organization_id, steps.c.id == step_id)
        document = await self._database.read(lambda conn: conn.execute(query).scalar())
        if document is None:
            raise NotFound(f"There is no step {step_id}.", resource_id=step_id)
        return _STEP.decode(document)

    async def steps(self, organization_id: str, where: StepFilter, page: PageQuery) -> Page[Step]:
        """See RunStore."""
        mine = steps.c.organization_id == organization_id
        query = sa.select(steps).where(mine)
        for column, wanted in (
            (steps.c.run_id, where.run_id),
            (steps.c.agent_id, where.agent_id),
            (steps.c.model, where.model),
        ):
            if wanted is not None:
                query = query.where(column == wanted)

        def read(conn: sa.Connection) -> Page[Step]:
            found = paginate(conn, query, page, key=steps.c.created_at, id=steps.c.id, scope=mine)
            return found.map(lambda row: _STEP.decode(row.document))

        return await self._database.read(read)

    async def purge_requests(self, before: datetime) -> int:
        """See RunStore."""
        return await self._database.write(lambda conn: self._ledger.purge(conn, before))


def _conversation(conn: sa.Connection, organization_id: str, agent_id: str, conversation_id: str) -> Any:
    """The conversation's row joined with its ACTIVE agent's, or None.

    Its document is `thread`, its id `conversation_id`.
    """
    query = (
        sa.select(
            agents,
            conversations.c.id.label("conversation_id"),
            conversations.c.document.label("thread"),
            conversations.c.epoch,
            conversations.c.lease_owner,
            conversations.c.lease_expires_at,
            conversations.c.next_queue_number,
        )
        .join(agents, agents.c.id == conversations.c.agent_id)
        .where(
            conversations.c.id == conversation_id,
            agents.c.id == agent_id,
            agents.c.organization_id == organization_id,
            agents.c.state == AgentState.ACTIVE,
        )
    )
    return conn.execute(query).first()


def _first_unfinished(conn: sa.Connection, conversation_id: str) -> Any:
    query = sa.select(runs).where(runs.c.conversation_id == conversation_id, _UNFINISHED)
    return conn.execute(query.order_by(runs.c.queue_number).limit(1)).first()


def _newest_event(conn: sa.Connection, run_id: str) -> int:
    return conn.execute(sa.select(sa.func.max(events.c.sequence)).where(events.c.run_id == run_id)).scalar() or 0


def _advance_queue(conn: sa.Connection, place: Any) -> None:
    conn.execute(
        conversations.update()
        .where(conversations.c.id == place.conversation_id)
        .values(next_queue_number=place.next_queue_number + 1)
    )


def _insert_run(conn: sa.Connection, key: RequestKey | None, run: Run, queue_number: int) -> None:
    conn.execute(
        runs.insert().values(
            id=run.id,
            organization_id=run.organization_id,
            subject_id=run.subject_id,
            agent_id=run.agent_id,
            conversation_id=run.conversation_id,
            status=RunStatus.CREATED,
            background=run.background,
            queue_number=queue_number,
            request_method=key and key.method,
            request_id=key and key.request_id,
            request_fingerprint=key and key.fingerprint,
            document=_ENCODE(_Document(run.input, run.config, run.takes_up)),
            created_at=run.created_at,
            updated_at=run.updated_at,
        )
    )
    otids = {message.otid for message in run.input if message.otid}
    if otids:
        rows = [{"conversation_id": run.conversation_id, "otid": otid, "run_id": run.id} for otid in otids]
        conn.execute(run_otids.insert(), rows)


def _holds(lease: Lease) -> sa.ColumnElement[bool]:
    return sa.and_(
        conversations.c.id == lease.conversation_id,
        conversations.c.epoch == lease.epoch,
        conversations.c.lease_run_id == lease.run_id,
    )


def _ended_columns(run: Run) -> dict[str, Any]:
    if run.completed_at is None:
        raise ValueError("an ended run has a completion time")
    outcome = _Outcome(
        run.usage,
        run.step_count,
        run.last_sequence,
        run.completed_at,
        run.error,
        run.first_token_ms,
        run.total_ms,
    )
    return {
        "status": run.status,
        "stop_reason": run.stop_reason,
        "outcome": _ENCODE(outcome),
        "updated_at": run.completed_at,
    }


def _entry_row(lease: Lease, entry: JournalEntry) -> dict[str, Any]:
    return {
        "run_id": lease.run_id,
        "step_id": entry.step_id,
        "kind": entry.kind,
        "ordinal": entry.ordinal,
        "epoch": lease.epoch,
        "entry": _ENCODE(entry),
    }


def _event_row(event: RunEvent) -> dict[str, Any]:
    return {
        "run_id": event.run_id,
        "sequence": event.sequence,
        "step_id": event.step_id,
        "body": _ENCODE(event.body),
        "created_at": event.created_at,
    }


def _step_row(step: Step, organization_id: str | None) -> dict[str, Any]:
    return {
        "id": step.id,
        "organization_id": organization_id,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "number": step.number,
        "model": step.model,
        "document": _ENCODE(step),
        "created_at": step.created_at,
    }


def _decode_run(row: Any) -> Run:
    fixed = _DOCUMENT.decode(row.document)
    run = Run(
        id=row.id,
        organization_id=row.organization_id,
        subject_id=row.subject_id,
        agent_id=row.agent_id,
        conversation_id=row.conversation_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        input=fixed.input,
        config=fixed.config,
        takes_up=fixed.takes_up,
        status=RunStatus(row.status),
        stop_reason=StopReason(row.stop_reason) if row.stop_reason else None,
        background=row.background,
    )
    if row.outcome is None:
        return run
    end = _OUTCOME.decode(row.outcome)
    return replace(
        run,
        usage=end.usage,
        step_count=end.step_count,
        last_sequence=end.last_sequence,
        completed_at=end.completed_at,
        error=end.error,
        first_token_ms=end.first_token_ms,
        total_ms=end.total_ms,
    )


def _run_conditions(where: RunFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if where.agent_ids:
        conditions.append(runs.c.agent_id.in_(where.agent_ids))
    if where.statuses:
        conditions.append(runs.c.status.in_(where.statuses))
    if where.background is not None:
        conditions.append(runs.c.background == where.background)
    if where.stop_reason is not None:
        conditions.append(runs.c.stop_reason == where.stop_reason)
    if where.conversation_id is not None:
        conditions.append(runs.c.conversation_id == where.conversation_id)
    if where.active is not None:
        active = runs.c.status.in_((RunStatus.CREATED, RunStatus.RUNNING))
        conditions.append(active if where.active else ~active)
    return conditions
