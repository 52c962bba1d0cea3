"""The word index on SQLite: FTS5 and its BM25."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import sqlalchemy as sa

from engram_recall.commands import SearchScope
from engram_recall.store.documents import Document
from engram_recall.store.filters import searched
from engram_recall.store.tables import messages

TABLE: Final = sa.table("message_words", sa.column("rowid"))

_PUT: Final = sa.text(
    "INSERT OR REPLACE INTO message_words (rowid, scope, body, context) VALUES (:row_id, :scope, :body, :context)"
)
_REMOVE: Final = sa.text("DELETE FROM message_words WHERE rowid = :row_id")
_REMOVE_AGENT: Final = sa.text(
    "DELETE FROM message_words WHERE rowid IN (SELECT row_id FROM messages WHERE agent_id = :agent_id)"
)
# The scope column finds, and does not score.
_SCORE: Final = sa.literal_column("-bm25(message_words, 0.0, 1.0, 0.5)", sa.Float)


class SqliteWords:
    """FTS5 with the scope as an indexed column: a common word of one agent costs nothing of the others' rows."""

    def put(self, conn: sa.Connection, documents: Sequence[Document]) -> None:
        """See WordIndex.put."""
        conn.execute(
            _PUT,
            [
                {"row_id": item.source.row_id, "scope": _scope(item), "body": item.body, "context": item.context}
                for item in documents
            ],
        )

    def remove(self, conn: sa.Connection, row_ids: Sequence[int]) -> None:
        """See WordIndex.remove."""
        if row_ids:
            conn.execute(_REMOVE, [{"row_id": row_id} for row_id in row_ids])

    def remove_agent(self, conn: sa.Connection, agent_id: str) -> None:
        """See WordIndex.remove_agent."""
        conn.execute(_REMOVE_AGENT, {"agent_id": agent_id})

    def search(
        self, conn: sa.Connection, scope: SearchScope, terms: Sequence[str], limit: int
    ) -> list[tuple[str, float]]:
        """See WordIndex.search."""
        statement = (
            sa.select(messages.c.id, _SCORE.label("score"))
            .select_from(TABLE.join(messages, messages.c.row_id == TABLE.c.rowid))
            .where(sa.text("message_words MATCH :match"), *searched(scope))
            .order_by(sa.desc("score"), messages.c.row_id.desc())
            .limit(limit)
        )
        words = " OR ".join(f'"{term}"' for term in terms)
        match = f"{' AND '.join(_scopes(scope))} AND {{body context}} : ({words})"
        return [(row.id, row.score) for row in conn.execute(statement, {"match": match})]


def _scope(item: Document) -> str:
    source = item.source
    tokens = [_token(source.organization_id), _token(source.agent_id), _token(source.role)]
    if source.conversation_id is not None:
        tokens.append(_token(source.conversation_id))
    return " ".join(tokens)


def _scopes(scope: SearchScope) -> Iterator[str]:
    # The narrowest alone finds as well as all of them: the join checks the rest.
    yield f'scope : "{_token(scope.conversation_id or scope.agent_id or scope.organization_id)}"'
    if scope.roles:
        roles = " OR ".join(f'"{_token(role.value)}"' for role in scope.roles)
        yield f"scope : ({roles})"


def _token(value: str) -> str:
    """One token for the tokenizer; the stemmer leaves a word that ends in a digit as it is."""
    bare = value.replace("-", "")
    return (bare if bare.isalnum() and bare.isascii() else value.encode().hex()) + "0"
