"""The statements of a turn, built once: building one takes longer than executing it. Those of every turn are prepared.

Parameters of conditions are called `p_…`; new values are called `new_…`.
"""

from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from mnemesh_orchestrator.model.agents import AgentState, AgentType
from mnemesh_orchestrator.model.conversations import ConversationState
from mnemesh_orchestrator.model.groups import GroupState, ManagerType
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_orchestrator.store.approvals import PENDING_ID
from mnemesh_orchestrator.store.tables import (
    agents,
    budgets,
    conversations,
    events,
    groups,
    journal,
    run_otids,
    runs,
    slot_waits,
    step_traces,
    steps,
    webhooks,
)

LEASE_TIME: Final = timedelta(seconds=30)
"""The time for which a lease is held without a write or a renewal."""

UNFINISHED: Final = sa.text("status IN ('created', 'running')")  # exactly the predicate of the partial indexes

_ID: Final[sa.BindParameter[Any]] = sa.bindparam("p_id")
_ORGANIZATION: Final[sa.BindParameter[Any]] = sa.bindparam("p_organization")
_CONVERSATION: Final[sa.BindParameter[Any]] = sa.bindparam("p_conversation")
_RUN: Final[sa.BindParameter[Any]] = sa.bindparam("p_run")


class _OrNow(FunctionElement[Any]):
    type = UtcDateTime()
    inherit_cache = True


class _OrExpiry(FunctionElement[Any]):
    type = UtcDateTime()
    inherit_cache = True


