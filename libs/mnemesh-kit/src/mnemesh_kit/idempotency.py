"""Idempotency keys: a repeated request returns the result of the first, which is recorded with its effect."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import sqlalchemy as sa
from google.protobuf.message import Message

from mnemesh_kit.audit import audited_call, note_change, note_repeat
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument, RequestIdReused
from mnemesh_kit.sql.database import UtcDateTime
from mnemesh_kit.sql.prepared import Answer, Prepared
from mnemesh_kit.time import Clock

if TYPE_CHECKING:
    from mnemesh_kit.sql import Database

T = TypeVar("T")

RETENTION: Final = timedelta(hours=24)
EFFECT_RETENTION: Final = timedelta(days=30)
"""The retention of requests whose id derives from a step, a run or a resource, as `{step_id}/0/0`.

Interrupted work repeats such requests when it is resumed, which may be long after it stopped.
"""
_DERIVED: Final = ("step-%/%", "run-%/%", "agent-%/%", "conv-%/%", "group-%/%")
MAX_LENGTH: Final = 200


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The identity of a request. Two requests with equal keys are one."""

    organization_id: str
    method: str
    request_id: str
    fingerprint: str
    """A hash of the request's content; another one under the same id is an error."""


def request_key(request: Message, method: str) -> RequestKey | None:
    """Returns the key of a mutating request in the current organization; None if its `request_id` is empty.

    The fingerprint covers the message without `request_id`, serialised deterministically: the order of fields and of
    map entries on the wire does not matter, because some languages change it from one sending to the next. It is the
    same in all releases, so a request that is repeated after an upgrade is still recognised.

    Raises:
        InvalidArgument: the id is too long or contains a NUL character.
    """
    request_id: str = request.request_id  # type: ignore[attr-defined]
    if not request_id:
        return None
    if len(request_id) > MAX_LENGTH or "\0" in request_id:
        raise InvalidArgument(f"request_id must be at most {MAX_LENGTH} characters, none NUL.", field="request_id")
    fingerprint = hashlib.sha256(_without_id(request, request_id)).hexdigest()[:32]
    return RequestKey(current_principal().organization_id, method, request_id, fingerprint)


def _without_id(request: Message, request_id: str) -> memoryview | bytes:
    """Returns the message as bytes without its id, which comes first, because `request_id` is field 1 everywhere."""
    content = request.SerializeToString(deterministic=True)
    encoded = request_id.encode()
    size = len(encoded)
    prefix = (bytes((10, size)) if size < 128 else bytes((10, size & 127 | 128, size >> 7))) + encoded
    if content.startswith(prefix):
        return memoryview(content)[len(prefix) :]
    copy = type(request)()
    copy.CopyFrom(request)
    copy.ClearField("request_id")
    return copy.SerializeToString(deterministic=True)


