"""Runs: the queue of each conversation with the claims of its runs, their progress, end, lists and deletion."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import matching, paginate
from mnemesh_kit.sql.prepared import Answer
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import NoPendingApproval, RunUnderWay
from mnemesh_orchestrator.model.conversations import ApprovalAnswer, require_no_approval
from mnemesh_orchestrator.model.events import (
    Claim,
    FinishedRun,
    GroupClaim,
    JournalEntry,
    Lease,
    RunEnd,
    RunEvent,
    StartedRun,
    TurnClaim,
    UnfinishedDecision,
    naming_children,
    with_children,
)
from mnemesh_orchestrator.model.groups import GroupState, buffer_of
from mnemesh_orchestrator.model.inputs import KnownMessage, repeated_run_id
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunStatus, Step, StepTrace
from mnemesh_orchestrator.store import approvals
from mnemesh_orchestrator.store import approvals as approval_statements
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.agent_rows import decode_agent, decode_conversation
from mnemesh_orchestrator.store.groups import VISIBLE_STATES, decode_document, group_missing
from mnemesh_orchestrator.store.leases import (
    LeaseClock,
    RunPools,
    busy_error,
    find_conversation,
    first_unfinished_run,
    is_behind_wait,
    lease_parameters,
    missing_error,
    next_unfinished_run,
    require_lease,
    take_lease,
    under_lease,
)
from mnemesh_orchestrator.store.memory_extractions import count_turn
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
    insert_run,
    is_recorded,
    newest_event,
    progress,
    record_run,
    record_steps,
    unfinished_decision,
)
from mnemesh_orchestrator.store.sleeptime import start_after_turn, started_by, store_transcript
from mnemesh_orchestrator.store.tables import events, journal, request_ledger, runs


def find_repeated_run(conn: sa.Connection, key: RequestKey | None, run: Run) -> Run | None:
    if key is not None:
        request = {"p_organization": key.organization_id, "p_method": key.method, "p_request": key.request_id}
        row = sql.RUN_BY_REQUEST.first(conn, request)
        if row is not None and row.request_fingerprint != key.fingerprint:
            raise RequestIdReused(
                "This request_id was used before with other content.", field="request_id", request_id=key.request_id
            )
        if row is not None:
            return decode_run(row)
    otids = [item.otid for item in run.sent if item.otid]
    if not otids:
        return None
    messages = {"p_organization": run.organization_id, "p_conversation": run.conversation_id, "p_otids": otids}
    known = {
        row.otid: KnownMessage(row.run_id, row.message_hash, row.input_hash)
        for row in conn.execute(sql.KNOWN_OTIDS, messages)
    }
    run_id = repeated_run_id(run.sent, known)
    return None if run_id is None else _run(conn, run.organization_id, run_id)


def newest_attempt(conn: sa.Connection, organization_id: str, run_id: str) -> Run:
    run = _run(conn, organization_id, run_id)
    return _newest_retry(conn, organization_id, run.first_run_id) or run


def require_newest_attempt(conn: sa.Connection, run: Run) -> None:
    """Raises RunUnderWay if the input of a retry has been retried by another run since the retry was requested."""
    newest = _newest_retry(conn, run.organization_id, run.first_run_id)
    if newest is not None and newest.id != run.retried_run_ids[0]:
        raise RunUnderWay("Another request has retried the run. Follow its run.", resource_id=newest.id)


def _run(conn: sa.Connection, organization_id: str, run_id: str) -> Run:
    run = _find(conn, organization_id, run_id)
    if run is None:
        raise NotFound(f"There is no run {run_id}.", resource_id=run_id)
    return run


def _find(conn: sa.Connection, organization_id: str, run_id: str) -> Run | None:
    row = conn.execute(sql.RUN_BY_ID, {"p_organization": organization_id, "p_run": run_id}).first()
    return None if row is None else decode_run(row)


def _newest_retry(conn: sa.Connection, organization_id: str, first_run_id: str) -> Run | None:
    row = conn.execute(sql.NEWEST_RETRY, {"p_organization": organization_id, "p_run": first_run_id}).first()
    return None if row is None else decode_run(row)


def start_run(
    conn: sa.Connection,
    lease_clock: LeaseClock,
    key: RequestKey | None,
    run: Run,
    instance_id: str,
    *,
    reject_busy: bool,
    answer: ApprovalAnswer | None,
) -> StartedRun:
    found = find_conversation(conn, lease_clock, run.organization_id, run.agent_id, run.conversation_id, queued=True)
    before = (
        _find(conn, run.organization_id, run.id) if run.lineage.parent_run_id else find_repeated_run(conn, key, run)
    )
    if before is not None:
        return StartedRun(before, replayed=True)
    if run.retried_run_ids:
        require_newest_attempt(conn, run)
    conversation = found.first()
    is_visible = conversation is not None and (run.agent_id or conversation.group_state in VISIBLE_STATES)
    if not run.agent_id and (run.plan is None or not is_visible):
        raise group_missing(run.group_id or "")
    if conversation is None:
        raise missing_error(conn, run.organization_id, run.agent_id, run.conversation_id)
    if answer is not None:
        return _answer(conn, lease_clock, key, run, instance_id, conversation, answer)
    require_no_approval(conversation.pending_approval)
    ahead = None if conversation.first_unfinished is None else first_unfinished_run(conn, run.conversation_id)
    is_busy = ahead is not None or conversation.held or conversation.next_wait is not None
    if is_busy and reject_busy and not _is_held_by_ended_run(conn, conversation, ahead):
        raise busy_error(run.conversation_id, ahead)
    number = conversation.next_queue_number
    if is_busy:
        insert_run(conn, key, run, number)
        conn.execute(sql.ADVANCE_QUEUE, {"p_id": run.conversation_id, "new_next_queue_number": number + 1})
        waited = ahead is not None and ahead.pool is not None and ahead.status == RunStatus.CREATED
        return StartedRun(run, frees_first=waited and run.pool is None)
    return _claim_new(conn, lease_clock, key, run, instance_id, conversation, number)


def queue_runs(conn: sa.Connection, lease_clock: LeaseClock, new: Sequence[Run]) -> None:
    """Stores runs of agents at the ends of the queues of their conversations, in their order, and claims none.

    Raises:
        PendingApproval: A conversation waits for an approval.
    """
    numbers: dict[str, int] = {}
    # Every transaction locks conversations in this order, so that two cannot wait for each other.
    for conversation_id, agent_id in sorted({(run.conversation_id, run.agent_id) for run in new}):
        organization_id = new[0].organization_id
        found = find_conversation(conn, lease_clock, organization_id, agent_id, conversation_id, queued=True)
        conversation = found.first()
        if conversation is None:
            raise missing_error(conn, organization_id, agent_id, conversation_id)
        require_no_approval(conversation.pending_approval)
        numbers[conversation_id] = conversation.next_queue_number
    for run in new:
        insert_run(conn, None, run, numbers[run.conversation_id])
        numbers[run.conversation_id] += 1
    for conversation_id, number in numbers.items():
        conn.execute(sql.ADVANCE_QUEUE, {"p_id": conversation_id, "new_next_queue_number": number})


def _is_held_by_ended_run(conn: sa.Connection, conversation: Any, ahead: Any) -> bool:
    """Returns whether nothing but the compaction that follows an ended run holds the conversation."""
    if ahead is not None or conversation.next_wait is not None:
        return False
    status = conn.execute(sa.select(runs.c.status).where(runs.c.id == conversation.lease_run_id)).scalar()
    return status is not None and RunStatus(status).ended


def claim_next_run(
    conn: sa.Connection, lease_clock: LeaseClock, pools: RunPools, conversation_id: str, instance_id: str
) -> Claim | None:
    first = first_unfinished_run(conn, conversation_id)
    if first is None:
        return None
    conversation = find_conversation(conn, lease_clock, first.organization_id, first.agent_id, conversation_id).first()
    if conversation is None or (conversation.held and conversation.lease_owner != instance_id):
        return None
    if first.status == RunStatus.CREATED and is_behind_wait(conversation, first.queue_number):
        return None
    if approvals.pending_id(conn, conversation_id) is not None:
        return None
    is_limited = first.pool is not None and first.status == RunStatus.CREATED
    if is_limited and not pools.may_start(conn, lease_clock, first, instance_id):
        return None
    lease = take_lease(conn, lease_clock, conversation, first.id, instance_id, conversation.next_queue_number)
    resumed = first.status == RunStatus.RUNNING
    reached = progress(conn, first.id) if resumed else 0
    # A run whose child waits for a person is not stalled, however long that takes.
    is_stalled = resumed and reached <= first.progress and not approvals_awaited(conn, [first.id])
    stalled = first.stalled_claims + 1 if is_stalled else 0
    conn.execute(sql.MARK_RUNNING, {"p_id": first.id, "new_stalled_claims": stalled, "new_progress": reached})
    waiting = decode_run(first)
    newest = max(waiting.last_sequence, newest_event(conn, first.id))
    run = replace(waiting, status=RunStatus.RUNNING, last_sequence=newest)
    return _claim(
        conversation,
        run,
        lease,
        resumed=resumed,
        cancelled=first.cancel_requested,
        claims=first.claims,
        stalled=stalled,
    )


def _claim(conversation: Any, run: Run, lease: Lease, *, cancelled: bool = False, **progress: Any) -> Claim:
    """Returns the claim of a run, with the records that it needs. The run of a group that is being deleted must end."""
    if run.plan is not None:
        cancelled = cancelled or conversation.group_state == GroupState.DELETING
        return GroupClaim(run=run, lease=lease, plan=run.plan, cancelled=cancelled, **progress)
    agent, thread = decode_agent(conversation), decode_conversation(conversation.thread)
    buffer = (
        buffer_of(decode_document(conversation.voice_group).manager) if conversation.voice_group is not None else None
    )
    return TurnClaim(
        run=run,
        lease=lease,
        agent=agent,
        conversation=thread,
        buffer=buffer,
        has_unrecorded_inputs=bool(conversation.has_unrecorded),
        cancelled=cancelled,
        **progress,
    )


def _claim_new(
    conn: sa.Connection,
    lease_clock: LeaseClock,
    key: RequestKey | None,
    run: Run,
    instance_id: str,
    conversation: Any,
    number: int,
) -> StartedRun:
    running = replace(run, status=RunStatus.RUNNING)
    insert_run(conn, key, running, number)
    lease = take_lease(
        conn, lease_clock, conversation, run.id, instance_id, max(number + 1, conversation.next_queue_number)
    )
    return StartedRun(running, claim=_claim(conversation, running, lease))


def _answer(
    conn: sa.Connection,
    lease_clock: LeaseClock,
    key: RequestKey | None,
    run: Run,
    instance_id: str,
    conversation: Any,
    answer: ApprovalAnswer,
) -> StartedRun:
    """Stores the run that answers an approval, before the runs that wait."""
    decided = approvals.decide(conn, run, answer)
    if decided.repeats_run_id is not None:
        before = conn.execute(sa.select(runs).where(runs.c.id == decided.repeats_run_id)).first()
        if before is None:
            raise NoPendingApproval("The approval was decided before, and the run that decided it was deleted.")
        return StartedRun(decode_run(before), replayed=True)
    ahead = first_unfinished_run(conn, run.conversation_id)
    if conversation.held:
        raise busy_error(run.conversation_id, ahead)
    number = conversation.next_queue_number if ahead is None else ahead.queue_number - 1
    resuming = replace(run, config=decided.config, resumes=decided.resumption)
    if (asking := _find(conn, run.organization_id, decided.asked_by_run_id)) is not None:
        # What waits for the run that asked waits for this one now.
        resuming = replace(resuming, lineage=asking.lineage, group_id=asking.group_id)
    return _claim_new(conn, lease_clock, key, resuming, instance_id, conversation, number)


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
    ) -> None:
        self._database = database
        self._pools = pools
        self._lease_clock = lease_clock or LeaseClock(clock)
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
        """

        def write(conn: sa.Connection) -> StartedRun:
            return start_run(conn, self._lease_clock, key, run, instance_id, reject_busy=reject_busy, answer=answer)

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
            return claim_next_run(conn, self._lease_clock, self._pools, conversation_id, instance_id)

        return await self._database.write(write)

    async def write(
        self,
        lease: Lease,
        *,
        entries: Sequence[JournalEntry] = (),
        events: Sequence[RunEvent] = (),
        steps: Sequence[Step] = (),
        traces: Sequence[StepTrace] = (),
        is_repeat: bool = False,
    ) -> None:
        """Stores entries, events, steps and traces in one transaction, and extends the lease.

        An entry or event that exists already fails the transaction. A step or trace that exists is replaced. With
        `is_repeat`, an earlier attempt of the same write may have been stored; if it was, nothing more is stored.
        """

        def write(conn: sa.Connection) -> None:
            with under_lease(lease, self._extend(conn, lease)):
                if not (is_repeat and is_recorded(conn, lease.run_id, entries, events)):
                    record_run(conn, lease, entries, events)
                    record_steps(conn, steps, traces, lease.run_id)

        await self._database.write(write, name="runs.write", contended=True)

    def _extend(self, conn: sa.Connection, lease: Lease) -> Answer:
        """Extends the lease. It is not held if the answer changed no row; see `require_lease`."""
        return sql.EXTEND_LEASE.send(conn, lease_parameters(lease) | self._lease_clock.expiry)

    async def finish(
        self,
        lease: Lease,
        end: RunEnd,
        events: Sequence[RunEvent],
        *,
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
                record_steps(conn, end.steps, end.traces, lease.run_id)
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


def _finished(run: Run, following: Answer, started: Sequence[Run]) -> FinishedRun:
    return FinishedRun(run, following.first() is not None, tuple(child.conversation_id for child in started))
