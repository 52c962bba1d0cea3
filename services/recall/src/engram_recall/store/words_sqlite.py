"""The word index on SQLite: FTS5, which finds; what it finds is weighed by where in a message each term stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import sqlalchemy as sa

from engram_recall.commands import SearchScope
from engram_recall.store.documents import READ_CHARACTERS, Candidate, Document
from engram_recall.store.filters import searched
from engram_recall.store.tables import messages
from engram_recall.words import MAX_TERMS

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
PLACES: Final = (("body about", 1.0), ("beside around", 0.45))
"""What a term counts for a candidate by its place. FTS5's own BM25 counts every term, and the scope, in the whole table
first: it takes the longer the more all agents have said."""
MOST_MATCHES: Final = 2_000
"""So many messages of a term and a place are candidates, the newest."""


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
        given: dict[str, str | float | int] = {"newest": -1 if _looks_into_rows(scope) else MOST_MATCHES}
        for number, (term, weight) in enumerate(weights.items()):
            for place, (columns, share) in enumerate(PLACES):
                given[f"match_{number}_{place}"] = _match(scope, [term], columns)
                given[f"weight_{number}_{place}"] = weight * share
        found = _found(len(weights)).subquery()
        best = (
            sa.select(found.c.row_id)
            .group_by(found.c.row_id)
            .order_by(sa.func.sum(found.c.weight).desc(), found.c.row_id.desc())
            .limit(limit)
        )
        if _looks_into_rows(scope):
            best = best.join_from(found, messages, messages.c.row_id == found.c.row_id).where(*searched(scope))
        row_ids = list(conn.execute(best, given).scalars())
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
            .where(words.rowid.in_(row_ids), *searched(scope))
            .order_by(words.rowid.desc())
        )
        return [Candidate(*row) for row in conn.execute(read)]


@lru_cache(maxsize=MAX_TERMS)
def _found(terms: int) -> sa.TextualSelect:
    """The messages that have a term in a place, with what that counts; one after the other for so many terms."""
    # Written out: to build the many parts of it anew takes longer than to carry them out.
    parts = (
        f"SELECT row_id, :weight_{number}_{place} AS weight FROM (SELECT rowid AS row_id FROM message_words"  # noqa: S608
        f" WHERE message_words MATCH :match_{number}_{place} ORDER BY rowid DESC LIMIT :newest)"
        for number in range(terms)
        for place in range(len(PLACES))
    )
    return sa.text(" UNION ALL ".join(parts)).columns(row_id=sa.Integer, weight=sa.Float)


def _looks_into_rows(scope: SearchScope) -> bool:
    """Whether the scope asks for what the word index does not know."""
    return bool(scope.from_time or scope.before_time or scope.exclude_ids)


def _match(scope: SearchScope, terms: Iterable[str], places: str = "body beside around about") -> str:
    words = " OR ".join(f'"{term}"' for term in terms)
    return f"{' AND '.join(_scopes(scope))} AND {{{places}}} : ({words})"


def _scope(item: Document) -> str:
    source = item.source
    tokens = [_token(source.organization_id), _token(source.agent_id), _token(source.role)]
    if source.conversation_id is not None:
        tokens.append(_token(source.conversation_id))
    return " ".join(tokens)


def _scopes(scope: SearchScope) -> Iterator[str]:
    # An agent is of one organization, so that its rows need not be asked for theirs one by one.
    yield f'scope : "{_token(scope.agent_id or scope.organization_id)}"'
    if scope.conversation_id is not None:
        yield f'scope : "{_token(scope.conversation_id)}"'
    if scope.roles:
        roles = " OR ".join(f'"{_token(role.value)}"' for role in scope.roles)
        yield f"scope : ({roles})"


def _token(value: str) -> str:
    """One token for the tokenizer."""
    bare = value.replace("-", "")
    return bare if bare.isalnum() and bare.isascii() else value.encode().hex()
