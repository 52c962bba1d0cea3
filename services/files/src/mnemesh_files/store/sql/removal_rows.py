"""The rows of removals: what is deleted and still has traces in the archive, the texts or the blob store."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa

from mnemesh_files.store.sql.tables import removals


class RemovalKind(StrEnum):
    """What is removed."""

    ARCHIVE = "archive"
    """The archive of a folder, by the id of the folder."""
    FILE = "file"
    """The passages and the text of a file, by its id."""
    PASSAGES = "passages"
    """Passages of earlier texts of a file, by the id of the text that replaced them."""


def add(
    conn: sa.Connection, organization_id: str, kind: RemovalKind, id_: str, due_at: datetime, **details: Any
) -> None:
    """Records a removal; replaces one of the same thing."""
    conn.execute(removals.delete().where(is_removal(organization_id, kind, id_)))
    conn.execute(
        removals.insert().values(
            organization_id=organization_id,
            kind=kind,
            id=id_,
            details=msgspec.json.encode(details).decode(),
            due_at=due_at,
        )
    )


def is_removal(organization_id: str, kind: str, id_: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects a removal."""
    return sa.and_(removals.c.organization_id == organization_id, removals.c.kind == kind, removals.c.id == id_)
