"""The full-text index on PostgreSQL: tsvectors under GIN, whose weights say which part of a document has a word."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final

import sqlalchemy as sa
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


def scope_lexemes(item: Document) -> list[str]:
    """Returns the lexemes of a document by which searches are limited to it."""
    source = item.source
    # No word of a text contains a hyphen or a colon.
    tokens = [source.organization_id, source.agent_id, f"{source.role}:"]
    tokens.append(fingerprint_lexeme(fingerprint(source.text)))
    return [*tokens, source.conversation_id] if source.conversation_id is not None else tokens


def fingerprint_lexeme(value: str) -> str:
    """Returns the lexeme of the fingerprint of a text."""
    return f"text:{value}"


def scopes(organization_id: str, scope: SearchScope) -> str:
    """Returns the condition of a scope as a query."""
    # An agent belongs to one organization, so its token is enough.
    lexemes = [quoted(scope.agent_id or organization_id)]
    if scope.conversation_id is not None:
        lexemes.append(quoted(scope.conversation_id))
    if scope.roles:
        lexemes.append(f"({' | '.join(quoted(f'{role.value}:') for role in scope.roles)})")
    return " & ".join(lexemes)


def quoted(lexeme: str) -> str:
    """Returns a lexeme as a part of a query."""
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


_PUT: Final = sa.text(
    """
    INSERT INTO message_words
        (row_id, body, asked, beside, around, about, before_id, after_id, ends_in_question, words)
    VALUES (
        CAST(:row_id AS bigint), CAST(:body AS text), CAST(:asked AS text), CAST(:beside AS text),
        CAST(:around AS text), CAST(:about AS text), CAST(:before_id AS text), CAST(:after_id AS text),
        CAST(:ends_in_question AS boolean),
        array_to_tsvector(CAST(:scope AS text[]))
            || setweight(to_tsvector('simple', CAST(:body AS text)), 'A')
            || setweight(to_tsvector('simple', CAST(:beside AS text)), 'B')
            || setweight(to_tsvector('simple', CAST(:around AS text)), 'C')
            || to_tsvector('simple', CAST(:about AS text))
            || to_tsvector('simple', CAST(:asked AS text)))
    ON CONFLICT (row_id) DO UPDATE SET
        body = excluded.body, asked = excluded.asked, beside = excluded.beside, around = excluded.around,
        about = excluded.about, before_id = excluded.before_id, after_id = excluded.after_id,
        ends_in_question = excluded.ends_in_question, words = excluded.words
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
MOST_EXACT: Final = 10
EXACT_WEIGHT: Final = 1e6
"""The weight of a message that equals the query."""
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
_ROW_FILTERS: Final = """
    created_at >= coalesce(CAST(:from_time AS timestamptz), '-infinity')
        AND created_at < coalesce(CAST(:before_time AS timestamptz), 'infinity')
        AND id != ALL (CAST(:excluded AS text[]))
        AND (cardinality(CAST(:speakers AS text[])) = 0 OR speaker = ANY (CAST(:speakers AS text[])))
        AND (cardinality(CAST(:senders AS text[])) = 0 OR sender_id = ANY (CAST(:senders AS text[])))
"""
_NEWEST_FILTERED: Final = f"""
    SELECT location, row_id FROM ({_MATCHING} OFFSET 0) AS matching JOIN messages USING (row_id)
    WHERE {_ROW_FILTERS} ORDER BY row_id + 0 DESC LIMIT :newest
"""  # noqa: S608
_MATCHING_EXACTLY: Final = """
    SELECT ctid AS location, row_id FROM message_words
    WHERE words @@ (CAST(:exact AS tsquery) && CAST(:scope AS tsquery))
"""
_EXACT: Final = f"{_MATCHING_EXACTLY} ORDER BY row_id + 0 DESC LIMIT {MOST_EXACT}"
_EXACT_FILTERED: Final = f"""
    SELECT location, row_id FROM ({_MATCHING_EXACTLY} OFFSET 0) AS matching JOIN messages USING (row_id)
    WHERE {_ROW_FILTERS} ORDER BY row_id + 0 DESC LIMIT {MOST_EXACT}
"""  # noqa: S608
_CANDIDATES: Final = f"""
    WITH queries AS MATERIALIZED (SELECT {{queries}} CAST(:exact AS tsquery) AS exact),
    newest AS MATERIALIZED ({{newest}}),
    best AS (
        SELECT newest.row_id, {{score}} CASE WHEN words @@ exact THEN {EXACT_WEIGHT} ELSE 0 END AS score
        FROM queries, newest JOIN message_words ON message_words.ctid = newest.location
        ORDER BY score DESC, row_id DESC LIMIT :most)
    SELECT {CANDIDATE_COLUMNS}, true AS has_word, score >= {EXACT_WEIGHT} AS is_exact
    FROM best JOIN message_words USING (row_id) JOIN messages USING (row_id)
    WHERE organization_id || '' = :organization
    ORDER BY row_id DESC
"""  # noqa: S608
_READ: Final = f"""
    WITH wanted AS MATERIALIZED (
        SELECT unnest(CAST(:ids AS text[])) AS id
        UNION
        SELECT after_id FROM messages JOIN message_words USING (row_id) WHERE id = ANY (CAST(:leaders AS text[])))
    SELECT {CANDIDATE_COLUMNS}, false AS has_word, false AS is_exact
    FROM wanted JOIN messages USING (id) JOIN message_words USING (row_id)
    WHERE organization_id || '' = :organization
        AND (CAST(:agent AS text) IS NULL OR agent_id || '' = :agent)
        AND (CAST(:conversation AS text) IS NULL OR conversation_id || '' = :conversation)
        AND (cardinality(CAST(:roles AS text[])) = 0 OR role = ANY (CAST(:roles AS text[])))
        AND {_ROW_FILTERS}
    ORDER BY row_id DESC
"""  # noqa: S608
# Queries that are part of the statement itself would be parsed again for every message.
_QUERY: Final = """phraseto_tsquery('simple', :term_{0}) AS term_{0}, to_tsquery('simple', :own_{0}) AS own_{0},
    to_tsquery('simple', :near_{0}) AS near_{0}, CAST(:weight_{0} AS double precision) AS weight_{0}"""
