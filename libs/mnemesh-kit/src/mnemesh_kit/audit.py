"""The audit log of a service: who changed what. An entry is part of the transaction of the change that it records.

The pipeline of a server notes the `AuditedCall` of a client. The `Ledger` adds its entry to the transaction in which
the effect runs; changes without a record in the ledger call `note_change`. So a change that fails leaves no entry, and
a repeated request has one. Entries have ids of resources, and nothing else that a client wrote.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from mnemesh_kit.call_context import ROLE_KEY, Principal, Role, current_correlation_id, current_principal
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql.database import UtcDateTime
from mnemesh_kit.sql.pages import matching, paginate
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock

if TYPE_CHECKING:
    from mnemesh_kit.sql import Database

MAX_IDS: Final = 100
"""The largest number of ids of an entry."""
MAX_REQUEST_ID: Final = 200
PURGE_ROWS: Final = 1_000
"""How many entries a transaction deletes."""
_ID: Final = re.compile(r"[a-z_]{1,40}-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_HANDLE: Final = re.compile(r"[\w.:/@+-]{1,200}", re.ASCII)


def audit_table(metadata: sa.MetaData) -> sa.Table:
    """Declares the `audit_entries` table of a service."""
    return sa.Table(
        "audit_entries",
        metadata,
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("created_at", UtcDateTime, primary_key=True, index=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("resource_ids", sa.Text, nullable=False),
        sa.Column("correlation_id", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
    )


_entries: Final = audit_table(sa.MetaData())
_c: Final = _entries.c
_names: Final = tuple(column.name for column in _c)
# A call may have several transactions. The first one that is committed has the entry, and the others add nothing.
_INSERT: Final = Prepared(
    sa.text(
        f"INSERT INTO audit_entries ({', '.join(_names)}) VALUES (:{', :'.join(_names)}) ON CONFLICT DO NOTHING"  # noqa: S608
    ).bindparams(*(sa.bindparam(column.name, type_=column.type) for column in _c))
)


@dataclass(slots=True)
class AuditedCall:
    """A call whose change has an entry in the audit log."""

    method: str
    """`mnemesh.blocks.v1.BlockService/UpdateBlock`"""
    caller: Principal
    correlation_id: str
    request_id: str = ""
    named_ids: tuple[str, ...] = ()
    """The ids of resources in the request."""
    entry_id: str = field(default_factory=lambda: new_id("audit"))
    created_at: datetime | None = None
    """The time of the first attempt to store the entry."""
    is_repeat: bool = False
    """True if an earlier call with the same request id has the entry."""

    def read(self, request: Message) -> None:
        """Takes the request id and the named ids from a request; from the first one of a stream."""
        self.request_id = _request_id(request)[:MAX_REQUEST_ID].replace("\0", "\ufffd")
        self.named_ids = tuple(islice(dict.fromkeys(ids_in(request)), MAX_IDS))


_call: ContextVar[AuditedCall | None] = ContextVar("mnemesh_audited_call", default=None)


def audited_call() -> AuditedCall | None:
    """Returns the audited call that is being served; None outside of such calls."""
    return _call.get()


def auditing(method: str, handler: Callable[..., Any], *, streams_requests: bool) -> Callable[..., Any]:
    """Returns a handler of an RPC whose calls by clients are audited; calls between services are not."""

    def begin(request: Any, context: Any) -> Any:
        caller = current_principal()
        # Without authentication, every caller has the role of a service.
        if caller.role is Role.SERVICE and (ROLE_KEY, Role.SERVICE.value) in (context.invocation_metadata() or ()):
            return handler(request, context)
        call = AuditedCall(method.removeprefix("/"), caller, current_correlation_id())
        _call.set(call)
        if streams_requests:
            return handler(_noting(call, request), context)
        call.read(request)
        return handler(request, context)

    return begin


def attribute(caller: Principal) -> None:
    """Says on whose behalf the current call changes something, if it is not its caller: a browser has no token."""
    if (call := _call.get()) is not None:
        call.caller = caller


async def _noting(call: AuditedCall, requests: AsyncIterator[Message]) -> AsyncIterator[Message]:
    is_first = True
    async for request in requests:
        if is_first:
            call.read(request)
            is_first = False
        yield request


def ids_in(message: Message) -> Iterator[str]:
    """Yields the ids of resources in a message and in its parts, outer ones first. A model is named by its handle."""
    parts: list[Message] = []
    for descriptor, value in message.ListFields():
        values = value if descriptor.is_repeated else (value,)
        if descriptor.message_type is not None:
            if not descriptor.message_type.GetOptions().map_entry:
                parts.extend(values)
        elif descriptor.type == FieldDescriptor.TYPE_STRING and (form := _form_of(descriptor.name)) is not None:
            yield from (each for each in values if form.fullmatch(each))
    for part in parts:
        yield from ids_in(part)


def _request_id(message: Any) -> str:
    """Returns the request id of a message, or that of a part, as streams have it in their first request."""
    if "request_id" in message.DESCRIPTOR.fields_by_name:
        return str(message.request_id)
    parts = (value for field, value in message.ListFields() if field.message_type is not None and not field.is_repeated)
    return next((part.request_id for part in parts if "request_id" in part.DESCRIPTOR.fields_by_name), "")


def _form_of(name: str) -> re.Pattern[str] | None:
    if name == "handle":
        return _HANDLE
    return _ID if name == "id" or (name.endswith(("_id", "_ids")) and name != "request_id") else None


def note_repeat(request_id: str) -> None:
    """Notes that a request took effect before. What the current call still completes has its entry, if it is its own.

    An effect of the call may have a request id of its own, and have run before, although the call is new.
    """
    call = _call.get()
    if call is not None and call.request_id == request_id:
        call.is_repeat = True


def note_change(conn: sa.Connection, now: datetime, made_ids: Iterable[str] = ()) -> None:
    """Adds the entry of the current call to the transaction of its change.

    Does nothing outside of audited calls, and if an earlier transaction of the call or an earlier call has the entry.

    Args:
        conn: the caller's write transaction.
        now: the time of the change.
        made_ids: ids of resources that the change creates or concerns. Other texts among them are left out.
    """
    call = _call.get()
    if call is None or call.is_repeat:
        return
    call.created_at = call.created_at or now
    made = (each for each in made_ids if _ID.fullmatch(each))
    ids = islice(dict.fromkeys((*call.named_ids, *made)), MAX_IDS)
    row = {
        "organization_id": call.caller.organization_id,
        "created_at": call.created_at,
        "id": call.entry_id,
        "subject_id": call.caller.subject_id,
        "role": call.caller.role.value,
        "method": call.method,
        "resource_ids": f" {' '.join(ids)} ",
        "correlation_id": call.correlation_id,
        "request_id": call.request_id,
    }
    _INSERT.send(conn, row)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Selects entries. A field that is None or "" selects all."""

    start: datetime | None = None
    """Entries from this time on."""
    end: datetime | None = None
    """Entries before this time."""
    subject_id: str = ""
    resource_id: str = ""
    method: str = ""
    """The whole name of a method, or its last part, such as `UpdateBlock`."""

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Returns the conditions of a select."""
        found = matching([(_c.subject_id, self.subject_id or None)])
        if self.start is not None:
            found.append(_c.created_at >= self.start)
        if self.end is not None:
            found.append(_c.created_at < self.end)
        if self.resource_id:
            found.append(_c.resource_ids.contains(f" {self.resource_id} ", autoescape=True))
        if self.method:
            is_whole = "/" in self.method
            found.append(
                _c.method == self.method if is_whole else _c.method.endswith(f"/{self.method}", autoescape=True)
            )
        return found


class AuditLog:
    """The entries of a service, which only `note_change` adds and only their age deletes.

    Example:
        >>> log = AuditLog(database, SystemClock(), retention_days=400)
        >>> page = await log.list(principal.organization_id, AuditFilter(resource_id=agent_id), query)
    """

    def __init__(self, database: "Database", clock: Clock, retention_days: float) -> None:
        """`retention_days` is the age at which entries are deleted; 0 keeps all."""
        self._database = database
        self._clock = clock
        self._retention = timedelta(days=retention_days)

    async def list(self, organization_id: str, filter_: AuditFilter, query: PageQuery) -> Page[sa.Row[Any]]:
        """Returns a page of the entries of an organization, by time and then by id."""
        scope = _c.organization_id == organization_id
        select = sa.select(_entries).where(scope, *filter_.conditions())
        return await self._database.read(
            lambda conn: paginate(conn, select, query, key=_c.created_at, id=_c.id, scope=scope), name="audit.list"
        )

    async def purge(self) -> int:
        """Deletes the entries that are too old, in bounded transactions. Returns their number."""
        if not self._retention:
            return 0
        key = (_c.organization_id, _c.created_at, _c.id)
        old = sa.select(*key).where(_c.created_at < self._clock.now() - self._retention).limit(PURGE_ROWS)
        delete = _entries.delete().where(sa.tuple_(*key).in_(old))
        total = 0
        while deleted := await self._database.write(lambda conn: conn.execute(delete).rowcount, name="audit.purge"):
            total += deleted
            if deleted < PURGE_ROWS:
                break
        return total
