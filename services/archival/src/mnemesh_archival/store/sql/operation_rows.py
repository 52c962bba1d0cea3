"""Operations as rows: the work on the index that is not settled yet."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from mnemesh_archival.model.operations import DeletePoints, DropArchive, InsertPoints, Operation, UpdatePoint
from mnemesh_archival.store.sql.tables import operations

CLAIM = timedelta(seconds=60)
"""How long the call that recorded work has before another replica may take it over."""
KINDS: dict[str, type[Operation]] = {
    kind.__name__: kind for kind in (InsertPoints, UpdatePoint, DeletePoints, DropArchive)
}

# Made once: making a statement costs more than running it.
_IS = sa.and_(operations.c.organization_id == sa.bindparam("org"), operations.c.id == sa.bindparam("operation"))
_ADD = operations.insert()
_REMOVE = operations.delete().where(_IS)
_BY_ID = sa.select(operations.c.kind, operations.c.body).where(_IS)
_CLAIM = operations.update().where(_IS).values(claimed_until=sa.bindparam("until"))


def add(conn: sa.Connection, operation: Operation, now: datetime, claim: timedelta = CLAIM) -> None:
    """Record work, claimed by the caller, or due after that time."""
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
    """Forget it."""
    conn.execute(_REMOVE, {"org": operation.organization_id, "operation": operation.id})


def by_id(conn: sa.Connection, organization_id: str, operation_id: str) -> Operation | None:
    """The work of that id, if it is not settled."""
    row = conn.execute(_BY_ID, {"org": organization_id, "operation": operation_id}).first()
    return _operation(row) if row is not None else None


def update_of(conn: sa.Connection, organization_id: str, passage_id: str) -> Operation | None:
    """An unsettled update of that passage."""
    query = sa.select(operations.c.kind, operations.c.body).where(
        operations.c.organization_id == organization_id, operations.c.passage_id == passage_id
    )
    row = conn.execute(query).first()
    return _operation(row) if row is not None else None


def claim(conn: sa.Connection, now: datetime, everything: bool, limit: int) -> list[Operation]:
    """Unsettled work, oldest first, claimed anew."""
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