_SCORE: Final = """weight_{0} * (CASE WHEN words @@ own_{0} THEN 1.0::double precision ELSE 0 END
    + CASE WHEN words @@ near_{0} THEN 0.4::double precision ELSE 0 END)"""

_DOCUMENT_ROWS: Final = document_row_statement(
    f"""
    SELECT {DOCUMENT_ROW_COLUMNS} FROM messages JOIN message_words USING (row_id)
    WHERE row_id = ANY (CAST(:row_ids AS bigint[])) ORDER BY row_id
    """  # noqa: S608
)


class PostgresFulltextIndex:
    """tsvectors that contain the scope as lexemes, so that GIN alone applies it."""

    def __init__(self, changed: ChangedAgents) -> None:
        self.changed = changed

    def put(self, conn: sa.Connection, documents: Sequence[Document]) -> None:
        """See FulltextIndex.put."""
        conn.execute(
            _PUT,
            [{**item.to_row(), "scope": scope_lexemes(item)} for item in documents],
        )
        segments.note(conn, self.changed, ((item.source.agent_id, item.source.row_id) for item in documents))

    def remove(self, conn: sa.Connection, agent_id: str, row_ids: Sequence[int]) -> None:
        """See FulltextIndex.remove."""
        if row_ids:
            conn.execute(_REMOVE, {"row_ids": list(row_ids)})
            segments.note(conn, self.changed, ((agent_id, row_id) for row_id in row_ids))

    def remove_agent(self, conn: sa.Connection, agent_id: str) -> None:
        """See FulltextIndex.remove_agent."""
        conn.execute(_REMOVE_AGENT, {"agent_id": agent_id})
        segments.delete_agent(conn, agent_id)

    def clear(self, conn: sa.Connection) -> None:
        """See FulltextIndex.clear."""
        conn.execute(_CLEAR)
        segments.delete_all(conn)

    def merge(self, conn: sa.Connection, *, first: bool) -> bool:  # noqa: ARG002
        """See FulltextIndex.merge. Autovacuum merges the pending list of GIN."""
        return False

    def is_empty(self, conn: sa.Connection) -> bool:
        """See FulltextIndex.is_empty."""
        return conn.execute(_ANY).first() is None

    def counts(
        self, conn: sa.Connection, organization_id: str, scope: SearchScope, terms: Sequence[str], limit: int
    ) -> tuple[int, dict[str, int]]:
        """See FulltextIndex.counts."""
        parameters: dict[str, Any] = {"terms": list(terms), "scope": scopes(organization_id, scope), "most": limit}
        parameters["organization"] = organization_id
        if scope.agent_id is None:
            rows = conn.execute(_COUNTED_OF_ORGANIZATION, parameters).all()
        else:
            rows = conn.execute(_COUNTED_OF_AGENT, {**parameters, "agent": scope.agent_id}).all()
        counts = {row.term: row.holders for row in rows}
        return rows[0].size if rows else 0, {term: counts[term] for term in terms if counts.get(term)}

    def candidates(
        self, conn: sa.Connection, organization_id: str, scope: SearchScope, query: CandidateQuery
    ) -> list[Candidate]:
        """See FulltextIndex.candidates."""
        terms = len(query.weights)
        parameters: dict[str, Any] = {
            "organization": organization_id,
            "scope": scopes(organization_id, scope),
            "newest": MOST_MATCHES,
            "most": query.limit,
            "characters": READ_CHARACTERS,
            "exact": quoted(fingerprint_lexeme(query.fingerprint)),
        }
        for number, (term, weight) in enumerate(query.weights.items()):
            parameters[f"term_{number}"], parameters[f"weight_{number}"] = term, weight
            parameters[f"own_{number}"], parameters[f"near_{number}"] = _query("AD", term), _query("BC", term)
        is_filtered = filters_rows(scope)
        if is_filtered:
            parameters |= _row_filters(scope)
        elif scope.agent_id is None and not query.are_few:
            statement = _candidates_statement(terms, _NEWEST_RECENT, _EXACT)
            recent = conn.execute(statement, {**parameters, "recent": RECENT}).all()
            if len(recent) >= query.limit:
                return [Candidate(*row) for row in recent]
        sources = (_NEWEST_FILTERED, _EXACT_FILTERED) if is_filtered else (_NEWEST, _EXACT)
        return [Candidate(*row) for row in conn.execute(_candidates_statement(terms, *sources), parameters)]

    def document_rows(self, conn: sa.Connection, row_ids: Sequence[int]) -> list[DocumentRow]:
        """See FulltextIndex.document_rows."""
        found = conn.execute(_DOCUMENT_ROWS, {"row_ids": list(row_ids)})
        return [DocumentRow._make(row) for row in found]

    def read(
        self, conn: sa.Connection, organization_id: str, scope: SearchScope, ids: Sequence[str], leaders: Sequence[str]
    ) -> list[Candidate]:
        """See FulltextIndex.read."""
        parameters = {
            "organization": organization_id,
            "agent": scope.agent_id,
            "conversation": scope.conversation_id,
            "roles": [role.value for role in scope.roles],
            "ids": list(ids),
            "leaders": list(leaders),
            "characters": READ_CHARACTERS,
            **_row_filters(scope),
        }
        return [Candidate(*row) for row in conn.execute(_read_statement(), parameters)]


