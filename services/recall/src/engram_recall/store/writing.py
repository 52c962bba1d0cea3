"""A write transaction, and what every write in it needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from engram_recall.store.documents import WordIndex


@dataclass(frozen=True, slots=True)
class Writing:
    """One transaction for one organization, at one instant."""

    conn: sa.Connection
    words: WordIndex
    organization_id: str
    now: datetime
