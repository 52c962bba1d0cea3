"""Calls of URLs: when they are repeated, and webhooks with their payloads and signatures."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec
from mnemesh_kit.errors import InvalidArgument

from mnemesh_orchestrator.model.inputs import require_callback_url
from mnemesh_orchestrator.model.runs import Run, RunStatus, StopReason

MOST_WEBHOOKS: Final = 20
"""The largest number of webhooks of an organization: the end of a run stores a delivery for each."""
FAILS_FOR: Final = timedelta(days=3)
"""The time of failing calls after which a webhook is disabled."""
TEST: Final = "webhook.test"
_MOST_AGENTS: Final = 100
_SECRET: Final = "whsec_"  # noqa: S105 -- the prefix of secrets
_SECRET_BYTES: Final = 24
MEMORY_TOOLS: Final = frozenset(
    {
        *("core_memory_append", "core_memory_replace", "memory", "memory_apply_patch", "memory_insert"),
        *("memory_replace", "memory_rethink", "rethink_memory", "rethink_user_memory"),
        *("archival_memory_insert", "store_memories", "episodic_memory_correct", "episodic_memory_forget"),
    }
)
"""The built-in tools that change memory."""


_WAITS: Final = tuple(timedelta(seconds=seconds) for seconds in (30, 60, 300, 1_800, 7_200, 14_400, 21_600, 43_200))
"""The times from one attempt to the next, together a day. The first is longer than a call takes."""
MAX_ATTEMPTS: Final = len(_WAITS) + 1
_GONE: Final = 410


class WebhookEvent(StrEnum):
    """What a webhook is told about, as payloads name it."""

    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    RUN_CANCELLED = "run.cancelled"
    APPROVAL_REQUESTED = "approval.requested"
    MEMORY_CHANGED = "memory.changed"


_ENDS: Final = {
    RunStatus.COMPLETED: WebhookEvent.RUN_COMPLETED,
    RunStatus.FAILED: WebhookEvent.RUN_FAILED,
    RunStatus.CANCELLED: WebhookEvent.RUN_CANCELLED,
}


class WebhookOrder(StrEnum):
    """The keys that lists of webhooks and of deliveries can be sorted by."""

    CREATED_AT = "created_at"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL and the events that it is told about. See the contract for its fields."""

    id: str
    organization_id: str
    subject_id: str
    url: str
    created_at: datetime
    updated_at: datetime
    events: tuple[WebhookEvent, ...] = ()
    agent_ids: tuple[str, ...] = ()
    disabled: bool = False
    disabled_reason: str | None = None
    failing_since: datetime | None = None
    secret: bytes = field(default=b"", repr=False)
    """The key of signatures, sealed."""

    def wants(self, event: WebhookEvent, agent_id: str) -> bool:
        """Returns whether the webhook is told about an event of an agent; "" is a group."""
        return (not self.events or event in self.events) and (not self.agent_ids or agent_id in self.agent_ids)


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """An event for one webhook, and the result of its last attempt."""

    id: str
    webhook_id: str
    event: str
    payload: str
    created_at: datetime
    attempts: int = 0
    due_at: datetime | None = None
    sent_at: datetime | None = None
    status: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimedCallback:
    """A callback that is due, and that its caller is to call.

    `target_id` is the id of a run, of a batch, or of a delivery of an event to a webhook, which has a body.
    """

    target_id: str
    organization_id: str
    subject_id: str
    url: str
    attempt: int
    webhook: Webhook | None = None
    body: bytes = b""


def next_attempt(attempt: int, now: datetime) -> datetime:
    """Returns when a callback is due again whose attempt, with a number from 1, begins now."""
    return now + _WAITS[min(attempt, len(_WAITS)) - 1]


def is_final(attempt: int, status: int | None) -> bool:
    """Returns whether a callback is not called again after the result of an attempt."""
    return attempt >= MAX_ATTEMPTS or is_delivered(status) or is_gone(status)


def is_delivered(status: int | None) -> bool:
    """Returns whether an answer confirms that a call was received."""
    return status is not None and 200 <= status < 300


def is_gone(status: int | None) -> bool:
    """Returns whether an answer says that calls are not wanted any more."""
    return status == _GONE


@dataclass(frozen=True, slots=True)
class WebhookCall:
    """A signed request."""

    body: bytes
    headers: dict[str, str]


def require_valid_webhook(webhook: Webhook) -> Webhook:
    """Returns a webhook if each field follows its rule. Raises InvalidArgument."""
    if not webhook.url:
        raise InvalidArgument("webhook.url is required.", field="webhook.url")
    require_callback_url(webhook.url, "webhook.url")
    if len(webhook.agent_ids) > _MOST_AGENTS:
        raise InvalidArgument(f"webhook.agent_ids must have at most {_MOST_AGENTS} ids.", field="webhook.agent_ids")
    return webhook


def new_secret() -> str:
    """Returns a new secret, in the form of the convention Standard Webhooks."""
    return _SECRET + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signed(delivery_id: str, body: bytes, secret: str, now: datetime) -> WebhookCall:
    """Returns a request with the headers of the convention Standard Webhooks."""
    timestamp = str(int(now.timestamp()))
    key = base64.b64decode(secret.removeprefix(_SECRET))
    digest = hmac.new(key, f"{delivery_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return WebhookCall(
        body, {"webhook-id": delivery_id, "webhook-timestamp": timestamp, "webhook-signature": signature}
    )


def end_event(run: Run) -> WebhookEvent:
    """Returns the event of a run that ended."""
    if run.stop_reason is StopReason.REQUIRES_APPROVAL:
        return WebhookEvent.APPROVAL_REQUESTED
    return _ENDS[run.status]


def payload(event: str, now: datetime, data: dict[str, Any]) -> bytes:
    """Returns the body of an event."""
    return msgspec.json.encode({"type": event, "timestamp": now, "data": data})


def run_data(run: Run, approval_id: str | None) -> dict[str, Any]:
    """Returns what an event says about a run: ids and figures, no words."""
    found = {
        "run_id": run.id,
        "agent_id": run.agent_id or None,
        "conversation_id": run.conversation_id,
        "group_id": run.group_id,
        "parent_run_id": run.lineage.parent_run_id,
        "origin": run.lineage.origin,
        "status": run.status,
        "stop_reason": run.stop_reason,
        "step_count": run.step_count,
        "approval_request_id": approval_id,
        "error": None if run.error is None else run.error.reason,
    }
    return {name: value for name, value in found.items() if value is not None}


def memory_data(run: Run, tools: Sequence[str]) -> dict[str, Any]:
    """Returns what an event says about the changes of memory of a run: the tools that made them, each once."""
    where = {"run_id": run.id, "agent_id": run.agent_id, "conversation_id": run.conversation_id}
    return {**where, "tools": list(dict.fromkeys(tools))}


def changing_tools(names: Iterable[str]) -> tuple[str, ...]:
    """Returns those of some tools that change memory."""
    return tuple(name for name in names if name in MEMORY_TOOLS)