@lru_cache(maxsize=3 * MAX_TERMS)
def _candidates_statement(terms: int, source: str, exact: str) -> sa.TextualSelect:
    """Returns the statement that selects candidates from the matches of two of the statements above."""
    numbers = range(terms)
    matching = source.format(either=" || ".join(f"term_{number}" for number in numbers))
    return candidate_statement(
        _CANDIDATES.format(
            queries="".join(f"{_QUERY.format(number)}, " for number in numbers),
            newest=f"({matching}) UNION ({exact})" if terms else exact,
            score="".join(f"{_SCORE.format(number)} + " for number in numbers),
        )
    )


@cache
def _read_statement() -> sa.TextualSelect:
    return candidate_statement(_READ)


def _row_filters(scope: SearchScope) -> dict[str, Any]:
    """Returns the parameters of the conditions that the full-text index cannot check."""
    return {
        "from_time": scope.from_time,
        "before_time": scope.before_time,
        "excluded": list(scope.exclude_ids),
        "speakers": [name.casefold() for name in scope.speakers],
        "senders": list(scope.sender_ids),
    }


def _query(weights: str, term: str) -> str:
    """Returns a query for a term, or a phrase, in the parts of a document that have these weights."""
    return " <-> ".join(f"{word}:{weights}" for word in term.split())
