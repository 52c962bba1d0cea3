"""The word index on PostgreSQL: tsvectors under GIN, whose weights tell where in a message a word stands."""

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
"""So many messages are looked at for candidates, the newest."""
LATELY: Final = 20_000
"""Words that many have are looked for among so many of the newest messages first: GIN gives those that have a word in
no order, so that the newest would be known when all are read."""

_COUNTED: Final = """
    SELECT term, {size} AS size, (SELECT count(*) FROM (
        SELECT 1 FROM message_words
        WHERE words @@ (phraseto_tsquery('simple', term) && CAST(:scope AS tsquery)) LIMIT :most) AS held) AS holders
    FROM unnest(CAST(:terms AS text[])) AS term
    WHERE numnode(phraseto_tsquery('simple', term)) > 0
"""
_COUNTED_OF_AGENT: Final = sa.text(_COUNTED.format(size=SIZE_OF_AGENT))
_COUNTED_OF_ORGANIZATION: Final = sa.text(_COUNTED.format(size=SIZE_OF_ORGANIZATION))
# The words first, whatever the planner believes: it knows nothing of how rare they are. And in the order of no index,
# which it would walk to the end.
_HAVING: Final = """
    SELECT ctid AS place, row_id FROM message_words
    WHERE words @@ ((SELECT {either} FROM asked) && CAST(:scope AS tsquery))
"""
_NEWEST: Final = f"{_HAVING} ORDER BY row_id + 0 DESC LIMIT :newest"
_NEWEST_LATELY: Final = """
    SELECT place, row_id
    FROM (SELECT ctid AS place, row_id, words FROM message_words ORDER BY row_id DESC LIMIT :lately) AS late
    WHERE words @@ ((SELECT {either} FROM asked) && CAST(:scope AS tsquery))
    ORDER BY row_id DESC LIMIT :newest
"""
_NEWEST_INSIDE: Final = f"""
    SELECT place, row_id FROM ({_HAVING} OFFSET 0) AS matching JOIN messages USING (row_id)
    WHERE created_at >= coalesce(CAST(:from_time AS timestamptz), '-infinity')
        AND created_at < coalesce(CAST(:before_time AS timestamptz), 'infinity')
        AND id != ALL (CAST(:excluded AS text[]))
    ORDER BY row_id + 0 DESC LIMIT :newest
"""  # noqa: S608
_CANDIDATES: Final = """
    WITH asked AS MATERIALIZED (SELECT {asked}),
    newest AS MATERIALIZED ({newest}),
    best AS (
        SELECT newest.row_id, {score} AS score
        FROM asked, newest JOIN message_words ON message_words.ctid = newest.place
        ORDER BY score DESC, row_id DESC LIMIT :most)
    SELECT id, substr(body, 1, :characters), length(body), beside, around, about
    FROM best JOIN message_words USING (row_id) JOIN messages USING (row_id)
    WHERE organization_id || '' = :organization
    ORDER BY row_id DESC
"""
# Queries that are known by the statement alone would be read again for every message.
_ASKED: Final = """phraseto_tsquery('simple', :term_{0}) AS term_{0}, to_tsquery('simple', :own_{0}) AS own_{0},
    to_tsquery('simple', :near_{0}) AS near_{0}, CAST(:weight_{0} AS double precision) AS weight_{0}"""
_SCORE: Final = """weight_{0} * (CASE WHEN words @@ own_{0} THEN 1.0::double precision ELSE 0 END
    + CASE WHEN words @@ near_{0} THEN 0.45::double precision ELSE 0 END)"""


class PostgresWords:
    """tsvectors that carry the scope as lexemes of their own, so that GIN alone narrows to it."""

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
            conn.execute(_REMOVE, {"row_ids": list(row_ids)})

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
        asked: dict[str, Any] = {"terms": list(terms), "scope": _scopes(scope), "most": most}
        asked["organization"] = scope.organization_id
        if scope.agent_id is None:
            rows = conn.execute(_COUNTED_OF_ORGANIZATION, asked).all()
        else:
            rows = conn.execute(_COUNTED_OF_AGENT, {**asked, "agent": scope.agent_id}).all()
        counts = {row.term: row.holders for row in rows}
        return rows[0].size if rows else 0, {term: counts[term] for term in terms if counts.get(term)}

    def candidates(
        self, conn: sa.Connection, scope: SearchScope, weights: Mapping[str, float], limit: int, *, are_few: bool
    ) -> list[Candidate]:
        """See WordIndex.candidates."""
        asked: dict[str, Any] = {
            "organization": scope.organization_id,
            "scope": _scopes(scope),
            "newest": MOST_MATCHES,
            "most": limit,
            "characters": READ_CHARACTERS,
        }
        for number, (term, weight) in enumerate(weights.items()):
            asked[f"term_{number}"], asked[f"weight_{number}"] = term, weight
            asked[f"own_{number}"], asked[f"near_{number}"] = _in("AD", term), _in("BC", term)
        inside = _looks_into_rows(scope)
        if inside:
            asked |= {"from_time": scope.from_time, "before_time": scope.before_time}
            asked["excluded"] = list(scope.exclude_ids)
        elif scope.agent_id is None and not are_few:
            late = conn.execute(_best(len(weights), _NEWEST_LATELY), {**asked, "lately": LATELY}).all()
            if len(late) >= limit:
                return [Candidate(*row) for row in late]
        among = _NEWEST_INSIDE if inside else _NEWEST
        return [Candidate(*row) for row in conn.execute(_best(len(weights), among), asked)]


@lru_cache(maxsize=3 * MAX_TERMS)
def _best(terms: int, among: str) -> sa.TextClause:
    """The candidates of so many terms, among what one of the three statements above gives."""
    numbers = range(terms)
    return sa.text(
        _CANDIDATES.format(
            asked=", ".join(map(_ASKED.format, numbers)),
            newest=among.format(either=" || ".join(f"term_{number}" for number in numbers)),
            score=" + ".join(map(_SCORE.format, numbers)),
        )
    )


def _looks_into_rows(scope: SearchScope) -> bool:
    """Whether the scope asks for what the word index does not know."""
    return bool(scope.from_time or scope.before_time or scope.exclude_ids)


def _in(place: str, term: str) -> str:
    """A query for the term in a place, which is named by its weights; a phrase where the term is of several words."""
    return " <-> ".join(f"{word}:{place}" for word in term.split())


def _scope(item: Document) -> list[str]:
    source = item.source
    # Lexemes with a sign that no word of a text has.
    tokens = [source.organization_id, source.agent_id, f"{source.role}:"]
    return [*tokens, source.conversation_id] if source.conversation_id is not None else tokens


def _scopes(scope: SearchScope) -> str:
    # An agent is of one organization, so that its rows need not be asked for theirs one by one.
    given = [_quoted(scope.agent_id or scope.organization_id)]
    if scope.conversation_id is not None:
        given.append(_quoted(scope.conversation_id))
    if scope.roles:
        given.append(f"({' | '.join(_quoted(f'{role.value}:') for role in scope.roles)})")
    return " & ".join(given)


def _quoted(lexeme: str) -> str:
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
