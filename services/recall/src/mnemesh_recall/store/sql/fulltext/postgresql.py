"""The full-text index on PostgreSQL: tsvectors under GIN, whose weights say which part of a document has a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

_PUT: Final = sa.text(
    """
    INSERT INTO message_words (row_id, body, beside, around, about, words) VALUES (
        CAST(:row_id AS bigint), CAST(:body AS text), CAST(:beside AS text), CAST(:around AS text),
        CAST(:about AS text),
        array_to_tsvector(CAST(:scope AS text[]))
            || setweight(to_tsvector('simple', CAST(:body AS text)), 'A')
            || setweight(to_tsvector('simple', CAST(:beside AS text)), 'B')
            || setweight(to_tsvector('simple', CAST(:around AS text)), 'C')
            || to_tsvector('simple', CAST(:about AS text)))
    ON CONFLICT (row_id) DO UPDATE SET
        body = excluded.body, beside = excluded.beside, around = excluded.around, about = excluded.about,
        words = excluded.words
    """
)
_REMOVE: Final = sa.text("DELETE FROM message_words WHERE row_id = ANY(CAST(:row_ids AS bigint[]))")
_REMOVE_AGENT: Final = sa.text(
    "DELETE FROM message_words USING messages WHERE message_words.row_id = messages.row_id AND agent_id = :agent_id"
)
_CLEAR: Final = sa.text("DELETE FROM message_words")
_ANY: Final = sa.text("SELECT 1 FROM message_words LIMIT 1")
MOST_MATCHES: Final = 1_000
"""The number of newest matches that are considered as candidates."""
RECENT: Final = 20_000
"""The number of newest messages in which common words are searched first. GIN returns matches in no order, so that
finding the newest matches otherwise takes reading all of them."""

_COUNTED: Final = """
    SELECT term, {size} AS size, (SELECT count(*) FROM (
        SELECT 1 FROM message_words
        WHERE words @@ (phraseto_tsquery('simple', term) && CAST(:scope AS tsquery)) LIMIT :most) AS held) AS holders
    FROM unnest(CAST(:terms AS text[])) AS term
    WHERE numnode(phraseto_tsquery('simple', term)) > 0
"""
_COUNTED_OF_AGENT: Final = sa.text(_COUNTED.format(size=SIZE_OF_AGENT))
_COUNTED_OF_ORGANIZATION: Final = sa.text(_COUNTED.format(size=SIZE_OF_ORGANIZATION))
# The condition on the words must be applied first: the planner does not know how rare they are. `row_id + 0` keeps it
# from walking the index on row_id instead.
_MATCHING: Final = """
    SELECT ctid AS location, row_id FROM message_words
    WHERE words @@ ((SELECT {either} FROM queries) && CAST(:scope AS tsquery))
"""
_NEWEST: Final = f"{_MATCHING} ORDER BY row_id + 0 DESC LIMIT :newest"
_NEWEST_RECENT: Final = """
    SELECT location, row_id
    FROM (SELECT ctid AS location, row_id, words FROM message_words ORDER BY row_id DESC LIMIT :recent) AS recent
    WHERE words @@ ((SELECT {either} FROM queries) && CAST(:scope AS tsquery))
    ORDER BY row_id DESC LIMIT :newest
"""
_NEWEST_FILTERED: Final = f"""
    SELECT location, row_id FROM ({_MATCHING} OFFSET 0) AS matching JOIN messages USING (row_id)
    WHERE created_at >= coalesce(CAST(:from_time AS timestamptz), '-infinity')
        AND created_at < coalesce(CAST(:before_time AS timestamptz), 'infinity')
        AND id != ALL (CAST(:excluded AS text[]))
    ORDER BY row_id + 0 DESC LIMIT :newest
"""  # noqa: S608
_CANDIDATES: Final = """
    WITH queries AS MATERIALIZED (SELECT {queries}),
    newest AS MATERIALIZED ({newest}),
    best AS (
        SELECT newest.row_id, {score} AS score
        FROM queries, newest JOIN message_words ON message_words.ctid = newest.location
        ORDER BY score DESC, row_id DESC LIMIT :most)
    SELECT id, substr(body, 1, :characters), length(body), beside, around, about
    FROM best JOIN message_words USING (row_id) JOIN messages USING (row_id)
    WHERE organization_id || '' = :organization
    ORDER BY row_id DESC
