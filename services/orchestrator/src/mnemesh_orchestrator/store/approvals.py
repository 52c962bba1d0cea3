"""Approvals: one row each, decided by one compare-and-set."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import matching
from mnemesh_kit.time import Clock
from mnemesh_types.messages import Approve

from mnemesh_orchestrator.errors import ApprovalMismatch, NoPendingApproval
from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.conversations import (
    Approval,
    ApprovalAnswer,
    ApprovalFilter,
    ConversationState,
    Resumption,
)
from mnemesh_orchestrator.model.inputs import RunConfig
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.store.tables import agents, approvals, conversations, runs

_ENCODE = msgspec.json.Encoder().encode
_DOCUMENT = msgspec.json.Decoder(Approval)
_NOTHING_PENDING = (
    "Cannot process approval response: No tool call is currently awaiting approval. "
    "Please send a regular message to interact with the agent."
)
_IS_PENDING: Final = sa.text("approvals.state = 'pending'")  # exactly the predicate of the partial indexes
_PENDING: Final = (
    sa.select(approvals).where(approvals.c.conversation_id == sa.bindparam("p_conversation"), _IS_PENDING).limit(1)
)
PENDING_ID: Final = _PENDING.with_only_columns(approvals.c.id)
_VISIBLE: Final = (
    sa.select(approvals.c.document)
    .join(conversations, conversations.c.id == approvals.c.conversation_id)
    .join(agents, agents.c.id == approvals.c.agent_id)
    .where(_IS_PENDING, agents.c.state == AgentState.ACTIVE, conversations.c.state == ConversationState.ACTIVE)
    .order_by(approvals.c.created_at, approvals.c.id)
)
"""Built once, as each agent that is read asks for its approvals."""
WAITING_CONVERSATIONS: Final = sa.select(approvals.c.conversation_id).where(_IS_PENDING)
_BY_ID: Final = sa.select(approvals).where(
    approvals.c.conversation_id == sa.bindparam("p_conversation"), approvals.c.id == sa.bindparam("p_id")
)
_BY_CALLS: Final = (
    sa.select(approvals)
    .where(
        approvals.c.conversation_id == sa.bindparam("p_conversation"),
        approvals.c.call_ids == sa.bindparam("p_calls"),
    )
    .order_by(approvals.c.created_at.desc())
    .limit(1)
)


class ApprovalState(StrEnum):
    """The state of an approval. WITHDRAWN means that its window was emptied."""

    PENDING = "pending"
    DECIDED = "decided"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Decided:
    """The result of an answer: the approval that the run resumes, or the run that answered before with the same
    decisions.
    """

    config: RunConfig
    asked_by_run_id: str
    resumption: Resumption | None = None
    repeats_run_id: str | None = None


def ask(conn: sa.Connection, approval: Approval) -> None:
    """Stores an approval, in the transaction that ends its run."""
    row = {
        "id": approval.id,
        "organization_id": approval.organization_id,
        "agent_id": approval.agent_id,
        "conversation_id": approval.conversation_id,
        "run_id": approval.run_id,
        "state": ApprovalState.PENDING,
        "call_ids": _joined(_expected(approval)),
        "document": _ENCODE(approval),
        "created_at": approval.created_at,
        "expires_at": approval.expires_at,
    }
    conn.execute(approvals.insert(), row)


def pending_id(conn: sa.Connection, conversation_id: str) -> str | None:
    found: str | None = conn.execute(PENDING_ID, {"p_conversation": conversation_id}).scalar()
    return found


def decided_by(conn: sa.Connection, conversation_id: str, approval_id: str) -> str | None:
    """Returns the id of the run that decided an approval, or None."""
    row = conn.execute(_BY_ID, {"p_conversation": conversation_id, "p_id": approval_id}).first()
    return None if row is None else row.decided_by_run_id


def decide(conn: sa.Connection, run: Run, answer: ApprovalAnswer) -> Decided:
    """Decides an approval, in the transaction that stores the answering run.

    Raises:
        NoPendingApproval: No approval is pending, or it was decided differently.
        ApprovalMismatch: The decisions do not match the pending calls.
        InvalidArgument: The answer approves a tool that the client must run.
    """
    row = _addressed(conn, run.conversation_id, answer)
    approval = _DOCUMENT.decode(row.document)
    _require_matching(approval, answer)
    decisions = _ENCODE(sorted(answer.decisions, key=lambda item: item.tool_call_id))
    taken = conn.execute(
        approvals.update()
        .where(approvals.c.id == approval.id, approvals.c.state == ApprovalState.PENDING)
        .values(state=ApprovalState.DECIDED, decisions=decisions, decided_by_run_id=run.id, decided_at=run.created_at)
    )
    if taken.rowcount:
        resumption = Resumption(approval.id, approval.asked, answer.decisions, answer.withdrawn)
        return Decided(answer.config_after(approval.config), approval.run_id, resumption)
    row = conn.execute(_BY_ID, {"p_conversation": run.conversation_id, "p_id": approval.id}).one()
    if row.decisions == decisions:
        return Decided(approval.config, approval.run_id, repeats_run_id=row.decided_by_run_id)
    metadata = {} if row.decided_by_run_id is None else {"run_id": row.decided_by_run_id}
    state = "was withdrawn" if row.decided_by_run_id is None else "was decided differently before"
    raise NoPendingApproval(f"The approval {state}.", approval_request_id=approval.id, **metadata)


def _addressed(conn: sa.Connection, conversation_id: str, answer: ApprovalAnswer) -> Any:
    """Returns the row of the approval that an answer names.

    Without a name, it is the pending approval, or an earlier one with the same calls.
    """
    parameters = {"p_conversation": conversation_id}
    if answer.approval_request_id is not None:
        row = conn.execute(_BY_ID, {**parameters, "p_id": answer.approval_request_id}).first()
    else:
        pending = conn.execute(_PENDING, parameters).first()
        calls = _joined([item.tool_call_id for item in answer.decisions])
        row = None
        if pending is None or pending.call_ids != calls:
            row = conn.execute(_BY_CALLS, {**parameters, "p_calls": calls}).first()
        row = row if row is not None else pending
    if row is None:
        raise NoPendingApproval(_NOTHING_PENDING)
    return row


def _require_matching(approval: Approval, answer: ApprovalAnswer) -> None:
    expected, received = _expected(approval), [item.tool_call_id for item in answer.decisions]
    if sorted(expected) != sorted(received):
        raise ApprovalMismatch(
            f"Invalid tool call IDs. Expected '{expected}', but received '{received}'.",
            field="decisions",
            expected=",".join(expected),
            received=",".join(received),
        )
    names = {item.call.id: item.call.name for item in approval.asked.gated}
    for index, item in enumerate(answer.decisions):
        name = names[item.tool_call_id]
        if isinstance(item, Approve) and name in approval.asked.client_tools:
            raise InvalidArgument(
                f"decisions[{index}] must return the result of {name}, a tool of the client, or deny the call.",
                field=f"decisions[{index}]",
            )


def _expected(approval: Approval) -> list[str]:
    return [item.call.id for item in approval.asked.gated]


def _joined(call_ids: Sequence[str]) -> str:
    return " ".join(sorted(call_ids))


@dataclass(frozen=True, eq=False)
class ApprovalStore:
    """Pending approvals. RunStore creates and decides them, in the transactions of the runs.

    Example:
        >>> [approval.id for approval in await approvals.pending(ApprovalFilter(organization_id))]
        ['message-…']
    """

    database: Database
    clock: Clock

    async def list_pending(self, filter_: ApprovalFilter) -> tuple[Approval, ...]:
        """Returns the pending approvals of ACTIVE conversations of ACTIVE agents, oldest first."""
        query = _VISIBLE.where(*_conditions(filter_))
        rows = await self.database.read(lambda conn: conn.execute(query).scalars().all())
        return tuple(_DOCUMENT.decode(row) for row in rows)

    async def withdraw(self, approval_id: str) -> None:
        """Withdraws a pending approval, so that it cannot be answered. Has no effect on a decided one."""
        change = (
            approvals.update()
            .where(approvals.c.id == approval_id, approvals.c.state == ApprovalState.PENDING)
            .values(state=ApprovalState.WITHDRAWN, decided_at=self.clock.now())
        )

        def write(conn: sa.Connection) -> None:
            conn.execute(change)

        await self.database.write(write)


def _conditions(filter_: ApprovalFilter) -> list[sa.ColumnElement[bool]]:
    conditions = matching(
        (
            (approvals.c.organization_id, filter_.organization_id),
            (approvals.c.agent_id, filter_.agent_ids),
            (approvals.c.run_id, filter_.run_ids),
            (approvals.c.conversation_id, filter_.conversation_id),
        )
    )
    if filter_.group_id is not None:
        conditions.append(approvals.c.run_id.in_(sa.select(runs.c.id).where(runs.c.group_id == filter_.group_id)))
    if filter_.expired_at is not None:
        expired = approvals.c.expires_at <= filter_.expired_at
        if filter_.asked_before is not None:
            expired |= approvals.c.expires_at.is_(None) & (approvals.c.created_at <= filter_.asked_before)
        conditions.append(expired)
    return conditions


def answering_runs(conn: sa.Connection, run_ids: Sequence[str]) -> list[str]:
    answering = sa.select(approvals.c.decided_by_run_id).where(
        approvals.c.run_id.in_(run_ids), approvals.c.decided_by_run_id.is_not(None)
    )
    return list(conn.execute(answering).scalars())


def delete_decided(conn: sa.Connection, run_id: str) -> None:
    conn.execute(approvals.delete().where(approvals.c.run_id == run_id, approvals.c.state != ApprovalState.PENDING))
