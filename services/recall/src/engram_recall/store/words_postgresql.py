"""The word index on PostgreSQL: tsvectors under GIN, whose weights tell where in a message a word stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from engram_recall.commands import SearchScope
from engram_recall.store.documents import READ_CHARACTERS, Candidate, Document

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
MOST_MATCHES: Final = 2_000
"""So many messages are looked at for candidates, the newest."""

# Planned without statistics, the word index would be passed over for a scan; and a scan that is forbidden looks so
# dear to the planner that it would compile the query first.
_BY_INDEX: Final = sa.text("SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)")
_COUNTED: Final = sa.text(
    """
    SELECT term, (SELECT count(*) FROM (
        SELECT 1 FROM message_words
        WHERE words @@ (phraseto_tsquery('simple', term) && CAST(:scope AS tsquery)) LIMIT :most) AS held) AS holders
    FROM unnest(CAST(:terms AS text[])) AS term
    WHERE numnode(phraseto_tsquery('simple', term)) > 0
    """
)
# The words first, whatever the planner believes: it knows nothing of how rare they are. And in the order of no index,
# which it would walk to the end.
_HAVING: Final = """
    SELECT ctid AS place, row_id FROM message_words
    WHERE words @@ ((SELECT string_agg(concat('(', query, ')'), ' | ') FROM terms)::tsquery && CAST(:scope AS tsquery))
"""
_NEWEST: Final = f"{_HAVING} ORDER BY row_id + 0 DESC LIMIT :newest"
_NEWEST_INSIDE: Final = f"""
    SELECT place, row_id FROM ({_HAVING} OFFSET 0) AS matching JOIN messages USING (row_id)
    WHERE created_at >= coalesce(CAST(:from_time AS timestamptz), '-infinity')
        AND created_at < coalesce(CAST(:before_time AS timestamptz), 'infinity')
        AND id != ALL (CAST(:excluded AS text[]))
    ORDER BY row_id + 0 DESC LIMIT :newest
"""  # noqa: S608
_CANDIDATES: Final = """
    WITH terms AS MATERIALIZED (
        SELECT phraseto_tsquery('simple', term) AS query, to_tsquery('simple', own) AS own,
            to_tsquery('simple', near) AS near, weight
        FROM unnest(CAST(:terms AS text[]), CAST(:own AS text[]), CAST(:near AS text[]),
            CAST(:weights AS double precision[])) AS given (term, own, near, weight)),
    newest AS MATERIALIZED ({newest}),
    best AS (
        SELECT newest.row_id, (
            SELECT sum(weight * (CASE WHEN words @@ own THEN 1.0 ELSE 0.0 END
                + CASE WHEN words @@ near THEN 0.45 ELSE 0.0 END))
            FROM terms) AS score
        FROM newest JOIN message_words ON message_words.ctid = newest.place
        ORDER BY score DESC, row_id DESC LIMIT :most)
    SELECT id, substr(body, 1, :characters), length(body), beside, around, about
    FROM best JOIN message_words USING (row_id) JOIN messages USING (row_id)
    WHERE organization_id || '' = :organization
    ORDER BY row_id DESC
"""
_BEST: Final = sa.text(_CANDIDATES.format(newest=_NEWEST))
_BEST_INSIDE: Final = sa.text(_CANDIDATES.format(newest=_NEWEST_INSIDE))


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

    def holders(self, conn: sa.Connection, scope: SearchScope, terms: Sequence[str], most: int) -> dict[str, int]:
        """See WordIndex.holders."""
        conn.execute(_BY_INDEX)
        rows = conn.execute(_COUNTED, {"terms": list(terms), "scope": _scopes(scope), "most": most})
        counts = {row.term: row.holders for row in rows}
        return {term: counts[term] for term in terms if counts.get(term)}

    def candidates(
        self, conn: sa.Connection, scope: SearchScope, weights: Mapping[str, float], limit: int
    ) -> list[Candidate]:
        """See WordIndex.candidates."""
        asked: dict[str, Any] = {
            "organization": scope.organization_id,
            "scope": _scopes(scope),
            "terms": list(weights),
            "own": [_in("AD", term) for term in weights],
            "near": [_in("BC", term) for term in weights],
            "weights": list(weights.values()),
            "newest": MOST_MATCHES,
            "most": limit,
            "characters": READ_CHARACTERS,
        }
        if not _looks_into_rows(scope):
            return [Candidate(*row) for row in conn.execute(_BEST, asked)]
        asked |= {"from_time": scope.from_time, "before_time": scope.before_time, "excluded": list(scope.exclude_ids)}
        return [Candidate(*row) for row in conn.execute(_BEST_INSIDE, asked)]


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
