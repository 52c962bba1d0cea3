"""The full-text index on SQLite. FTS5 finds the matches, which are weighted by the columns that contain the terms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa

from mnemesh_recall.language.words import MAX_TERMS
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.fulltext.documents import (
    READ_CHARACTERS,
    SIZE_OF_AGENT,
    SIZE_OF_ORGANIZATION,
    Candidate,
    Document,
)
from mnemesh_recall.store.sql.tables import messages

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
COLUMN_GROUPS: Final = (("body about", 1.0), ("beside around", 0.45))
"""The columns with the weight of a term in them. FTS5's own BM25 first counts every term, and the scope, in the whole
table, which takes longer with every message of any agent."""
MOST_MATCHES: Final = 1_000
"""The number of newest matches per column group that are candidates if a term is common."""
_ROW_FILTERS: Final = """
    JOIN messages USING (row_id)
    WHERE created_at >= :from_time AND created_at < :before_time AND id NOT IN :excluded
"""
_ALL_TIME: Final = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


class SqliteFulltextIndex:
    """FTS5 with the scope as an indexed column, so that a search of one agent reads no rows of others."""

    def put(self, conn: sa.Connection, documents: Sequence[Document]) -> None:
        """See FulltextIndex.put."""
        conn.execute(
            _PUT,
            [
                {
                    "row_id": item.source.row_id,
                    "scope": _scope_tokens(item),
                    "body": item.body,
                    "beside": item.beside,
                    "around": item.around,
                    "about": item.about,
                }
                for item in documents
            ],
        )

    def remove(self, conn: sa.Connection, row_ids: Sequence[int]) -> None:
        """See FulltextIndex.remove."""
        if row_ids:
            conn.execute(_REMOVE, [{"row_id": row_id} for row_id in row_ids])

    def remove_agent(self, conn: sa.Connection, agent_id: str) -> None:
        """See FulltextIndex.remove_agent."""
        conn.execute(_REMOVE_AGENT, {"agent_id": agent_id})

    def clear(self, conn: sa.Connection) -> None:
        """See FulltextIndex.clear."""
        conn.execute(_CLEAR)

    def is_empty(self, conn: sa.Connection) -> bool:
        """See FulltextIndex.is_empty."""
        return conn.execute(_ANY).first() is None

    def counts(
        self, conn: sa.Connection, organization_id: str, scope: SearchScope, terms: Sequence[str], limit: int
    ) -> tuple[int, dict[str, int]]:
        """See FulltextIndex.counts."""
        parameters: dict[str, Any] = {
            f"match_{number}": _match(organization_id, scope, [term]) for number, term in enumerate(terms)
        }
        parameters |= {"organization": organization_id, "agent": scope.agent_id, "most": limit}
        size, *counts = conn.execute(
            _count_statement(len(terms), of_agent=scope.agent_id is not None), parameters
        ).one()
        return size, {term: count for term, count in zip(terms, counts, strict=True) if count}

    def candidates(
        self,
        conn: sa.Connection,
        organization_id: str,
        scope: SearchScope,
        weights: Mapping[str, float],
        limit: int,
        *,
        are_few: bool,
    ) -> list[Candidate]:
        """See FulltextIndex.candidates."""
        filters_rows = _filters_rows(scope)
        parameters: dict[str, Any] = {
            "organization": organization_id,
            "most": limit,
            "characters": READ_CHARACTERS,
        }
        for number, (term, weight) in enumerate(weights.items()):
            for group, (columns, share) in enumerate(COLUMN_GROUPS):
                parameters[f"match_{number}_{group}"] = _match(organization_id, scope, [term], columns)
                parameters[f"weight_{number}_{group}"] = weight * share
        # If all matches are read, their natural order is used: FTS5 reads it twice as fast as the reverse.
        newest_only = not are_few and not filters_rows
        if filters_rows:
            parameters |= {
                "from_time": scope.from_time or _ALL_TIME[0],
                "before_time": scope.before_time or _ALL_TIME[1],
            }
            parameters["excluded"] = list(scope.exclude_ids)
        return [
            Candidate(*row)
            for row in conn.execute(
                _candidates_statement(len(weights), filters_rows=filters_rows, newest_only=newest_only), parameters
            )
        ]


# Statements are plain SQL, cached by the number of terms: building them from parts takes longer than running them.


@lru_cache(maxsize=2 * MAX_TERMS)
def _count_statement(terms: int, *, of_agent: bool) -> sa.TextClause:
    """Returns the statement that counts all messages and those with each term."""
    counts = (
        f"(SELECT count(*) FROM (SELECT 1 FROM message_words WHERE message_words MATCH :match_{number} LIMIT :most))"  # noqa: S608
        for number in range(terms)
    )
    return sa.text(f"SELECT {', '.join((SIZE_OF_AGENT if of_agent else SIZE_OF_ORGANIZATION, *counts))}")


@lru_cache(maxsize=3 * MAX_TERMS)
def _candidates_statement(terms: int, *, filters_rows: bool, newest_only: bool) -> sa.TextClause:
    """Returns the statement that selects the candidates with the largest sums of weights."""
    newest = f"ORDER BY rowid DESC LIMIT {MOST_MATCHES}" if newest_only else ""
    parts = (
        f"SELECT row_id, :weight_{number}_{group} AS weight FROM (SELECT rowid AS row_id FROM message_words"  # noqa: S608
        f" WHERE message_words MATCH :match_{number}_{group} {newest})"
        for number in range(terms)
        for group in range(len(COLUMN_GROUPS))
    )
    found = sa.text(
        f"""
        SELECT id, substr(body, 1, :characters), length(body), beside, around, about
        FROM (
            SELECT row_id FROM ({" UNION ALL ".join(parts)}) {_ROW_FILTERS if filters_rows else ""}
            GROUP BY row_id ORDER BY sum(weight) DESC, row_id DESC LIMIT :most) AS best
        CROSS JOIN messages USING (row_id) CROSS JOIN message_words ON message_words.rowid = best.row_id
        WHERE organization_id || '' = :organization
        ORDER BY row_id DESC
        """  # noqa: S608
    )
    if not filters_rows:
        return found
    times = (sa.bindparam(name, type_=messages.c.created_at.type) for name in ("from_time", "before_time"))
    return found.bindparams(*times, sa.bindparam("excluded", expanding=True))


def _filters_rows(scope: SearchScope) -> bool:
    """Returns whether the scope has conditions that the full-text index cannot check."""
    return bool(scope.from_time or scope.before_time or scope.exclude_ids)


def _match(
    organization_id: str, scope: SearchScope, terms: Iterable[str], columns: str = "body beside around about"
) -> str:
    words = " OR ".join(f'"{term}"' for term in terms)
    return f"{' AND '.join(_scopes(organization_id, scope))} AND {{{columns}}} : ({words})"


def _scope_tokens(item: Document) -> str:
    source = item.source
    tokens = [_token(source.organization_id), _token(source.agent_id), _token(source.role)]
    if source.conversation_id is not None:
        tokens.append(_token(source.conversation_id))
    return " ".join(tokens)


def _scopes(organization_id: str, scope: SearchScope) -> Iterator[str]:
    # An agent belongs to one organization, so its token is enough.
    yield f'scope : "{_token(scope.agent_id or organization_id)}"'
    if scope.conversation_id is not None:
        yield f'scope : "{_token(scope.conversation_id)}"'
    if scope.roles:
        roles = " OR ".join(f'"{_token(role.value)}"' for role in scope.roles)
        yield f"scope : ({roles})"


def _token(value: str) -> str:
    """Returns an id or a role as one token of the tokenizer."""
    bare = value.replace("-", "")
    return bare if bare.isalnum() and bare.isascii() else value.encode().hex()
