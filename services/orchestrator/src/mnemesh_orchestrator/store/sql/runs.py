"""Runs in SQL: the queue of each conversation, leases, the journal and events."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery, paginate
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.errors import NoPendingApproval, RunUnderWay
from mnemesh_orchestrator.model.agents import Correction
from mnemesh_orchestrator.model.approvals import Approval, ApprovalAnswer
from mnemesh_orchestrator.model.claims import Claim, StartedRun, UnfinishedDecision
from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.journal import JournalEntry
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunStatus
from mnemesh_orchestrator.model.steps import Step, StepTrace
from mnemesh_orchestrator.store.sql import approvals
from mnemesh_orchestrator.store.sql import statements as sql
from mnemesh_orchestrator.store.sql.agents import decode_agent
from mnemesh_orchestrator.store.sql.conversation_rows import decode_conversation
from mnemesh_orchestrator.store.sql.lease_times import LeaseTimes
from mnemesh_orchestrator.store.sql.leases import (
    busy,
    find_place,
    first_unfinished,
    held,
    is_behind,
    missing,
    require_held,
    take,
)
from mnemesh_orchestrator.store.sql.run_rows import (
    decode_entry,
    decode_event,
    decode_run,
    ended_values,
    entry_row,
    event_row,
    run_row,
)
from mnemesh_orchestrator.store.sql.steps import record_steps
from mnemesh_orchestrator.store.sql.tables import (
    events,
    journal,
    request_ledger,
    runs,
)


class SqlRunStore:
    """RunStore on SQLite or PostgreSQL."""

    def __init__(self, database: Database, clock: Clock, times: LeaseTimes | None = None) -> None:
        self._database = database
        self._times = times or LeaseTimes(clock)
        self._ledger = Ledger(request_ledger, clock)

    async def start(
        self,
        key: RequestKey | None,
        run: Run,
        owner: str,
        *,
        reject_busy: bool,
        answer: ApprovalAnswer | None = None,
    ) -> StartedRun:
        """See RunStore."""

        def write(conn: sa.Connection) -> StartedRun:
            before = self._replayed(conn, key, run)
            if before is not None:
                return StartedRun(before, replayed=True)
            place = find_place(conn, self._times, run.organization_id, run.agent_id, run.conversation_id)
            if place is None:
                raise missing(conn, run.organization_id, run.agent_id, run.conversation_id)
            if answer is not None:
                return self._answer(conn, key, run, owner, place, answer)
            approvals.require_none(conn, run.conversation_id)
            ahead = first_unfinished(conn, run.conversation_id)
            is_busy = ahead is not None or place.held or place.next_wait is not None
            if is_busy and reject_busy:
                raise busy(run.conversation_id, ahead)
            number = place.next_queue_number
            if is_busy:
                _insert_run(conn, key, run, number)
                conn.execute(sql.ADVANCE_QUEUE, {"its_id": run.conversation_id, "new_next_queue_number": number + 1})
                return StartedRun(run)
            return self._claimed(conn, key, run, owner, place, number)

        return await self._database.write(write)

    async def find_repeated(self, key: RequestKey | None, run: Run) -> Run | None:
        """See RunStore."""
        return await self._database.read(lambda conn: self._replayed(conn, key, run))

    def _claimed(
        self, conn: sa.Connection, key: RequestKey | None, run: Run, owner: str, place: Any, number: int
    ) -> StartedRun:
        running = replace(run, status=RunStatus.RUNNING)
        _insert_run(conn, key, running, number)
        lease = take(conn, self._times, place, run.id, owner, max(number + 1, place.next_queue_number))
        return StartedRun(running, claim=Claim(running, decode_agent(place), decode_conversation(place.thread), lease))

    def _answer(
        self, conn: sa.Connection, key: RequestKey | None, run: Run, owner: str, place: Any, answer: ApprovalAnswer
    ) -> StartedRun:
        """Stores the run that answers an approval ahead of those that wait for it."""
        decided = approvals.decide(conn, run, answer)
        if decided.repeats_run_id is not None:
            before = conn.execute(sa.select(runs).where(runs.c.id == decided.repeats_run_id)).first()
            if before is None:
                raise NoPendingApproval("The approval was answered before; that run is deleted.")
            return StartedRun(decode_run(before), replayed=True)
        ahead = first_unfinished(conn, run.conversation_id)
        if place.held:
            raise busy(run.conversation_id, ahead)
        number = place.next_queue_number if ahead is None else ahead.queue_number - 1
        resuming = replace(run, config=decided.config, resumes=decided.resumption)
        return self._claimed(conn, key, resuming, owner, place, number)

    def _replayed(self, conn: sa.Connection, key: RequestKey | None, run: Run) -> Run | None:
        if key is not None:
            asked = {
                "its_organization": key.organization_id, "its_method": key.method, "its_request": key.request_id
            }  # fmt: skip
            found = conn.execute(sql.RUN_BY_REQUEST, asked).first()
            if found is not None and found.request_fingerprint != key.fingerprint:
                raise RequestIdReused(
                    "This request_id was used before with other content.", field="request_id", request_id=key.request_id
                )
            if found is not None:
                return decode_run(found)
        otids = [message.otid for message in run.input if message.otid]
        if not otids:
            return None
        said = {
            "its_organization": run.organization_id, "its_conversation": run.conversation_id, "its_otids": otids
        }  # fmt: skip
        found = conn.execute(sql.RUN_BY_OTID, said).first()
        return None if found is None else decode_run(found)

    async def claim_next(self, conversation_id: str, owner: str) -> Claim | None:
        """See RunStore."""

        def write(conn: sa.Connection) -> Claim | None:
            first = first_unfinished(conn, conversation_id)
            if first is None:
                return None
            place = find_place(conn, self._times, first.organization_id, first.agent_id, conversation_id)
            if place is None or (place.held and place.lease_owner != owner):
                return None
            if first.status == RunStatus.CREATED and is_behind(place, first.queue_number):
                return None
            if approvals.pending_id(conn, conversation_id) is not None:
                return None
            lease = take(conn, self._times, place, first.id, owner, place.next_queue_number)
            conn.execute(sql.MARK_RUNNING, {"its_id": first.id})
            run = replace(decode_run(first), status=RunStatus.RUNNING, last_sequence=_newest_event(conn, first.id))
            taken_up = first.status == RunStatus.RUNNING
            thread = decode_conversation(place.thread)
            return Claim(run, decode_agent(place), thread, lease, taken_up, first.cancel_requested, first.claims)

        return await self._database.write(write)

    async def write(
        self,
        lease: Lease,
        *,
        entries: Sequence[JournalEntry] = (),
        events: Sequence[RunEvent] = (),
        steps: Sequence[Step] = (),
        traces: Sequence[StepTrace] = (),
    ) -> None:
        """See RunStore."""

        def write(conn: sa.Connection) -> None:
            self._extend(conn, lease)
            _record(conn, lease, entries, events)
            record_steps(conn, steps, traces, lease.run_id)

        await self._database.write(write, name="runs.write")

    def _extend(self, conn: sa.Connection, lease: Lease) -> None:
        """Puts off the lease's expiry, or fails where it no longer holds."""
        require_held(lease, conn.execute(sql.EXTEND_LEASE, held(lease) | self._times.expiry))

    async def finish(
        self,
        lease: Lease,
        run: Run,
        events: Sequence[RunEvent],
        steps: Sequence[Step],
        traces: Sequence[StepTrace] = (),
        approval: Approval | None = None,
        corrections: Sequence[Correction] = (),
    ) -> bool:
        """See RunStore."""

        def write(conn: sa.Connection) -> bool:
            spoken_at = run.completed_at if run.step_count else None
            require_held(lease, conn.execute(sql.RELEASE_LEASE, {**held(lease), "new_last_message_at": spoken_at}))
            _record(conn, lease, (), events)
            record_steps(conn, steps, traces, lease.run_id)
            conn.execute(sql.END_RUN, ended_values(run))
            _forget_journal(conn, run)
            if approval is not None:
                approvals.ask(conn, approval)
            last = {
                "its_id": run.agent_id,
                "new_last_stop_reason": run.stop_reason,
                "new_last_run_completed_at": run.completed_at,
                "new_last_run_ms": run.total_ms,
                "new_corrections": msgspec.json.encode(corrections) if corrections else None,
            }
            conn.execute(sql.NOTE_LAST_RUN, last)
            return first_unfinished(conn, run.conversation_id) is not None

        return await self._database.write(write, name="runs.finish")

    async def unfinished_decision(self, conversation_id: str, approval_id: str) -> UnfinishedDecision | None:
        """See RunStore."""
        return await self._database.read(lambda conn: _undone(conn, conversation_id, approval_id))

    async def journal(self, run_id: str) -> tuple[JournalEntry, ...]:
        """See RunStore."""
        query = sa.select(journal.c.entry).where(journal.c.run_id == run_id)
        rows = await self._database.read(lambda conn: conn.execute(query).scalars().all())
        return tuple(decode_entry(row) for row in rows)

    async def get(self, organization_id: str, run_id: str) -> Run:
        """See RunStore."""
        query = sa.select(runs).where(runs.c.organization_id == organization_id, runs.c.id == run_id)

        def read(conn: sa.Connection) -> Run:
            row = conn.execute(query).first()
            if row is None:
                raise NotFound(f"There is no run {run_id}.", resource_id=run_id)
            run = decode_run(row)
            if run.status.ended:
                return run
            return replace(run, last_sequence=_newest_event(conn, run_id))

        return await self._database.read(read)

    async def list(self, organization_id: str, where: RunFilter, page: PageQuery) -> Page[Run]:
        """See RunStore."""
        mine = runs.c.organization_id == organization_id
        query = sa.select(runs).where(mine, *_run_conditions(where))

        def read(conn: sa.Connection) -> Page[Run]:
            return paginate(conn, query, page, key=runs.c.created_at, id=runs.c.id, scope=mine).map(decode_run)

        return await self._database.read(read)

    async def cancel_waiting(self, run: Run, events: Sequence[RunEvent]) -> bool:
        """See RunStore."""

        def write(conn: sa.Connection) -> bool:
            if conn.execute(sql.END_RUN.where(runs.c.status == RunStatus.CREATED), ended_values(run)).rowcount == 0:
                return False
            _record(conn, Lease(run.id, run.conversation_id, "", 0), (), events)
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
        return tuple(map(decode_event, rows))

    async def purge_requests(self, before: datetime) -> int:
        """See RunStore."""
        return await self._database.write(lambda conn: self._ledger.purge(conn, before))


