"""The word index on SQLite: FTS5, whose BM25 picks the candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from engram_recall.commands import SearchScope
from engram_recall.store.documents import READ_CHARACTERS, Candidate, Document
from engram_recall.store.filters import searched
from engram_recall.store.tables import messages

TABLE: Final = sa.table(
    "message_words",
    sa.column("rowid"),
    *(sa.column(name, sa.Text) for name in ("body", "beside", "around", "about")),
)

_PUT: Final = sa.text(
    "INSERT OR REPLACE INTO message_words (rowid, scope, body, beside, around, about)"
    " VALUES (:row_id, :scope, :body, :beside, :around, :about)"
)
_REMOVE: Final = sa.text("DELETE FROM message_words WHERE rowid = :row_id")
_REMOVE_AGENT: Final = sa.text(
    "DELETE FROM message_words WHERE rowid IN (SELECT row_id FROM messages WHERE agent_id = :agent_id)"
)
_CLEAR: Final = sa.text("DELETE FROM message_words")
_ANY: Final = sa.text("SELECT rowid FROM message_words LIMIT 1")
_COUNT: Final = sa.text(
    "SELECT count(*) FROM (SELECT 1 FROM message_words WHERE message_words MATCH :match LIMIT :most)"
)
# The scope column finds, and does not score.
_SCORE: Final = sa.literal_column("-bm25(message_words, 0.0, 1.0, 0.6, 0.3, 1.0)", sa.Float)


class SqliteWords:
    """FTS5 with the scope as an indexed column: a common word of one agent costs nothing of the others' rows."""

    def put(self, conn: sa.Connection, documents: Sequence[Document]) -> None:
        """See WordIndex.put."""
        conn.execute(
            _PUT,
            [
                {
                    "row_id": item.source.row_id,
                    "scope": _scope(item),
                    "body": item.body,
                    "beside": item.beside,
                    "around": item.around,
                    "about": item.about,
                }
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

    def clear(self, conn: sa.Connection) -> None:
        """See WordIndex.clear."""
        conn.execute(_CLEAR)

    def is_empty(self, conn: sa.Connection) -> bool:
        """See WordIndex.is_empty."""
        return conn.execute(_ANY).first() is None

    def holders(self, conn: sa.Connection, scope: SearchScope, terms: Sequence[str], most: int) -> dict[str, int]:
        """See WordIndex.holders."""
        counts = {
            term: int(conn.execute(_COUNT, {"match": _match(scope, [term]), "most": most}).scalar_one())
            for term in terms
        }
        return {term: count for term, count in counts.items() if count}

    def candidates(
        self, conn: sa.Connection, scope: SearchScope, weights: Mapping[str, float], limit: int
    ) -> list[Candidate]:
        """See WordIndex.candidates."""
        words, body = TABLE.c, TABLE.c.body
        best = (
            sa.select(words.rowid)
            .select_from(TABLE.join(messages, messages.c.row_id == words.rowid))
            .where(sa.text("message_words MATCH :match"), *searched(scope))
            .order_by(_SCORE.desc(), words.rowid.desc())
            .limit(limit)
        )
        row_ids = list(conn.execute(best, {"match": _match(scope, weights)}).scalars())
        if not row_ids:
            return []
        texts = (
            sa.func.substr(body, 1, READ_CHARACTERS),
            sa.func.length(body),
            words.beside,
            words.around,
            words.about,
        )
        read = (
            sa.select(messages.c.id, *texts)
            .select_from(TABLE.join(messages, messages.c.row_id == words.rowid))
            .where(words.rowid.in_(row_ids))
            .order_by(words.rowid.desc())
        )
        return [Candidate(*row) for row in conn.execute(read)]


def _match(scope: SearchScope, terms: Iterable[str]) -> str:
    words = " OR ".join(f'"{term}"' for term in terms)
    return f"{' AND '.join(_scopes(scope))} AND {{body beside around about}} : ({words})"


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
    """One token for the tokenizer."""
    bare = value.replace("-", "")
    return bare if bare.isalnum() and bare.isascii() else value.encode().hex()
