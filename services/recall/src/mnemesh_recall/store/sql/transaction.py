"""A write transaction, and what every write in it needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa

from mnemesh_recall.store.sql.fulltext.documents import WordIndex


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction for one organization, at one instant."""

    conn: sa.Connection
    words: WordIndex
    organization_id: str
    now: datetime


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a transaction leaves to its end, because nothing in it reads that."""

    calls: list[dict[str, str]] = field(default_factory=list)
    """Rows of `tool_call_rows`."""
    news: list[str] = field(default_factory=list)
    """Messages that the vector index has yet to learn."""
