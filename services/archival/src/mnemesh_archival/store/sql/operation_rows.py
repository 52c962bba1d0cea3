"""The rows of operations that are not settled."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from mnemesh_archival.model.operations import DeletePoints, DropArchive, InsertPoints, Operation, UpdatePoint
from mnemesh_archival.store.sql.tables import operations

CLAIM = timedelta(seconds=60)
"""How long the call that recorded an operation may run it before another replica may."""
KINDS: dict[str, type[Operation]] = {
    kind.__name__: kind for kind in (InsertPoints, UpdatePoint, DeletePoints, DropArchive)
}

# Built once: building a statement costs more than running it.
_BY_KEY = sa.and_(operations.c.organization_id == sa.bindparam("org"), operations.c.id == sa.bindparam("operation"))
_ADD = operations.insert()
_REMOVE = operations.delete().where(_BY_KEY)
_BY_ID = sa.select(operations.c.kind, operations.c.body).where(_BY_KEY)
_CLAIM = operations.update().where(_BY_KEY).values(claimed_until=sa.bindparam("until"))


def add(conn: sa.Connection, operation: Operation, now: datetime, claim: timedelta = CLAIM) -> None:
    """Records an operation with a claim of the caller; any process may run it once the claim expires."""
    row = {
        "organization_id": operation.organization_id,
        "id": operation.id,
        "kind": type(operation).__name__,
        "passage_id": operation.passage_id if isinstance(operation, UpdatePoint) else None,
        "body": msgspec.json.encode(operation).decode(),
        "created_at": now,
        "claimed_until": now + claim,
    }
    conn.execute(_ADD, row)


def remove(conn: sa.Connection, operation: Operation) -> None:
    """Removes an operation."""
    conn.execute(_REMOVE, {"org": operation.organization_id, "operation": operation.id})


def by_id(conn: sa.Connection, organization_id: str, operation_id: str) -> Operation | None:
    """Returns the operation with this id, if it is not settled."""
    row = conn.execute(_BY_ID, {"org": organization_id, "operation": operation_id}).first()
    return _operation(row) if row is not None else None


def update_of(conn: sa.Connection, organization_id: str, passage_id: str) -> Operation | None:
    """Returns the unsettled update of a passage, if any."""
    query = sa.select(operations.c.kind, operations.c.body).where(
        operations.c.organization_id == organization_id, operations.c.passage_id == passage_id
    )
    row = conn.execute(query).first()
    return _operation(row) if row is not None else None


def claim(conn: sa.Connection, now: datetime, everything: bool, limit: int) -> list[Operation]:
    """Claims unsettled operations, oldest first: those with an expired claim, or all with `everything`."""
    query = sa.select(operations.c.organization_id, operations.c.id, operations.c.kind, operations.c.body)
    if not everything:
        query = query.where(operations.c.claimed_until <= now)
    rows = conn.execute(query.order_by(operations.c.created_at, operations.c.id).limit(limit)).all()
    for row in rows:
        conn.execute(_CLAIM, {"org": row.organization_id, "operation": row.id, "until": now + CLAIM})
    return [_operation(row) for row in rows]


def _operation(row: sa.Row[*tuple[Any, ...]]) -> Operation:
    decoded: Operation = msgspec.json.decode(row.body, type=KINDS[row.kind])
    return decoded
