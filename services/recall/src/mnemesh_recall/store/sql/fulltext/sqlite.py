"""The word index on SQLite: FTS5, which finds; what it finds is weighed by where in a message each term stands."""

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
PLACES: Final = (("body about", 1.0), ("beside around", 0.45))
"""What a term counts for a candidate by its place. FTS5's own BM25 counts every term, and the scope, in the whole table
first: it takes the longer the more all agents have said."""
MOST_MATCHES: Final = 1_000
"""Where a term is common, so many messages that have it in a place are candidates, the newest."""
_INSIDE: Final = """
    JOIN messages USING (row_id)
    WHERE created_at >= :from_time AND created_at < :before_time AND id NOT IN :excluded
"""
_EVER: Final = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


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

    def counts(
        self, conn: sa.Connection, scope: SearchScope, terms: Sequence[str], most: int
    ) -> tuple[int, dict[str, int]]:
        """See WordIndex.counts."""
        asked: dict[str, Any] = {f"match_{number}": _match(scope, [term]) for number, term in enumerate(terms)}
        asked |= {"organization": scope.organization_id, "agent": scope.agent_id, "most": most}
        size, *counts = conn.execute(_counting(len(terms), of_agent=scope.agent_id is not None), asked).one()
        return size, {term: count for term, count in zip(terms, counts, strict=True) if count}

    def candidates(
        self, conn: sa.Connection, scope: SearchScope, weights: Mapping[str, float], limit: int, *, are_few: bool
    ) -> list[Candidate]:
        """See WordIndex.candidates."""
        inside = _looks_into_rows(scope)
        asked: dict[str, Any] = {
            "organization": scope.organization_id,
            "most": limit,
            "characters": READ_CHARACTERS,
        }
        for number, (term, weight) in enumerate(weights.items()):
            for place, (columns, share) in enumerate(PLACES):
                asked[f"match_{number}_{place}"] = _match(scope, [term], columns)
                asked[f"weight_{number}_{place}"] = weight * share
        # Where all are looked at, in the order of their writing: FTS5 goes through a word's rows twice as fast.
        newest_only = not are_few and not inside
        if inside:
            asked |= {"from_time": scope.from_time or _EVER[0], "before_time": scope.before_time or _EVER[1]}
            asked["excluded"] = list(scope.exclude_ids)
        return [
            Candidate(*row) for row in conn.execute(_best(len(weights), inside=inside, newest_only=newest_only), asked)
        ]


# Statements are written out, and once for so many terms: to build their many parts takes longer than to run them.


@lru_cache(maxsize=2 * MAX_TERMS)
def _counting(terms: int, *, of_agent: bool) -> sa.TextClause:
    """How many messages there are, and how many have each term."""
    counts = (
        f"(SELECT count(*) FROM (SELECT 1 FROM message_words WHERE message_words MATCH :match_{number} LIMIT :most))"  # noqa: S608
        for number in range(terms)
    )
    return sa.text(f"SELECT {', '.join((SIZE_OF_AGENT if of_agent else SIZE_OF_ORGANIZATION, *counts))}")


@lru_cache(maxsize=3 * MAX_TERMS)
def _best(terms: int, *, inside: bool, newest_only: bool) -> sa.TextClause:
    """The candidates: the sum of what each term counts in each place, one after the other; `inside` of times."""
    newest = f"ORDER BY rowid DESC LIMIT {MOST_MATCHES}" if newest_only else ""
    parts = (
        f"SELECT row_id, :weight_{number}_{place} AS weight FROM (SELECT rowid AS row_id FROM message_words"  # noqa: S608
        f" WHERE message_words MATCH :match_{number}_{place} {newest})"
        for number in range(terms)
        for place in range(len(PLACES))
    )
    found = sa.text(
        f"""
        SELECT id, substr(body, 1, :characters), length(body), beside, around, about
        FROM (
            SELECT row_id FROM ({" UNION ALL ".join(parts)}) {_INSIDE if inside else ""}
            GROUP BY row_id ORDER BY sum(weight) DESC, row_id DESC LIMIT :most) AS best
        CROSS JOIN messages USING (row_id) CROSS JOIN message_words ON message_words.rowid = best.row_id
        WHERE organization_id || '' = :organization
        ORDER BY row_id DESC
        """  # noqa: S608
    )
    if not inside:
        return found
    times = (sa.bindparam(name, type_=messages.c.created_at.type) for name in ("from_time", "before_time"))
    return found.bindparams(*times, sa.bindparam("excluded", expanding=True))


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