@compiles(_OrNow)
@compiles(_OrExpiry)
def _as_given(element: FunctionElement[Any], compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(_OrNow, "postgresql")
def _or_now(element: FunctionElement[Any], compiler: Any, **options: Any) -> str:
    return f"coalesce({compiler.process(element.clauses, **options)}, clock_timestamp())"


@compiles(_OrExpiry, "postgresql")
def _or_expiry(element: FunctionElement[Any], compiler: Any, **options: Any) -> str:
    given = compiler.process(element.clauses, **options)
    return f"coalesce({given}, clock_timestamp() + interval '{LEASE_TIME.total_seconds():g} seconds')"


NOW: Final[Any] = _OrNow(sa.bindparam("p_now", type_=UtcDateTime()))
"""The time `p_now`, or the current time of the database."""
EXPIRY: Final[Any] = _OrExpiry(sa.bindparam("new_lease_expires_at", type_=UtcDateTime()))
"""The time `new_lease_expires_at`, or the expiry of a lease that starts now."""


def _new(*columns: sa.Column[Any]) -> dict[str, Any]:
    return {column.name: sa.bindparam(f"new_{column.name}", type_=column.type) for column in columns}


RUN_BY_REQUEST: Final = Prepared(
    sa.select(runs).where(
        runs.c.organization_id == _ORGANIZATION,
        runs.c.request_method == sa.bindparam("p_method"),
        runs.c.request_id == sa.bindparam("p_request"),
    )
)
RUN_BY_ID: Final = sa.select(runs).where(runs.c.organization_id == _ORGANIZATION, runs.c.id == _RUN)
KNOWN_OTIDS: Final = (
    sa.select(run_otids.c.otid, run_otids.c.run_id, run_otids.c.message_hash, run_otids.c.input_hash)
    .join(runs, runs.c.id == run_otids.c.run_id)
    .where(
        runs.c.organization_id == _ORGANIZATION,
        run_otids.c.conversation_id == _CONVERSATION,
        run_otids.c.otid.in_(sa.bindparam("p_otids", expanding=True)),
    )
)
NEWEST_RETRY: Final = (
    sa.select(runs)
    .where(runs.c.organization_id == _ORGANIZATION, runs.c.first_run_id == _RUN)
    .order_by(runs.c.queue_number.desc())
    .limit(1)
)
LEASE_HOLDS: Final = sa.and_(conversations.c.lease_owner.is_not(None), conversations.c.lease_expires_at > NOW)
"""Needs the parameter `p_now`, like every statement that contains it."""
_NEXT_WAIT: Final = (
    sa.select(sa.func.min(slot_waits.c.queue_number))
    .where(slot_waits.c.conversation_id == _CONVERSATION, slot_waits.c.expires_at > NOW)
    .scalar_subquery()
)
_HAS_WEBHOOKS: Final = (
    sa.select(webhooks.c.id).where(webhooks.c.organization_id == _ORGANIZATION, webhooks.c.enabled).exists()
)
_VOICE_GROUP: Final = (
    sa.select(groups.c.document)
    .where(
        groups.c.manager_agent_id == agents.c.id,
        groups.c.manager_type == ManagerType.VOICE_SLEEPTIME,
        sa.or_(groups.c.state == GroupState.ACTIVE, groups.c.state == GroupState.UPDATING),
    )
    .limit(1)
    .correlate(agents)
    .scalar_subquery()
)
_LOCK: Final = (
    conversations.c.id.label("conversation_id"),
    conversations.c.document.label("thread"),
    conversations.c.epoch,
    conversations.c.epoch_lead,
    conversations.c.lease_owner,
    conversations.c.lease_run_id,
    LEASE_HOLDS.label("held"),
    conversations.c.next_queue_number,
    _NEXT_WAIT.label("next_wait"),
    _HAS_WEBHOOKS.label("has_webhooks"),
)
_UNRECORDED: Final = (
    sa.select(sa.true())
    .where(sa.text("runs.input_unrecorded"), runs.c.conversation_id == _CONVERSATION)  # the predicate of the index
    .exists()
)
_HAS_BUDGET: Final = sa.select(sa.true()).where(budgets.c.organization_id == _ORGANIZATION).exists().label("has_budget")
_LOCKED_CONVERSATION: Final = (
    sa.select(
        agents,
        *_LOCK,
        sa.case((agents.c.type == AgentType.VOICE_CONVO, _VOICE_GROUP), else_=None).label("voice_group"),
        _UNRECORDED.label("has_unrecorded"),
        _HAS_BUDGET,
    )
    .join(agents, agents.c.id == conversations.c.agent_id)
    .where(
        conversations.c.id == _CONVERSATION,
        agents.c.id == sa.bindparam("p_agent"),
        agents.c.organization_id == _ORGANIZATION,
        agents.c.state == AgentState.ACTIVE,
        conversations.c.state == ConversationState.ACTIVE,
    )
)
LOCKED_CONVERSATION: Final = Prepared(_LOCKED_CONVERSATION)
"""An ACTIVE conversation joined with its ACTIVE agent.

`thread` is the document of the conversation. `held` is true if its lease has not expired. `next_wait` is the queue
number of the first work other than a run. `has_unrecorded` is true if recall may not have the input of an ended run of
the conversation. `has_budget` is true if the organization or one of its agents has a budget,
`has_webhooks` if the organization has enabled webhooks.
`voice_group` is the document of the sleeptime group that a voice agent manages.
"""
_LOCKED_GROUP_QUEUE: Final = (
    sa.select(groups.c.state.label("group_state"), *_LOCK, _HAS_BUDGET)
    .join(groups, groups.c.id == conversations.c.group_id)
    .where(
        conversations.c.id == _CONVERSATION,
        groups.c.organization_id == _ORGANIZATION,
        groups.c.state != GroupState.CREATING,
    )
)
LOCKED_GROUP_QUEUE: Final = Prepared(_LOCKED_GROUP_QUEUE)
"""The queue of a group that is not CREATING, with `has_budget` and the columns of the lease of LOCKED_CONVERSATION."""
_FIRST_UNFINISHED: Final = (
    sa.select(runs).where(runs.c.conversation_id == _CONVERSATION, UNFINISHED).order_by(runs.c.queue_number).limit(1)
)
_FIRST_UNFINISHED_ID: Final = _FIRST_UNFINISHED.with_only_columns(runs.c.id)
FIRST_UNFINISHED: Final = Prepared(_FIRST_UNFINISHED)
FIRST_UNFINISHED_ID: Final = Prepared(_FIRST_UNFINISHED_ID)
_QUEUE: Final = (
    PENDING_ID.scalar_subquery().label("pending_approval"),
    _FIRST_UNFINISHED_ID.scalar_subquery().label("first_unfinished"),
)
QUEUED_CONVERSATION: Final = Prepared(_LOCKED_CONVERSATION.add_columns(*_QUEUE))
"""LOCKED_CONVERSATION with the ids of the pending approval and of the first unfinished run."""
QUEUED_GROUP_QUEUE: Final = Prepared(_LOCKED_GROUP_QUEUE.add_columns(*_QUEUE))
"""LOCKED_GROUP_QUEUE with the columns that QUEUED_CONVERSATION adds."""
NEWEST_EVENT: Final = sa.select(sa.func.max(events.c.sequence)).where(events.c.run_id == _RUN)

_NOW_MICROSECONDS: Final = sa.bindparam("p_microseconds", type_=sa.BigInteger)
_other: Final = runs.alias()
_AFTER_NEWEST: Final = (
    sa.select(sa.func.coalesce(sa.func.max(_other.c.creation_number), 0) + 1)
    .where(_other.c.organization_id == _ORGANIZATION)
    .scalar_subquery()
)
INSERT_RUN: Final = Prepared(
    runs.insert().values(
        creation_number=sa.case((_AFTER_NEWEST > _NOW_MICROSECONDS, _AFTER_NEWEST), else_=_NOW_MICROSECONDS)
    )
)
"""Needs the parameters `p_organization` and `p_microseconds`, the time of creation."""
INSERT_OTID: Final = Prepared(run_otids.insert())
INSERT_ENTRY: Final = Prepared(journal.insert())
INSERT_EVENT: Final = Prepared(events.insert())
# SQLite replaces existing rows by itself; PostgreSQL needs DELETE_STEP and DELETE_TRACE before.
INSERT_STEP: Final = Prepared(
    steps.insert()
    .prefix_with("OR REPLACE", dialect="sqlite")
    .values(organization_id=sa.select(runs.c.organization_id).where(runs.c.id == _RUN).scalar_subquery())
)
DELETE_STEP: Final = Prepared(steps.delete().where(steps.c.id == _ID))
INSERT_TRACE: Final = Prepared(step_traces.insert().prefix_with("OR REPLACE", dialect="sqlite"))
DELETE_TRACE: Final = Prepared(step_traces.delete().where(step_traces.c.step_id == _ID))

ADVANCE_QUEUE: Final = (
    conversations.update().where(conversations.c.id == _ID).values(_new(conversations.c.next_queue_number))
)
TAKE_LEASE: Final = Prepared(
    conversations.update()
    .where(conversations.c.id == _ID)
    .values(
        {
            **_new(
                conversations.c.epoch,
                conversations.c.lease_owner,
                conversations.c.lease_run_id,
                conversations.c.next_queue_number,
            ),
            "lease_expires_at": EXPIRY,
        }
    )
)
_HELD: Final = conversations.update().where(
    conversations.c.id == _CONVERSATION,
    conversations.c.epoch == sa.bindparam("p_epoch"),
    conversations.c.lease_run_id == _RUN,
)
EXTEND_LEASE: Final = Prepared(_HELD.values(lease_expires_at=EXPIRY))
_LAST_MESSAGE: Final = sa.func.coalesce(
    sa.bindparam("new_last_message_at", type_=conversations.c.last_message_at.type), conversations.c.last_message_at
)
RELEASE_LEASE: Final = Prepared(
    _HELD.values(lease_owner=None, lease_run_id=None, lease_expires_at=None, last_message_at=_LAST_MESSAGE)
)
KEEP_LEASE: Final = Prepared(_HELD.values(lease_expires_at=EXPIRY, last_message_at=_LAST_MESSAGE))
_ID_OF_WAIT: Final = slot_waits.c.id == _ID
WAIT_NUMBER: Final = sa.select(slot_waits.c.queue_number).where(_ID_OF_WAIT)
INSERT_WAIT: Final = slot_waits.insert().values(expires_at=EXPIRY)
KEEP_WAIT: Final = slot_waits.update().where(_ID_OF_WAIT).values(expires_at=EXPIRY)
DELETE_WAIT: Final = slot_waits.delete().where(_ID_OF_WAIT)
DELETE_WAITS_OF_OWNER: Final = slot_waits.delete().where(slot_waits.c.owner == sa.bindparam("p_owner"))
DELETE_LAPSED_WAITS: Final = slot_waits.delete().where(
    slot_waits.c.conversation_id == _CONVERSATION, slot_waits.c.expires_at <= NOW
)
RAISE_LEAD: Final = _HELD.where(conversations.c.epoch_lead < sa.bindparam("p_lead")).values(
    epoch_lead=sa.bindparam("p_lead")
)
HOLDER: Final = sa.select(
    conversations.c.lease_run_id, conversations.c.lease_owner, conversations.c.epoch, conversations.c.epoch_lead
).where(conversations.c.id == _CONVERSATION, conversations.c.lease_owner.is_not(None))
MARK_RUNNING: Final = (
    runs.update()
    .where(runs.c.id == _ID)
    .values(
        status=RunStatus.RUNNING,
        claims=runs.c.claims + 1,
        **_new(runs.c.stalled_claims, runs.c.progress),
    )
)
END_RUN: Final = Prepared(
    runs.update()
    .where(runs.c.id == _ID)
    .values(
        _new(
            runs.c.status,
            runs.c.stop_reason,
            runs.c.outcome,
            runs.c.cost_nano_usd,
            runs.c.updated_at,
            runs.c.input_unrecorded,
        )
    )
)
END_WAITING_RUN: Final = END_RUN.statement.where(runs.c.status == RunStatus.CREATED)
ENTRY_EXISTS: Final = sa.select(journal.c.run_id).where(
    journal.c.run_id == _RUN,
    journal.c.step_id == sa.bindparam("p_step"),
    journal.c.kind == sa.bindparam("p_kind"),
    journal.c.ordinal == sa.bindparam("p_ordinal"),
)
COUNT_ENTRIES: Final = sa.select(sa.func.count()).select_from(journal).where(journal.c.run_id == _RUN)
FORGET_JOURNAL: Final = Prepared(journal.delete().where(journal.c.run_id == _RUN))
_STEP: Final[sa.BindParameter[str]] = sa.bindparam("p_step")
_OF_CONVERSATION: Final = sa.select(runs.c.id).where(runs.c.conversation_id == sa.bindparam("p_conversation"))
KEEP_JOURNAL_OF_STEP: Final = FORGET_JOURNAL.statement.where(journal.c.step_id != _STEP)
JOURNAL_OF_STEP: Final = sa.select(journal.c.entry).where(
    journal.c.run_id.in_(_OF_CONVERSATION), journal.c.step_id == _STEP
)
FORGET_JOURNAL_OF_STEP: Final = journal.delete().where(
    journal.c.run_id.in_(_OF_CONVERSATION), journal.c.step_id == _STEP
)
NOTE_LAST_RUN: Final = Prepared(
    agents.update()
    .where(agents.c.id == _ID)
    .values(
        corrections=sa.func.coalesce(
            sa.bindparam("new_corrections", type_=agents.c.corrections.type), agents.c.corrections
        ),
        **_new(agents.c.last_stop_reason, agents.c.last_run_completed_at, agents.c.last_run_ms),
    )
)


class LeaseClock:
    """The parameters of statements about leases: `p_now` and `new_lease_expires_at`.

    Without a clock both are None, and PostgreSQL uses its own time instead. SQLite serves one process, whose clock is
    used.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock

    @classmethod
    def of(cls, database: Database, clock: Clock) -> "LeaseClock":
        """Returns the lease clock of a database: PostgreSQL's own, or that of the process on SQLite."""
        return cls(None if database.dialect == "postgresql" else clock)

    @property
    def now(self) -> dict[str, Any]:
        """The parameter of a statement that checks whether a lease is held."""
        return {"p_now": self._clock and self._clock.now()}

    @property
    def expiry(self) -> dict[str, Any]:
        """The parameter of a statement that takes or extends a lease."""
        return {"new_lease_expires_at": self._clock and self._clock.now() + LEASE_TIME}
