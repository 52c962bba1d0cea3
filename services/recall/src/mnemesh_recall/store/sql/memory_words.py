"""The words of episodes and facts: a row of `memory_terms` for each."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from mnemesh_retrieval.words.analysis import analysed

from mnemesh_recall.model.episodes import Scope, ScopeKind
from mnemesh_recall.store.sql.episode_tables import episodes, facts, memory_terms
from mnemesh_recall.store.sql.word_languages import note_languages

PAGE: Final = 500
"""The number of memories that a rebuild indexes in one transaction."""
TABLES: Final = {"episodes": (episodes, episodes.c.summary, "episode"), "facts": (facts, facts.c.text, "fact")}
"""The tables of memories, with the column of their text and their kind in `memory_terms`."""
_ADD: Final = sa.insert(memory_terms)


def put(conn: sa.Connection, organization_id: str, kind: str, scope: Scope, memory_id: str, text: str) -> None:
    """Stores the words of a memory that has none stored."""
    words, language = analysed(text)
    note_languages(conn, ((organization_id, language),))
    rows = [
        {
            "organization_id": organization_id,
            "kind": kind,
            "term": term,
            "scope_key": scope.key,
            "memory_id": memory_id,
        }
        for term in dict.fromkeys(words)
    ]
    if rows:
        conn.execute(_ADD, rows)


def remove(conn: sa.Connection, memory_id: str) -> None:
    """Deletes the words of a memory."""
    conn.execute(sa.delete(memory_terms).where(memory_terms.c.memory_id == memory_id))


def index_page(conn: sa.Connection, name: str, after: int) -> tuple[int, int | None]:
    """Stores the words of the memories that follow a row id again.

    Returns:
        Their number, and the row id after which to continue; None if there are no more.
    """
    table, text, kind = TABLES[name]
    c = table.c
    columns = (c.row_id, c.id, c.organization_id, c.scope_kind, c.scope_id, text.label("text"))
    page = sa.select(*columns).where(c.row_id > after).order_by(c.row_id).limit(PAGE)
    rows = conn.execute(page).all()
    for row in rows:
        remove(conn, row.id)
        put(conn, row.organization_id, kind, Scope(ScopeKind(row.scope_kind), row.scope_id), row.id, row.text)
    return len(rows), rows[-1].row_id if len(rows) == PAGE else None