def ledger_table(metadata: sa.MetaData) -> sa.Table:
    """Declares the `request_ledger` table of a service."""
    return sa.Table(
        "request_ledger",
        metadata,
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("method", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("result_ids", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False, index=True),
    )


@cache
def _statements(table: sa.Table) -> tuple[Prepared[sa.Insert], Prepared[sa.Select[Any]]]:
    """Returns the statements that insert and find a record, compiled once for a process."""
    found = sa.select(table.c.fingerprint, table.c.result_ids).where(
        table.c.organization_id == sa.bindparam("organization_id"),
        table.c.method == sa.bindparam("method"),
        table.c.request_id == sa.bindparam("request_id"),
    )
    return Prepared(table.insert()), Prepared(found)


class Ledger:
    """The record of the requests that took effect, in a table of the service's database.

    Example:
        >>> def create(conn: sa.Connection) -> Sequence[str]:
        ...     return [insert_block(conn, draft)]
        >>> block = await ledger.write_and_read(key, create, lambda conn, ids: read_block(conn, ids[0]))
    """

    def __init__(self, database: "Database", table: sa.Table, clock: Clock) -> None:
        self._database = database
        self._table = table
        self._clock = clock
        self._insert, self._find = _statements(table)

    async def write_once(
        self, key: RequestKey | None, effect: Callable[[sa.Connection], Sequence[str]], *, name: str | None = None
    ) -> tuple[tuple[str, ...], bool]:
        """Runs `effect` in a transaction unless the request with this key has run before; see `once`.

        `name` names the write in failpoints.
        """
        return await self._database.write(lambda conn: self.once(conn, key, lambda: effect(conn)), name=name or effect)

    async def write_and_read(
        self,
        key: RequestKey | None,
        effect: Callable[[sa.Connection], Sequence[str]],
        read: Callable[[sa.Connection, tuple[str, ...]], T],
        *,
        name: str | None = None,
    ) -> T:
        """Runs `effect` as `write_once` does. Returns what `read` returns in the same transaction for its ids."""
        return await self._database.write(
            lambda conn: read(conn, self.once(conn, key, lambda: effect(conn))[0]), name=name or effect
        )

    async def find_recorded(self, key: RequestKey | None) -> tuple[str, ...] | None:
        """Returns the ids that a request returned when it ran; None if it has not run, or has no key.

        Raises:
            RequestIdReused: the id was used for other content.
        """
        return None if key is None else await self._database.read(lambda conn: self.find(conn, key))

    async def record(self, key: RequestKey | None, ids: Sequence[str] = ()) -> tuple[tuple[str, ...], bool]:
        """Records a request whose effect is elsewhere. Returns the recorded ids, and whether it was recorded before.

        Raises:
            RequestIdReused: the id was used for other content.
        """
        if key is None and audited_call() is None:
            return tuple(ids), False
        return await self.write_once(key, lambda _: ids)

    def once(
        self,
        conn: sa.Connection,
        key: RequestKey | None,
        effect: Callable[[], Sequence[str]],
        ask: Callable[[], None] = lambda: None,
    ) -> tuple[tuple[str, ...], bool]:
        """Runs `effect` unless the request with this key has run before.

        The record, the effect and the entry in the audit log belong to the caller's write transaction: all of them are
        committed, or none is.

        Args:
            conn: the caller's write transaction.
            key: the key of the request; without one, the effect always runs and nothing is recorded.
            effect: changes the database through `conn`, and returns the ids of the resources that it changed.
            ask: sends queries of `effect`, which are then answered together with that of the key.

        Returns:
            The ids that the effect returned when it ran, and whether that was an earlier request. The caller reads
            the result by these ids.

        Raises:
            RequestIdReused: the id was used for other content.
        """
        if key is None:
            ask()
            result = tuple(effect())
            self._note(conn, result)
            return result, False
        answer = self._ask(conn, key)
        ask()
        found = _recorded(key, answer)
        if found is not None:
            note_repeat(key.request_id)
            return found, True
        result = tuple(effect())
        row = {
            "organization_id": key.organization_id,
            "method": key.method,
            "request_id": key.request_id,
            "fingerprint": key.fingerprint,
            "result_ids": msgspec.json.encode(result).decode(),
            "created_at": self._clock.now(),
        }
        self._insert.send(conn, row)
        self._note(conn, result)
        return result, False

    def _note(self, conn: sa.Connection, result: Sequence[str]) -> None:
        if audited_call() is not None:
            note_change(conn, self._clock.now(), result)

    def find(self, conn: sa.Connection, key: RequestKey) -> tuple[str, ...] | None:
        """Returns the ids that a request returned when it ran; None if it has not run.

        Raises:
            RequestIdReused: the id was used for other content.
        """
        return _recorded(key, self._ask(conn, key))

    def _ask(self, conn: sa.Connection, key: RequestKey) -> Answer:
        parameters = {"organization_id": key.organization_id, "method": key.method, "request_id": key.request_id}
        return self._find.send(conn, parameters)

    def forget(self, conn: sa.Connection, key: RequestKey | None) -> None:
        """Deletes the record of a request whose effect was undone. Its id may be used again, also for other content."""
        if key is not None:
            conn.execute(
                self._table.delete().where(
                    self._table.c.organization_id == key.organization_id,
                    self._table.c.method == key.method,
                    self._table.c.request_id == key.request_id,
                )
            )

    def purge(self, conn: sa.Connection, older_than: datetime | None = None) -> int:
        """Deletes the records of requests before `older_than`, by default a day ago; returns their number.

        Records of requests with derived ids are kept for EFFECT_RETENTION instead of RETENTION.
        """
        horizon = older_than if older_than is not None else self._clock.now() - RETENTION
        request_id, created_at = self._table.c.request_id, self._table.c.created_at
        is_derived = sa.or_(*(request_id.like(pattern) for pattern in _DERIVED))
        expired = sa.or_(~is_derived, created_at < horizon - (EFFECT_RETENTION - RETENTION))
        return conn.execute(self._table.delete().where(created_at < horizon, expired)).rowcount


def _recorded(key: RequestKey, answer: Answer) -> tuple[str, ...] | None:
    found = answer.first()
    if found is None:
        return None
    if found.fingerprint != key.fingerprint:
        raise RequestIdReused(
            "This request_id was used before with other content. Use a new one.",
            field="request_id",
            request_id=key.request_id,
        )
    return tuple(msgspec.json.decode(found.result_ids, type=list[str]))
