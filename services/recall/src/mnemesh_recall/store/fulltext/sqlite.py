"""The full-text index on SQLite. FTS5 finds the matches, which are weighted by the columns that contain the terms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_retrieval.ranking.scores import fingerprint
from mnemesh_retrieval.words.analysis import MAX_TERMS

from mnemesh_recall.model.ranking import Candidate
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.fulltext import segment_rows as segments
from mnemesh_recall.store.fulltext.documents import (
    CANDIDATE_COLUMNS,
    DOCUMENT_ROW_COLUMNS,
    READ_CHARACTERS,
    SIZE_OF_AGENT,
    SIZE_OF_ORGANIZATION,
    CandidateQuery,
    Document,
    candidate_statement,
    document_row_statement,
    filters_rows,
)
from mnemesh_recall.store.fulltext.segment_building import DocumentRow
from mnemesh_recall.store.fulltext.segment_rows import ChangedAgents
from mnemesh_recall.store.tables import messages

_PUT: Final = Prepared(
    sa.text(
        "INSERT OR REPLACE INTO message_words"
        " (rowid, scope, body, asked, beside, around, about, before_id, after_id, ends_in_question)"
        " VALUES (:row_id, :scope, :body, :asked, :beside, :around, :about, :before_id, :after_id, :ends_in_question)"
    )
)
_REMOVE: Final = sa.text("DELETE FROM message_words WHERE rowid = :row_id")
_REMOVE_AGENT: Final = sa.text(
    "DELETE FROM message_words WHERE rowid IN (SELECT row_id FROM messages WHERE agent_id = :agent_id)"
)
_CLEAR: Final = sa.text("DELETE FROM message_words")
_MERGE: Final = sa.text("INSERT INTO message_words (message_words, rank) VALUES ('merge', :pages)")
_MERGED_PAGES: Final = 100
"""The number of pages that one step of a merge writes: some 10 ms."""
_ANY: Final = sa.text("SELECT rowid FROM message_words LIMIT 1")
COLUMNS: Final = "body asked beside around about"
COLUMN_GROUPS: Final = (("body asked about", 1.0), ("beside around", 0.4))
"""The columns with the weight of a term in them. FTS5's own BM25 first counts every term, and the scope, in the whole
table, which takes longer with every message of any agent."""
MOST_MATCHES: Final = 1_000
"""The number of newest matches per column group that are candidates if a term is common."""
_EXACT: Final = 1e6
"""The weight of a message that equals the query."""
_MOST_EXACT: Final = 10
_ROW_FILTERS: Final = """
    created_at >= :from_time AND created_at < :before_time
        AND id NOT IN (SELECT value FROM json_each(:excluded))
        AND (:speakers = '[]' OR speaker IN (SELECT value FROM json_each(:speakers)))
        AND (:senders = '[]' OR sender_id IN (SELECT value FROM json_each(:senders)))
"""
_ALL_TIME: Final = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
_READ: Final = f"""
    SELECT {CANDIDATE_COLUMNS}, 0 AS has_word, 0 AS is_exact
    FROM (
        SELECT value AS id FROM json_each(:ids)
        UNION
        SELECT after_id FROM json_each(:leaders) AS leaders
        CROSS JOIN messages ON messages.id = leaders.value
        CROSS JOIN message_words ON message_words.rowid = messages.row_id
    ) CROSS JOIN messages USING (id) CROSS JOIN message_words ON message_words.rowid = messages.row_id
    WHERE organization_id || '' = :organization AND (:agent IS NULL OR agent_id || '' = :agent)
        AND (:conversation IS NULL OR conversation_id || '' = :conversation)
        AND (:roles = '[]' OR role IN (SELECT value FROM json_each(:roles)))
        AND {_ROW_FILTERS}
    ORDER BY row_id DESC
