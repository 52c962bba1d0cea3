"""Calls of URLs: those at the ends of runs and batches, and those of webhooks. They are stored with what they tell."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.ids import derive_id
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock
from mnemesh_types.messages import ToolStatus

from mnemesh_orchestrator.model.episodes import ExtractionJob
from mnemesh_orchestrator.model.events import DurableBody, MessageEvent, RunEnd
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.model.webhooks import (
    FAILS_FOR,
    ClaimedCallback,
    Webhook,
    WebhookEvent,
    changing_tools,
    end_event,
    is_delivered,
    is_final,
    is_gone,
    memory_data,
    next_attempt,
    payload,
    run_data,
)
from mnemesh_orchestrator.store.tables import callbacks, events, runs, webhooks

ENCODE = msgspec.json.Encoder().encode
_WEBHOOK: Final = msgspec.json.Decoder(Webhook)
_BODY: Final = msgspec.json.Decoder(DurableBody)
_c = callbacks.c
_UNFINISHED: Final = sa.and_(
    sa.text("runs.status IN ('created', 'running')"),
    sa.or_(runs.c.id == _c.target_id, runs.c.batch_id == _c.target_id),
)
_IS_DUE: Final = sa.and_(
    _c.due_at <= sa.bindparam("p_now", type_=_c.due_at.type),
    _c.webhook_id.is_not(None) | ~sa.exists().where(_UNFINISHED),
)
_ANY_DUE: Final = Prepared(sa.select(_c.target_id).where(_IS_DUE).limit(1))
_LONGEST_DUE: Final = (_c.due_at, _c.target_id)
_TURN: Final = sa.func.row_number().over(partition_by=_c.organization_id, order_by=_LONGEST_DUE)
# The rank is calculated without the bodies of a long queue.
_first: Final = (
    sa.select(_c.target_id, _TURN.label("turn"))
    .where(_IS_DUE)
    .order_by(_TURN, *_LONGEST_DUE)
    .limit(sa.bindparam("p_limit", type_=sa.Integer))
    .subquery()
)
_DUE: Final = Prepared(
    sa.select(callbacks, webhooks.c.document.label("webhook"))
    .join(_first, _first.c.target_id == _c.target_id)
    .outerjoin(webhooks, webhooks.c.id == _c.webhook_id)
    .order_by(_first.c.turn, *_LONGEST_DUE)
)
"""Prepared, as gateways ask every second."""
_DISABLED: Final = "The webhook was disabled."


@dataclass(frozen=True, eq=False)
class CallbackStore:
    """Calls of URLs. Each is stored with the event that it tells, or with the run or batch whose end it tells."""

    database: Database
    clock: Clock

    async def claim(self, limit: int) -> Sequence[ClaimedCallback]:
        """Returns calls that are due and whose runs have ended, longest due first, in turns of the organizations.

        Each is due again some time later unless `record` says that it is not.
        """
        now = self.clock.now()
        if not await self.database.read(lambda conn: _ANY_DUE.first(conn, {"p_now": now})):
            return ()  # the usual case, without a write

        def write(conn: sa.Connection) -> list[ClaimedCallback]:
            due = _DUE.all(conn, {"p_now": now, "p_limit": limit})
            return [_claimed(row) for row in due if _take(conn, row, now)]

        return await self.database.write(write, name="callbacks.claim")

    async def record(
        self,
        organization_id: str,
        target_id: str,
        attempt: int,
        *,
        sent_at: datetime,
        status: int | None,
        error: str | None,
    ) -> None:
        """Stores the result of an attempt. Does nothing if it is not the newest one.

        A webhook that is gone, or whose calls have all failed for days, is disabled.
        """
        newest = _attempt(target_id, attempt) & (_c.organization_id == organization_id)
        values: dict[str, Any] = {"sent_at": sent_at, "status": status, "error": error}
        if is_final(attempt, status):
            values["due_at"] = None

        def write(conn: sa.Connection) -> None:
            if conn.execute(callbacks.update().where(newest).values(values)).rowcount == 0:
                return
            webhook_id = conn.execute(sa.select(_c.webhook_id).where(_c.target_id == target_id)).scalar()
            if webhook_id is not None:
                _note_health(conn, webhook_id, sent_at, status)

        await self.database.write(write, name="callbacks.record")

    async def purge(self, before: datetime) -> int:
        """Deletes the deliveries of webhooks that were stored before a time. Returns their number."""
        deletion = callbacks.delete().where(_c.webhook_id.is_not(None), _c.due_at.is_(None), _c.created_at < before)
        return await self.database.write(lambda conn: conn.execute(deletion).rowcount)


def _attempt(target_id: str, attempt: int) -> sa.ColumnElement[bool]:
    return sa.and_(_c.target_id == target_id, _c.attempts == attempt)


def _take(conn: sa.Connection, row: Any, now: datetime) -> bool:
    """Counts an attempt. Returns False if another process has counted it."""
    attempt = row.attempts + 1
    values = {"attempts": attempt, "due_at": next_attempt(attempt, now)}
    taken = callbacks.update().where(_attempt(row.target_id, row.attempts), _c.due_at.is_not(None))
    return conn.execute(taken.values(values)).rowcount == 1


def _claimed(row: Any) -> ClaimedCallback:
    webhook = None if row.webhook is None else _WEBHOOK.decode(row.webhook)
    url = row.url if webhook is None else webhook.url
    return ClaimedCallback(
        row.target_id, row.organization_id, row.subject_id, url, row.attempts + 1, webhook=webhook, body=row.body or b""
    )


def _note_health(conn: sa.Connection, webhook_id: str, now: datetime, status: int | None) -> None:
    """Notes in a webhook whether its calls fail, and disables it if they have for days."""
    row = conn.execute(sa.select(webhooks.c.document).where(webhooks.c.id == webhook_id)).first()
    if row is None:
        return
    webhook = _WEBHOOK.decode(row.document)
    if is_delivered(status):
        if webhook.failing_since is not None:
            write_webhook(conn, replace(webhook, failing_since=None))
        return
    failing = replace(webhook, failing_since=webhook.failing_since or now)
    reason = None
    if is_gone(status):
        reason = "The URL answered that it is gone (410)."
    elif now - (failing.failing_since or now) >= FAILS_FOR:
        reason = f"All calls have failed for {FAILS_FOR.days} days."
    if reason is not None and not webhook.disabled:
        failing = replace(failing, disabled=True, disabled_reason=reason)
        end_deliveries(conn, webhook_id)
    if failing != webhook:
        write_webhook(conn, failing)


def end_deliveries(conn: sa.Connection, webhook_id: str) -> None:
    """Ends the deliveries of a webhook that are due."""
    due = sa.and_(_c.webhook_id == webhook_id, _c.due_at.is_not(None))
    conn.execute(callbacks.update().where(due).values(due_at=None, error=_DISABLED))


def write_webhook(conn: sa.Connection, webhook: Webhook) -> None:
    """Replaces a webhook."""
    values = {"document": ENCODE(webhook), "enabled": not webhook.disabled}
    conn.execute(webhooks.update().where(webhooks.c.id == webhook.id).values(values))


def insert_delivery(conn: sa.Connection, webhook: Webhook, event: str, key: str, now: datetime, body: bytes) -> str:
    """Stores an event for a webhook. Returns the id of the delivery, which is derived from the webhook and `key`."""
    delivery_id = derive_id("delivery", webhook.id, event, key)
    row = {
        "target_id": delivery_id,
        "organization_id": webhook.organization_id,
        "subject_id": webhook.subject_id,
        "webhook_id": webhook.id,
        "event": event,
        "body": body,
        "attempts": 0,
        "due_at": now,
        "created_at": now,
    }
    conn.execute(callbacks.insert().values(row))
    return delivery_id


def tell_end(conn: sa.Connection, run: Run, end: RunEnd | None = None) -> None:
    """Stores the events of a run that has ended, for the webhooks of its organization that want them."""
    found = _enabled(conn, run.organization_id)
    now, event = run.completed_at or run.updated_at, end_event(run)
    approval_id = None if end is None or end.approval is None else end.approval.id
    for webhook in found:
        if webhook.wants(event, run.agent_id):
            insert_delivery(conn, webhook, event, run.id, now, payload(event, now, run_data(run, approval_id)))
    changed = WebhookEvent.MEMORY_CHANGED
    wanting = [webhook for webhook in found if run.agent_id and webhook.wants(changed, run.agent_id)]
    if wanting and (tools := changing_tools(_successful_tools(conn, run.id))):
        body = payload(changed, now, memory_data(run, tools))
        for webhook in wanting:
            insert_delivery(conn, webhook, changed, run.id, now, body)


def tell_facts(conn: sa.Connection, job: ExtractionJob, until: int, facts: int, now: datetime) -> None:
    """Stores that facts were extracted from the messages of an agent up to a sequence id. A repeat stores nothing."""
    event = WebhookEvent.MEMORY_CHANGED
    body = payload(event, now, {"agent_id": job.agent_id, "facts": facts})
    for webhook in _enabled(conn, job.organization_id):
        key = f"{job.agent_id}/{until}"
        known = sa.select(_c.target_id).where(_c.target_id == derive_id("delivery", webhook.id, event, key))
        if webhook.wants(event, job.agent_id) and conn.execute(known).first() is None:
            insert_delivery(conn, webhook, event, key, now, body)


def _enabled(conn: sa.Connection, organization_id: str) -> list[Webhook]:
    query = sa.select(webhooks.c.document).where(webhooks.c.organization_id == organization_id, webhooks.c.enabled)
    return [_WEBHOOK.decode(document) for document in conn.execute(query).scalars()]


def _successful_tools(conn: sa.Connection, run_id: str) -> Iterator[str]:
    """Yields the names of the tools that succeeded in a run, from its stored events."""
    bodies = conn.execute(sa.select(events.c.body).where(events.c.run_id == run_id).order_by(events.c.sequence))
    for encoded in bodies.scalars():
        body = _BODY.decode(encoded)
        if isinstance(body, MessageEvent):
            yield from (each.name for each in body.tool_returns if each.status is ToolStatus.SUCCESS)
