"""The word index on PostgreSQL: weighted tsvectors under GIN, ranked with the inverse document frequency it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, TSQUERY

from engram_recall.commands import SearchScope
from engram_recall.store.documents import Document
from engram_recall.store.filters import searched
from engram_recall.store.tables import agents, messages

_PUT: Final = sa.text(
    """
    INSERT INTO message_words (row_id, words) VALUES (
        CAST(:row_id AS bigint),
        array_to_tsvector(CAST(:scope AS text[]))
            || setweight(to_tsvector('engram_words', CAST(:body AS text)), 'A')
            || setweight(to_tsvector('engram_words', CAST(:context AS text)), 'B'))
    ON CONFLICT (row_id) DO UPDATE SET words = excluded.words
    """
)
_REMOVE: Final = sa.text("DELETE FROM message_words WHERE row_id = ANY(CAST(:row_ids AS bigint[]))")
_REMOVE_AGENT: Final = sa.text(
    "DELETE FROM message_words USING messages WHERE message_words.row_id = messages.row_id AND agent_id = :agent_id"
)
_TERMS: Final = sa.text(
    """
    SELECT CAST(query AS text) FROM (
        SELECT phraseto_tsquery('engram_words', term) AS query FROM unnest(CAST(:terms AS text[])) AS term) AS parsed
    WHERE numnode(query) > 0
    """
)
_TABLE: Final = sa.table("message_words", sa.column("row_id"), sa.column("words"))


class PostgresWords:
    """tsvectors that carry the scope as lexemes of their own, so that GIN alone narrows to it."""

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
            conn.execute(_REMOVE, {"row_ids": list(row_ids)})

    def remove_agent(self, conn: sa.Connection, agent_id: str) -> None:
        """See WordIndex.remove_agent."""
        conn.execute(_REMOVE_AGENT, {"agent_id": agent_id})

    def search(
        self, conn: sa.Connection, scope: SearchScope, terms: Sequence[str], limit: int
    ) -> list[tuple[str, float]]:
        """See WordIndex.search."""
        parsed = list(conn.execute(_TERMS, {"terms": list(terms)}).scalars())
        if not parsed:
            return []
        match = f"({' | '.join(f'({term})' for term in parsed)}) & {_scopes(scope)}"
        statement = _ranked(scope, limit)
        return [(row.id, row.score) for row in conn.execute(statement, {"match": match, "terms": parsed})]


def _ranked(scope: SearchScope, limit: int) -> sa.Select[tuple[str, float]]:
    """Sums over the terms of how rare each is, times how much of it a document has: BM25 in this engine's words."""
    found = (
        sa.select(messages.c.id, messages.c.row_id, _TABLE.c.words)
        .join_from(_TABLE, messages, _TABLE.c.row_id == messages.c.row_id)
        .where(_TABLE.c.words.op("@@")(sa.cast(sa.bindparam("match", type_=sa.Text), TSQUERY)), *searched(scope))
        .cte("found")
    )
    given = sa.cast(sa.bindparam("terms", type_=ARRAY(sa.Text)), ARRAY(sa.Text))
    terms = sa.select(sa.func.unnest(given).cast(TSQUERY).label("query")).cte("terms")
    matches = (
        sa.select(found.c.id, found.c.row_id, found.c.words, terms.c.query)
        .join_from(found, terms, found.c.words.op("@@")(terms.c.query))
        .cte("matches")
    )
    count = sa.cast(sa.func.count(), sa.Double)
    rarity = sa.func.ln(1 + (_size(scope, found) - count + 0.5) / (count + 0.5))
    weights = sa.select(matches.c.query, rarity.label("weight")).group_by(matches.c.query).cte("weights")
    share = sa.func.ts_rank(sa.text("'{0, 0, 0.5, 1}'"), matches.c.words, matches.c.query, 1)
    score = sa.func.sum(weights.c.weight * share, type_=sa.Double).label("score")
    return (
        sa.select(matches.c.id, score)
        .join_from(matches, weights, matches.c.query == weights.c.query)
        .group_by(matches.c.id, matches.c.row_id)
        .order_by(score.desc(), matches.c.row_id.desc())
        .limit(limit)
    )


def _size(scope: SearchScope, found: sa.CTE) -> sa.ColumnElement[float]:
    """How many messages there are to be rare among."""
    within = [agents.c.organization_id == scope.organization_id]
    if scope.agent_id is not None:
        within.append(agents.c.agent_id == scope.agent_id)
    hits = sa.select(sa.func.count()).select_from(found).scalar_subquery()
    size = sa.func.greatest(sa.func.coalesce(sa.func.sum(agents.c.message_count), 0), hits)
    return sa.select(sa.cast(size, sa.Double)).where(*within).scalar_subquery()


def _scope(item: Document) -> list[str]:
    source = item.source
    # Lexemes with a sign that no word of a text has.
    tokens = [source.organization_id, source.agent_id, f"{source.role}:"]
    return [*tokens, source.conversation_id] if source.conversation_id is not None else tokens


def _scopes(scope: SearchScope) -> str:
    narrowest = _quoted(scope.conversation_id or scope.agent_id or scope.organization_id)
    if not scope.roles:
        return narrowest
    roles = " | ".join(_quoted(f"{role.value}:") for role in scope.roles)
    return f"{narrowest} & ({roles})"


def _quoted(lexeme: str) -> str:
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
