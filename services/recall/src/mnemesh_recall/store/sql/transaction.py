"""A write transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa

from mnemesh_recall.store.sql.fulltext.documents import FulltextIndex, SearchableMessage


@dataclass(frozen=True, slots=True)
class Transaction:
    """One write transaction, for one organization, at one time."""

    conn: sa.Connection
    fulltext: FulltextIndex
    organization_id: str
    now: datetime


@dataclass(frozen=True, slots=True)
class Deferred:
    """Rows that are written at the end of the transaction, because no statement in it reads them."""

    calls: list[dict[str, str]] = field(default_factory=list)
    """Rows of `tool_call_rows`."""
    searchable: list[SearchableMessage] = field(default_factory=list)
    """The new messages to index, in order of their sequence ids."""
