"""Runs: their start and claims, progress, end, lists and deletion."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import msgspec
import sqlalchemy as sa
from mnemesh_kit.audit import note_change
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import matching, paginate
from mnemesh_kit.sql.prepared import Answer
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import RunUnderWay
from mnemesh_orchestrator.model.budgets import Payer, Spending
from mnemesh_orchestrator.model.conversations import ApprovalAnswer
from mnemesh_orchestrator.model.events import (
    Claim,
    FinishedRun,
    JournalEntry,
    Lease,
    RunEnd,
    RunEvent,
    StartedRun,
    UnfinishedDecision,
    naming_children,
    with_children,
)
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunStatus, Step, StepTrace
from mnemesh_orchestrator.store import approvals as approval_statements
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.budgets import Budgets
from mnemesh_orchestrator.store.callbacks import tell_end
from mnemesh_orchestrator.store.leases import lease_parameters, next_unfinished_run, require_lease, under_lease
from mnemesh_orchestrator.store.memory_extractions import count_turn
from mnemesh_orchestrator.store.run_pools import RunPools
from mnemesh_orchestrator.store.run_queue import RunQueue, find_repeated_run, newest_attempt
from mnemesh_orchestrator.store.run_rows import (
    approvals_awaited,
    callbacks_of,
    decode_entry,
    decode_event,
    decode_run,
    delete_callbacks,
    delete_empty_batches,
    ended_values,
    find_end,
    forget_journal,
    is_recorded,
    newest_event,
    record_run,
    record_steps,
    stored_steps,
    unfinished_decision,
)
from mnemesh_orchestrator.store.sleeptime import start_after_turn, started_by, store_transcript
from mnemesh_orchestrator.store.tables import events, journal, request_ledger, runs
from mnemesh_orchestrator.store.turn_statements import LeaseClock


def with_waits(conn: sa.Connection, found: Sequence[Run]) -> tuple[Run, ...]:
    """Returns runs with the approvals of other agents that they wait for."""
    waiting = approvals_awaited(conn, [run.id for run in found if not run.status.ended])
    return tuple(replace(run, waiting_for=waiting[run.id]) if run.id in waiting else run for run in found)


def with_callbacks(conn: sa.Connection, found: Sequence[Run]) -> tuple[Run, ...]:
    """Returns runs with the results of their callbacks."""
    known = callbacks_of(conn, [run.id for run in found if run.config.callback_url is not None])
    return tuple(replace(run, callback=known.get(run.id)) for run in found) if known else tuple(found)


def run_conditions(filter_: RunFilter) -> list[sa.ColumnElement[bool]]:
    conditions = matching(
        (
            (runs.c.agent_id, filter_.agent_ids),
            (runs.c.status, filter_.statuses),
            (runs.c.background, filter_.background),
            (runs.c.stop_reason, filter_.stop_reason),
            (runs.c.conversation_id, filter_.conversation_id),
            (runs.c.group_id, filter_.group_id),
            (runs.c.origin, filter_.origins),
            (runs.c.parent_run_id, filter_.parent_run_id),
            (runs.c.batch_id, filter_.batch_id),
        )
    )
    if filter_.active is not None:
        active = runs.c.status.in_((RunStatus.CREATED, RunStatus.RUNNING))
        conditions.append(active if filter_.active else ~active)
    return conditions


class RunStore:
    """Runs with their journal and durable events.

    The writes of a run have its lease as an argument. They raise LeaseLost, and write nothing, if another process holds
    the lease.

    Example:
        >>> started = await runs.start(key, run, instance_id, reject_busy=False)
        >>> await runs.write(started.claim.lease, events=[event])
        >>> await runs.events(run.id, 0, 10) == (event,)
        True
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        lease_clock: LeaseClock | None = None,
        pools: RunPools = RunPools(),  # noqa: B008 -- frozen
        budgets: Budgets = Budgets(),  # noqa: B008 -- frozen
    ) -> None:
        self._database = database
        self._clock = clock
        self._lease_clock = lease_clock or LeaseClock(clock)
        self._budgets = budgets
        self._queue = RunQueue(clock, self._lease_clock, pools, budgets)
        self._ledger = Ledger(database, request_ledger, clock)

    async def start(
        self,
        key: RequestKey | None,
        run: Run,
        instance_id: str,
        *,
        reject_busy: bool,
        answer: ApprovalAnswer | None = None,
    ) -> StartedRun:
        """Stores a run at the end of the queue of its conversation, and claims it if nothing else holds the
        conversation.

        With an `answer`, the run decides the pending approval of the conversation, and is claimed before the waiting
        runs. A repeat returns the first run: by its key, by the otids of its messages, or by the same decisions.

        Raises:
            OtidReused: Another run has an otid with other content, or only some of the messages.
            RunUnderWay: The run retries an input that another run has retried since.
            PendingApproval: The conversation waits for an approval, and `answer` is None.
            NoPendingApproval: No approval is pending, or it was decided differently.
            ApprovalMismatch: The decisions do not match the pending calls.
            ConversationBusy: `reject_busy` is set, and another run has not ended or other work holds the lease.
            BudgetExceeded: A client starts the run, and a budget of the organization or the agent is used up.
        """

        def write(conn: sa.Connection) -> StartedRun:
            return self._queue.start(conn, key, run, instance_id, reject_busy=reject_busy, answer=answer)

        return await self._database.write(write, contended=True)

    async def find_repeated(self, key: RequestKey | None, run: Run) -> Run | None:
        """Returns the run that `start` would return instead of storing this one, or None.

        Raises:
            OtidReused: Another run has an otid with other content, or only some of the messages.
        """
        return await self._database.read(lambda conn: find_repeated_run(conn, key, run))

    async def newest_attempt(self, organization_id: str, run_id: str) -> Run:
        """Returns the newest run with the input of a run: the run itself, or its latest retry. Raises NotFound."""
        return await self._database.read(lambda conn: newest_attempt(conn, organization_id, run_id))

    async def claim_next(self, conversation_id: str, instance_id: str) -> Claim | None:
        """Claims the first unfinished run of a conversation under a new epoch.

        Returns None if there is no such run, another process holds the lease, the agent is not ACTIVE, the
        conversation waits for an approval, or the run is a sleeptime run and its organization has no place for it.
        The claim has the number of takeovers since the run last made progress: a
        journal entry or a durable event.
        """

        def write(conn: sa.Connection) -> Claim | None:
            return self._queue.claim_next(conn, conversation_id, instance_id)

        return await self._database.write(write)

    async def write(
        self,
        lease: Lease,
        *,
        entries: Sequence[JournalEntry] = (),
        events: Sequence[RunEvent] = (),
        steps: Sequence[Step] = (),
        traces: Sequence[StepTrace] = (),
        payer: Payer | None = None,
        is_repeat: bool = False,
    ) -> None:
        """Stores entries, events, steps and traces in one transaction, and extends the lease. A `payer` pays for steps.

        An entry or event that exists already fails the transaction. A step or trace that exists is replaced. With
        `is_repeat`, an earlier attempt of the same write may have been stored; if it was, nothing more is stored.
        """

        def write(conn: sa.Connection) -> None:
            with under_lease(lease, self._extend(conn, lease)):
                if not (is_repeat and is_recorded(conn, lease.run_id, entries, events)):
                    record_run(conn, lease, entries, events)
                    self._record_steps(conn, lease, steps, traces, payer)

        await self._database.write(write, name="runs.write", contended=True)

    def _extend(self, conn: sa.Connection, lease: Lease) -> Answer:
        """Extends the lease. It is not held if the answer changed no row; see `require_lease`."""
        return sql.EXTEND_LEASE.send(conn, lease_parameters(lease) | self._lease_clock.expiry)

    def _record_steps(
        self,
        conn: sa.Connection,
        lease: Lease,
        steps: Sequence[Step],
        traces: Sequence[StepTrace],
        payer: Payer | None,
    ) -> None:
        """Stores steps and traces, and counts what the steps have used. One that is stored again counts once."""
        if payer is not None and steps:
            spent = Spending.of_steps(steps) - Spending.of_steps(stored_steps(conn, [step.id for step in steps]))
            self._budgets.count(conn, payer, spent, self._clock.now())
        record_steps(conn, steps, traces, lease.run_id)

    async def finish(
        self,
        lease: Lease,
        end: RunEnd,
        events: Sequence[RunEvent],
        *,
        payer: Payer | None = None,
        keeps_lease: bool = False,
        is_repeat: bool = False,
    ) -> FinishedRun:
        """Ends a run, releases its lease, and returns the run as it was stored, and the runs that can begin now.

        A completed turn of an agent with partners is counted, and the sleeptime runs that it starts are stored in the
        same transaction. Their ids are added to the run and to its UsageEvent.

        The journal is deleted, except for the calls of a decision that a failed run may not have executed; see
        `unfinished_decision`. With `keeps_lease`, the lease is extended instead, for work that follows the run. With
        `is_repeat`, an earlier attempt may have been stored; if it was, nothing more is stored.
        """
        statement, expiry = (sql.KEEP_LEASE, self._lease_clock.expiry) if keeps_lease else (sql.RELEASE_LEASE, {})
        run, turn = end.run, end.sleeptime

        def write(conn: sa.Connection) -> FinishedRun:
            ended = find_end(conn, run) if is_repeat else None
            if ended is not None:
                following = next_unfinished_run(conn, ended.conversation_id)
                return _finished(ended, following, started_by(conn, ended) if turn is not None else ())
            parameters = {**lease_parameters(lease), "new_last_message_at": end.last_message_at, **expiry}
            with under_lease(lease, statement.send(conn, parameters)):
                started = () if turn is None else start_after_turn(conn, run, turn)
                ended = with_children(run, started)
                record_run(conn, lease, (), naming_children(events, ended.child_run_ids))
                self._record_steps(conn, lease, end.steps, end.traces, payer)
                _record_end(conn, ended, end)
                following = next_unfinished_run(conn, ended.conversation_id)
            return _finished(ended, following, started)

        return await self._database.write(write, name="runs.finish", contended=True)

    async def store_transcript(
        self, lease: Lease, run: Run, events: Sequence[RunEvent], rest: Run | None, last_message_id: str | None
    ) -> Run:
        """Stores the input of a sleeptime run that has begun, with its events, and extends the lease.

        Returns the run as it is stored: if it has an input already, nothing changes.

        Args:
            lease: The lease of the run.
            run: The run with its input.
            events: The events that show the input.
            rest: A new run for the messages that did not fit. It is the next run of the conversation.
            last_message_id: The last message of the transcript, if nothing is left; the group shows it.
        """

        def write(conn: sa.Connection) -> Run:
            require_lease(lease, self._extend(conn, lease).changed())
            return store_transcript(conn, lease, run, events, rest, last_message_id)

        return await self._database.write(write, name="runs.store_transcript")

    async def find_unfinished_decision(self, conversation_id: str, approval_id: str) -> UnfinishedDecision | None:
        """Returns the decision about an approval and its journal entries of all runs, or None if the approval is not
        decided.
        """
        return await self._database.read(lambda conn: unfinished_decision(conn, conversation_id, approval_id))

    async def journal(self, run_id: str) -> tuple[JournalEntry, ...]:
        """Returns the journal entries of an unfinished run, in any order."""
        query = sa.select(journal.c.entry).where(journal.c.run_id == run_id)
        rows = await self._database.read(lambda conn: conn.execute(query).scalars().all())
        return tuple(decode_entry(row) for row in rows)

    async def get(self, organization_id: str, run_id: str) -> Run:
        """Returns a run. Raises NotFound."""
        query = sa.select(runs).where(runs.c.organization_id == organization_id, runs.c.id == run_id)

        def read(conn: sa.Connection) -> Run:
            row = conn.execute(query).first()
            if row is None:
                raise NotFound(f"There is no run {run_id}.", resource_id=run_id)
            (run,) = with_callbacks(conn, [decode_run(row)])
            if run.status.ended:
                return run
            (run,) = with_waits(conn, [run])
            return replace(run, last_sequence=max(run.last_sequence, newest_event(conn, run_id)))

        return await self._database.read(read)

    async def list(self, organization_id: str, filter_: RunFilter, page: PageQuery) -> Page[Run]:
        """Returns a page of runs ordered by creation."""
        scope = runs.c.organization_id == organization_id
        query = sa.select(runs).where(scope, *run_conditions(filter_))

        def read(conn: sa.Connection) -> Page[Run]:
            found = paginate(conn, query, page, key=runs.c.creation_number, id=runs.c.id, scope=scope).map(decode_run)
            return replace(found, items=with_callbacks(conn, with_waits(conn, found.items)))

        return await self._database.read(read)

    async def cancel_waiting(self, run: Run, events: Sequence[RunEvent]) -> bool:
        """Ends a run that was never claimed. Returns False, and changes nothing, if it was."""

        def write(conn: sa.Connection) -> bool:
            if conn.execute(sql.END_WAITING_RUN, ended_values(run)).rowcount == 0:
                return False
            record_run(conn, Lease(run.id, run.conversation_id, "", 0), (), events)
            tell_end(conn, run)
            return True

        return await self._database.write(write)

    async def delete(self, organization_id: str, run_id: str) -> None:
        """Deletes the record of an ended run, with its approvals that were decided.

        Raises:
            RunUnderWay: The run has not ended.
        """
        scope = sa.and_(runs.c.organization_id == organization_id, runs.c.id == run_id)

        def write(conn: sa.Connection) -> None:
            found = conn.execute(sa.select(runs.c.status, runs.c.batch_id).where(scope)).first()
            if found is None:
                raise NotFound(f"There is no run {run_id}.", resource_id=run_id)
            if not RunStatus(found.status).ended:
                raise RunUnderWay("The run has not ended. Cancel it first.", resource_id=run_id)
            note_change(conn, self._clock.now())
            approval_statements.delete_decided(conn, run_id)
            conn.execute(runs.delete().where(scope))
            delete_callbacks(conn, [run_id])
            if found.batch_id is not None:
                delete_empty_batches(conn, [found.batch_id])

        await self._database.write(write)

    async def events(self, run_id: str, after: int, limit: int) -> tuple[RunEvent, ...]:
        """Returns at most `limit` durable events with sequence numbers above `after`, in order."""
        query = (
            sa.select(events)
            .where(events.c.run_id == run_id, events.c.sequence > sa.literal(after, sa.BigInteger))
            .order_by(events.c.sequence)
            .limit(limit)
        )
        rows = await self._database.read(lambda conn: conn.execute(query).all())
        return tuple(map(decode_event, rows))

    async def list_unrecorded_inputs(self, limit: int) -> tuple[Run, ...]:
        """Returns ended runs of all organizations whose input recall may not have, those that ended first first.

        Those of a conversation in which a run is RUNNING are left out: their inputs would stand between its messages.
        """
        other = runs.alias("other")
        runs_now = sa.select(other.c.id).where(
            other.c.conversation_id == runs.c.conversation_id, other.c.status == RunStatus.RUNNING
        )
        query = (
            sa.select(runs)
            .where(runs.c.input_unrecorded, ~runs_now.exists())
            .order_by(runs.c.updated_at, runs.c.queue_number)
            .limit(limit)
        )
        rows = await self._database.read(lambda conn: conn.execute(query).all())
        return tuple(map(decode_run, rows))

    async def list_unrecorded_inputs_of(self, conversation_id: str) -> tuple[Run, ...]:
        """Returns the ended runs of a conversation whose input recall may not have, in the order of their queue."""
        query = (
            sa.select(runs)
            .where(runs.c.input_unrecorded, runs.c.conversation_id == conversation_id)
            .order_by(runs.c.queue_number)
        )
        rows = await self._database.read(lambda conn: conn.execute(query).all())
        return tuple(map(decode_run, rows))

    async def mark_input_recorded(self, run_id: str) -> None:
        """Notes that recall has the input of an ended run."""
        mark = runs.update().where(runs.c.id == run_id).values(input_unrecorded=False)
        await self._database.write(lambda conn: conn.execute(mark))

    async def purge_requests(self, before: datetime) -> int:
        """Deletes the idempotency keys that were used before a time, except those of runs. Returns their number."""
        return await self._database.write(lambda conn: self._ledger.purge(conn, before))


def _record_end(conn: sa.Connection, run: Run, end: RunEnd) -> None:
    """Stores the end of a run in its row and in that of its agent, and what follows from it."""
    sql.END_RUN.send(conn, ended_values(run))
    forget_journal(conn, run)
    if end.approval is not None:
        approval_statements.ask(conn, end.approval)
    if end.extraction_turns is not None:
        ended_at = run.completed_at or run.updated_at
        count_turn(conn, run.organization_id, run.agent_id, end.extraction_turns, ended_at)
    if run.agent_id:
        last = {
            "p_id": run.agent_id,
            "new_last_stop_reason": run.stop_reason,
            "new_last_run_completed_at": run.completed_at,
            "new_last_run_ms": run.total_ms,
            "new_corrections": msgspec.json.encode(end.corrections) if end.corrections else None,
        }
        sql.NOTE_LAST_RUN.send(conn, last)
    if end.has_webhooks:
        tell_end(conn, run, end)


def _finished(run: Run, following: Answer, started: Sequence[Run]) -> FinishedRun:
    return FinishedRun(run, following.first() is not None, tuple(child.conversation_id for child in started))