def _record(conn: sa.Connection, lease: Lease, entries: Sequence[JournalEntry], new_events: Sequence[RunEvent]) -> None:
    if entries:
        conn.execute(sql.INSERT_ENTRY, [entry_row(lease, entry) for entry in entries])
    if new_events:
        conn.execute(sql.INSERT_EVENT, [event_row(event) for event in new_events])


def _forget_journal(conn: sa.Connection, run: Run) -> None:
    if run.resumes is None:
        conn.execute(sql.FORGET_JOURNAL, {"its_run": run.id})
        return
    step = {"its_step": run.resumes.asked.step_id}
    if run.status is RunStatus.FAILED:
        conn.execute(sql.KEEP_JOURNAL_OF_STEP, {"its_run": run.id, **step})
        return
    conn.execute(sql.FORGET_JOURNAL, {"its_run": run.id})
    conn.execute(sql.FORGET_JOURNAL_OF_STEP, {"its_conversation": run.conversation_id, **step})


def _undone(conn: sa.Connection, conversation_id: str, approval_id: str) -> UnfinishedDecision | None:
    run_id = approvals.decided_by(conn, conversation_id, approval_id)
    row = conn.execute(sa.select(runs).where(runs.c.id == run_id)).first()
    resumption = None if row is None else decode_run(row).resumes
    if resumption is None:
        return None
    place = {"its_conversation": conversation_id, "its_step": resumption.asked.step_id}
    rows = conn.execute(sql.JOURNAL_OF_STEP, place).scalars().all()
    return UnfinishedDecision(resumption, tuple(decode_entry(row) for row in rows))


def _newest_event(conn: sa.Connection, run_id: str) -> int:
    return conn.execute(sql.NEWEST_EVENT, {"its_run": run_id}).scalar() or 0


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


def _insert_run(conn: sa.Connection, key: RequestKey | None, run: Run, queue_number: int) -> None:
    conn.execute(sql.INSERT_RUN, run_row(key, run, queue_number))
    otids = {message.otid for message in run.input if message.otid}
    if otids:
        rows = [{"conversation_id": run.conversation_id, "otid": otid, "run_id": run.id} for otid in otids]
        conn.execute(sql.INSERT_OTID, rows)
