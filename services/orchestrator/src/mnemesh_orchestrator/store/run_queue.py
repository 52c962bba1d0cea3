"""The queue of each conversation: how runs enter it, how repeats are recognised, and how the next run is claimed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.audit import note_change
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import NoPendingApproval, RunUnderWay
from mnemesh_orchestrator.model.budgets import Payer
from mnemesh_orchestrator.model.conversations import ApprovalAnswer, require_no_approval
from mnemesh_orchestrator.model.events import (
    Claim,
    GroupClaim,
    Lease,
    StartedRun,
    TurnClaim,
)
from mnemesh_orchestrator.model.groups import GroupState, buffer_of
from mnemesh_orchestrator.model.inputs import KnownMessage, repeated_run_id
from mnemesh_orchestrator.model.runs import Run, RunOrigin, RunPool, RunStatus
from mnemesh_orchestrator.store import approvals
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.agent_rows import decode_agent, decode_conversation
from mnemesh_orchestrator.store.budgets import Budgets
from mnemesh_orchestrator.store.groups import VISIBLE_STATES, decode_document, group_missing
from mnemesh_orchestrator.store.leases import (
    busy_error,
    find_conversation,
    first_unfinished_run,
    is_behind_wait,
    missing_error,
    take_lease,
)
from mnemesh_orchestrator.store.run_pools import RunPools
from mnemesh_orchestrator.store.run_rows import (
    approvals_awaited,
    decode_run,
    insert_run,
    newest_event,
    progress,
)
from mnemesh_orchestrator.store.tables import runs
from mnemesh_orchestrator.store.turn_statements import LeaseClock


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


@dataclass(frozen=True, slots=True)
class RunQueue:
    """Starts and claims runs, in transactions of its caller."""

    clock: Clock
    lease_clock: LeaseClock
    pools: RunPools = RunPools()  # noqa: RUF009 -- frozen
    budgets: Budgets = Budgets()  # noqa: RUF009 -- frozen

    def start(
        self,
        conn: sa.Connection,
        key: RequestKey | None,
        run: Run,
        instance_id: str,
        *,
        reject_busy: bool,
        answer: ApprovalAnswer | None,
    ) -> StartedRun:
        where = (run.organization_id, run.agent_id, run.conversation_id)
        found = find_conversation(conn, self.lease_clock, *where, queued=True)
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
            return self._answer(conn, key, run, instance_id, conversation, answer)
        require_no_approval(conversation.pending_approval)
        run, must_wait = self._within_budgets(conn, run, conversation)
        ahead = None if conversation.first_unfinished is None else first_unfinished_run(conn, run.conversation_id)
        is_busy = ahead is not None or conversation.held or conversation.next_wait is not None
        if is_busy and reject_busy and not _is_held_by_ended_run(conn, conversation, ahead):
            raise busy_error(run.conversation_id, ahead)
        number = conversation.next_queue_number
        if is_busy or must_wait:
            insert_run(conn, key, run, number)
            conn.execute(sql.ADVANCE_QUEUE, {"p_id": run.conversation_id, "new_next_queue_number": number + 1})
            # A client waits for its own places only, never for those of background work.
            waits = ahead is not None and ahead.status == RunStatus.CREATED and ahead.pool not in (None, run.pool)
            return StartedRun(run, frees_first=waits and run.pool in (None, RunPool.CLIENT))
        return self._claim_new(conn, key, run, instance_id, conversation, number)

    def _within_budgets(self, conn: sa.Connection, run: Run, conversation: Any) -> tuple[Run, bool]:
        """Returns a run that a client starts, and whether it must wait for a place.

        Raises:
            BudgetExceeded: A budget is used up, or the client waits for the run and there is no place.
        """
        payer = self.budgets.payer(conversation, run)
        if run.lineage.origin is not RunOrigin.CLIENT or (payer is None and self.pools.limits.client is None):
            return run, False
        if payer is not None:
            self.budgets.require(conn, payer, self.clock.now())
        places = self.pools.client_limit(conn, Payer(run.organization_id, run.agent_id))
        if places is None:
            return run, False
        if not run.background and conversation.first_unfinished is None:
            places.require_free()
        return replace(run, is_limited=True), not places.is_free

    def claim_next(self, conn: sa.Connection, conversation_id: str, instance_id: str) -> Claim | None:
        first = first_unfinished_run(conn, conversation_id)
        if first is None:
            return None
        where = (first.organization_id, first.agent_id, conversation_id)
        conversation = find_conversation(conn, self.lease_clock, *where).first()
        if conversation is None or (conversation.held and conversation.lease_owner != instance_id):
            return None
        if first.status == RunStatus.CREATED and is_behind_wait(conversation, first.queue_number):
            return None
        if approvals.pending_id(conn, conversation_id) is not None:
            return None
        is_limited = first.pool is not None and first.status == RunStatus.CREATED
        if is_limited and not self.pools.may_start(conn, self.lease_clock, first, instance_id):
            return None
        lease = take_lease(conn, self.lease_clock, conversation, first.id, instance_id, conversation.next_queue_number)
        resumed = first.status == RunStatus.RUNNING
        reached = progress(conn, first.id) if resumed else 0
        # A run whose child waits for a person is not stalled, however long that takes.
        is_stalled = resumed and reached <= first.progress and not approvals_awaited(conn, [first.id])
        stalled = first.stalled_claims + 1 if is_stalled else 0
        conn.execute(sql.MARK_RUNNING, {"p_id": first.id, "new_stalled_claims": stalled, "new_progress": reached})
        waiting = decode_run(first)
        newest = max(waiting.last_sequence, newest_event(conn, first.id))
        run = replace(waiting, status=RunStatus.RUNNING, last_sequence=newest)
        return self._claim(
            conversation,
            run,
            lease,
            resumed=resumed,
            cancelled=first.cancel_requested,
            claims=first.claims,
            stalled=stalled,
        )

    def _claim(self, conversation: Any, run: Run, lease: Lease, *, cancelled: bool = False, **progress: Any) -> Claim:
        """Returns the claim of a run, with the records that it needs.

        The run of a group that is being deleted must end.
        """
        tells = bool(conversation.has_webhooks)
        if run.plan is not None:
            cancelled = cancelled or conversation.group_state == GroupState.DELETING
            return GroupClaim(run=run, lease=lease, plan=run.plan, cancelled=cancelled, has_webhooks=tells, **progress)
        agent, thread = decode_agent(conversation), decode_conversation(conversation.thread)
        voice_group = conversation.voice_group
        buffer = None if voice_group is None else buffer_of(decode_document(voice_group).manager)
        return TurnClaim(
            run=run,
            lease=lease,
            agent=agent,
            conversation=thread,
            buffer=buffer,
            has_unrecorded_inputs=bool(conversation.has_unrecorded),
            cancelled=cancelled,
            has_webhooks=tells,
            payer=self.budgets.payer(conversation, run),
            **progress,
        )

    def _claim_new(
        self,
        conn: sa.Connection,
        key: RequestKey | None,
        run: Run,
        instance_id: str,
        conversation: Any,
        number: int,
    ) -> StartedRun:
        running = replace(run, status=RunStatus.RUNNING)
        insert_run(conn, key, running, number)
        lease = take_lease(
            conn, self.lease_clock, conversation, run.id, instance_id, max(number + 1, conversation.next_queue_number)
        )
        return StartedRun(running, claim=self._claim(conversation, running, lease))

    def _answer(
        self,
        conn: sa.Connection,
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
        note_change(conn, run.created_at, [run.agent_id, decided.asked_by_run_id, run.id])
        number = conversation.next_queue_number if ahead is None else ahead.queue_number - 1
        resuming = replace(run, config=decided.config, resumes=decided.resumption)
        if (asking := _find(conn, run.organization_id, decided.asked_by_run_id)) is not None:
            # What waits for the run that asked waits for this one now, and who followed it in the background goes on.
            background = run.background or asking.background
            resuming = replace(resuming, background=background, lineage=asking.lineage, group_id=asking.group_id)
        return self._claim_new(conn, key, resuming, instance_id, conversation, number)