"""  # noqa: S608

_DOCUMENT_ROWS: Final = Prepared(
    document_row_statement(
        f"""
    SELECT {DOCUMENT_ROW_COLUMNS}
    FROM (SELECT value AS wanted FROM json_each(:row_ids)) CROSS JOIN messages ON messages.row_id = wanted
    CROSS JOIN message_words ON message_words.rowid = messages.row_id
    ORDER BY row_id
    """  # noqa: S608
    )
)


class SqliteFulltextIndex:
    """FTS5 with the scope as an indexed column, so that a search of one agent reads no rows of others."""

    def __init__(self, changed: ChangedAgents) -> None:
        self.changed = changed

    def put(self, conn: sa.Connection, documents: Sequence[Document]) -> None:
        """See FulltextIndex.put."""
        _PUT.change_each(conn, [{**item.to_row(), "scope": _scope_tokens(item)} for item in documents])
        segments.note(conn, self.changed, ((item.source.agent_id, item.source.row_id) for item in documents))

    def remove(self, conn: sa.Connection, agent_id: str, row_ids: Sequence[int]) -> None:
        """See FulltextIndex.remove."""
        if row_ids:
            conn.execute(_REMOVE, [{"row_id": row_id} for row_id in row_ids])
            segments.note(conn, self.changed, ((agent_id, row_id) for row_id in row_ids))

    def remove_agent(self, conn: sa.Connection, agent_id: str) -> None:
        """See FulltextIndex.remove_agent."""
        conn.execute(_REMOVE_AGENT, {"agent_id": agent_id})
        segments.delete_agent(conn, agent_id)

    def clear(self, conn: sa.Connection) -> None:
        """See FulltextIndex.clear."""
        conn.execute(_CLEAR)
        segments.delete_all(conn)

    def merge(self, conn: sa.Connection, *, first: bool) -> bool:
        """See FulltextIndex.merge."""
        driver: Any = conn.connection.driver_connection
        before = driver.total_changes
        conn.execute(_MERGE, {"pages": -_MERGED_PAGES if first else _MERGED_PAGES})
        return bool(driver.total_changes - before > 1)  # The statement counts as one change if nothing is merged.

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
        self, conn: sa.Connection, organization_id: str, scope: SearchScope, query: CandidateQuery
    ) -> list[Candidate]:
        """See FulltextIndex.candidates."""
        is_filtered = filters_rows(scope)
        parameters: dict[str, Any] = {
            "organization": organization_id,
            "most": query.limit,
            "characters": READ_CHARACTERS,
            "exact": _match_exact(organization_id, scope, query.fingerprint),
        }
        parts = list(_weighted_matches(organization_id, scope, query))
        for number, (match, weight) in enumerate(parts):
            parameters[f"match_{number}"], parameters[f"weight_{number}"] = match, weight
        # If all matches are read, their natural order is used: FTS5 reads it twice as fast as the reverse.
        newest_only = not query.are_few and not is_filtered
        if is_filtered:
            parameters |= _row_filters(scope)
        statement = _candidates_statement(len(parts), is_filtered=is_filtered, newest_only=newest_only)
        return [Candidate(*row) for row in conn.execute(statement, parameters)]

    def document_rows(self, conn: sa.Connection, row_ids: Sequence[int]) -> list[DocumentRow]:
        """See FulltextIndex.document_rows."""
        found = _DOCUMENT_ROWS.all(conn, {"row_ids": json.dumps(list(row_ids))})
        return [DocumentRow._make(row) for row in found]

    def read(
        self, conn: sa.Connection, organization_id: str, scope: SearchScope, ids: Sequence[str], leaders: Sequence[str]
    ) -> list[Candidate]:
        """See FulltextIndex.read."""
        parameters = {
            "organization": organization_id,
            "agent": scope.agent_id,
            "conversation": scope.conversation_id,
            "roles": json.dumps([role.value for role in scope.roles]),
            **_row_filters(scope),
            "ids": json.dumps(list(ids)),
            "leaders": json.dumps(list(leaders)),
            "characters": READ_CHARACTERS,
        }
        return [Candidate(*row) for row in conn.execute(_read_statement(), parameters)]


# Statements are plain SQL, cached by the number of terms: building them from parts takes longer than running them.


@lru_cache(maxsize=2 * MAX_TERMS)
def _count_statement(terms: int, *, of_agent: bool) -> sa.TextClause:
    """Returns the statement that counts all messages and those with each term."""
    counts = (
        f"(SELECT count(*) FROM (SELECT 1 FROM message_words WHERE message_words MATCH :match_{number} LIMIT :most))"  # noqa: S608
        for number in range(terms)
    )
    return sa.text(f"SELECT {', '.join((SIZE_OF_AGENT if of_agent else SIZE_OF_ORGANIZATION, *counts))}")


@lru_cache(maxsize=6 * MAX_TERMS)
def _candidates_statement(matches: int, *, is_filtered: bool, newest_only: bool) -> sa.TextualSelect:
    """Returns the statement that selects the candidates with the largest sums of the weights of their matches."""
    newest = f"ORDER BY rowid DESC LIMIT {MOST_MATCHES}" if newest_only else ""
    parts = [
        f"SELECT row_id, :weight_{number} AS weight FROM (SELECT rowid AS row_id FROM message_words"  # noqa: S608
        f" WHERE message_words MATCH :match_{number} {newest})"
        for number in range(matches)
    ]
    parts.append(
        f"SELECT row_id, {_EXACT} AS weight FROM (SELECT rowid AS row_id FROM message_words"  # noqa: S608
        f" WHERE message_words MATCH :exact ORDER BY rowid DESC LIMIT {_MOST_EXACT})"
    )
    found = candidate_statement(
        f"""
        SELECT {CANDIDATE_COLUMNS}, 1 AS has_word, score >= {_EXACT} AS is_exact
        FROM (
            SELECT row_id, sum(weight) AS score FROM ({" UNION ALL ".join(parts)})
            {f"JOIN messages USING (row_id) WHERE {_ROW_FILTERS}" if is_filtered else ""}
            GROUP BY row_id ORDER BY score DESC, row_id DESC LIMIT :most) AS best
        CROSS JOIN messages USING (row_id) CROSS JOIN message_words ON message_words.rowid = best.row_id
        WHERE organization_id || '' = :organization
        ORDER BY row_id DESC
        """  # noqa: S608
    )
    return found.bindparams(*_time_parameters()) if is_filtered else found


@cache
def _read_statement() -> sa.TextualSelect:
    return candidate_statement(_READ).bindparams(*_time_parameters())


def _time_parameters() -> Iterator[sa.BindParameter[Any]]:
    return (sa.bindparam(name, type_=messages.c.created_at.type) for name in ("from_time", "before_time"))


def _row_filters(scope: SearchScope) -> dict[str, Any]:
    """Returns the parameters of the conditions that the full-text index cannot check."""
    return {
        "from_time": scope.from_time or _ALL_TIME[0],
        "before_time": scope.before_time or _ALL_TIME[1],
        "excluded": json.dumps(scope.exclude_ids),
        "speakers": json.dumps([name.casefold() for name in scope.speakers]),
        "senders": json.dumps(scope.sender_ids),
    }


def _weighted_matches(organization_id: str, scope: SearchScope, query: CandidateQuery) -> Iterator[tuple[str, float]]:
    """Yields the expressions that select candidates, each with its weight."""
    if query.are_all_candidates:  # Their weights do not matter, and one expression takes less time than several.
        if query.weights:
            yield _match(organization_id, scope, query.weights), 1.0
        return
    for term, weight in query.weights.items():
        for columns, share in COLUMN_GROUPS:
            yield _match(organization_id, scope, [term], columns), weight * share


def _match(organization_id: str, scope: SearchScope, terms: Iterable[str], columns: str = COLUMNS) -> str:
    words = " OR ".join(f'"{term}"' for term in terms)
    return f"{' AND '.join(_scopes(organization_id, scope))} AND {{{columns}}} : ({words})"


def _match_exact(organization_id: str, scope: SearchScope, fingerprint: str) -> str:
    return " AND ".join([*_scopes(organization_id, scope), f'scope : "{_fingerprint_token(fingerprint)}"'])


def _fingerprint_token(fingerprint: str) -> str:
    """Returns a fingerprint as a token. No id has a letter that is no hexadecimal digit."""
    return f"text{fingerprint}"


def _scope_tokens(item: Document) -> str:
    source = item.source
    tokens = [_token(source.organization_id), _token(source.agent_id), _token(source.role)]
    tokens.append(_fingerprint_token(fingerprint(source.text)))
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