"""
# Queries that are part of the statement itself would be parsed again for every message.
_QUERY: Final = """phraseto_tsquery('simple', :term_{0}) AS term_{0}, to_tsquery('simple', :own_{0}) AS own_{0},
    to_tsquery('simple', :near_{0}) AS near_{0}, CAST(:weight_{0} AS double precision) AS weight_{0}"""
_SCORE: Final = """weight_{0} * (CASE WHEN words @@ own_{0} THEN 1.0::double precision ELSE 0 END
    + CASE WHEN words @@ near_{0} THEN 0.45::double precision ELSE 0 END)"""


class PostgresFulltextIndex:
    """tsvectors that contain the scope as lexemes, so that GIN alone applies it."""

    def put(self, conn: sa.Connection, documents: Sequence[Document]) -> None:
        """See FulltextIndex.put."""
        conn.execute(
            _PUT,
            [
                {
                    "row_id": item.source.row_id,
                    "scope": _scope_lexemes(item),
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
            conn.execute(_REMOVE, {"row_ids": list(row_ids)})

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
        parameters: dict[str, Any] = {"terms": list(terms), "scope": _scopes(organization_id, scope), "most": limit}
        parameters["organization"] = organization_id
        if scope.agent_id is None:
            rows = conn.execute(_COUNTED_OF_ORGANIZATION, parameters).all()
        else:
            rows = conn.execute(_COUNTED_OF_AGENT, {**parameters, "agent": scope.agent_id}).all()
        counts = {row.term: row.holders for row in rows}
        return rows[0].size if rows else 0, {term: counts[term] for term in terms if counts.get(term)}

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
        parameters: dict[str, Any] = {
            "organization": organization_id,
            "scope": _scopes(organization_id, scope),
            "newest": MOST_MATCHES,
            "most": limit,
            "characters": READ_CHARACTERS,
        }
        for number, (term, weight) in enumerate(weights.items()):
            parameters[f"term_{number}"], parameters[f"weight_{number}"] = term, weight
            parameters[f"own_{number}"], parameters[f"near_{number}"] = _query("AD", term), _query("BC", term)
        filters_rows = _filters_rows(scope)
        if filters_rows:
            parameters |= {"from_time": scope.from_time, "before_time": scope.before_time}
            parameters["excluded"] = list(scope.exclude_ids)
        elif scope.agent_id is None and not are_few:
            recent = conn.execute(
                _candidates_statement(len(weights), _NEWEST_RECENT), {**parameters, "recent": RECENT}
            ).all()
            if len(recent) >= limit:
                return [Candidate(*row) for row in recent]
        source = _NEWEST_FILTERED if filters_rows else _NEWEST
        return [Candidate(*row) for row in conn.execute(_candidates_statement(len(weights), source), parameters)]


@lru_cache(maxsize=3 * MAX_TERMS)
def _candidates_statement(terms: int, source: str) -> sa.TextClause:
    """Returns the statement that selects candidates from the matches of `source`, one of the three statements above."""
    numbers = range(terms)
    return sa.text(
        _CANDIDATES.format(
            queries=", ".join(map(_QUERY.format, numbers)),
            newest=source.format(either=" || ".join(f"term_{number}" for number in numbers)),
            score=" + ".join(map(_SCORE.format, numbers)),
        )
    )


def _filters_rows(scope: SearchScope) -> bool:
    """Returns whether the scope has conditions that the full-text index cannot check."""
    return bool(scope.from_time or scope.before_time or scope.exclude_ids)


def _query(weights: str, term: str) -> str:
    """Returns a query for a term, or a phrase, in the parts of a document that have these weights."""
    return " <-> ".join(f"{word}:{weights}" for word in term.split())


def _scope_lexemes(item: Document) -> list[str]:
    source = item.source
    # No word of a text contains a hyphen or a colon.
    tokens = [source.organization_id, source.agent_id, f"{source.role}:"]
    return [*tokens, source.conversation_id] if source.conversation_id is not None else tokens


def _scopes(organization_id: str, scope: SearchScope) -> str:
    # An agent belongs to one organization, so its token is enough.
    lexemes = [_quoted(scope.agent_id or organization_id)]
    if scope.conversation_id is not None:
        lexemes.append(_quoted(scope.conversation_id))
    if scope.roles:
        lexemes.append(f"({' | '.join(_quoted(f'{role.value}:') for role in scope.roles)})")
    return " & ".join(lexemes)


def _quoted(lexeme: str) -> str:
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
