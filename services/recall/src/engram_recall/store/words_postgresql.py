"""The word index on PostgreSQL: weighted tsvectors under GIN, ranked with the inverse document frequency it lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, TSQUERY

from engram_recall.commands import SearchScope
from engram_recall.store.documents import Document
from engram_recall.store.filters import searched
from engram_recall.store.tables import messages

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
MOST_CANDIDATES: Final = 2_000
"""So many messages are ranked at most. A term that more have is no reason to look at one, if there is another term."""

# Planned without statistics, the word index would be passed over for a scan.
_BY_INDEX: Final = sa.text("SET LOCAL enable_seqscan = off")
_COUNTED: Final = sa.text(
    """
    SELECT CAST(query AS text) AS term,
        (SELECT count(*) FROM (
            SELECT 1 FROM message_words
            WHERE words @@ (query && CAST(:scope AS tsquery)) LIMIT :most) AS held) AS holders,
        (SELECT coalesce(sum(message_count), 0) FROM agents WHERE organization_id = :organization
            AND (CAST(:agent AS text) IS NULL OR agent_id = :agent)) AS size
    FROM (SELECT phraseto_tsquery('engram_words', term) AS query FROM unnest(CAST(:terms AS text[])) AS term) AS parsed
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
        narrow = _scopes(scope)
        conn.execute(_BY_INDEX)
        asked = {
            "terms": list(terms),
            "scope": narrow,
            "most": MOST_CANDIDATES + 1,
            "organization": scope.organization_id,
            "agent": scope.agent_id,
        }
        counted = sorted((row for row in conn.execute(_COUNTED, asked) if row.holders), key=lambda row: row.holders)
        if not counted:
            return []
        telling = [row.term for row in counted if row.holders <= MOST_CANDIDATES] or [counted[0].term]
        found = conn.execute(
            _ranked(scope, limit),
            {
                "match": f"({' | '.join(f'({term})' for term in telling)}) & {narrow}",
                "terms": [row.term for row in counted],
                "weights": [_rarity(row.holders, int(row.size)) for row in counted],
            },
        )
        return [(row.id, row.score) for row in found]


def _rarity(count: int, size: int) -> float:
    """BM25's inverse document frequency."""
    return math.log(1 + (max(size, count) - count + 0.5) / (count + 0.5))


def _ranked(scope: SearchScope, limit: int) -> sa.Select[tuple[str, float]]:
    """Sums over the terms of how rare each is, times how much of it a document has: BM25 in this engine's words."""
    # The words first, whatever the planner believes: it knows nothing of how rare they are.
    match = sa.cast(sa.bindparam("match", type_=sa.Text), TSQUERY)
    having = sa.select(_TABLE).where(_TABLE.c.words.op("@@")(match)).order_by(_TABLE.c.row_id.desc())
    if not (scope.from_time or scope.before_time or scope.exclude_ids):
        having = having.limit(MOST_CANDIDATES)
    words = having.cte("words").prefix_with("MATERIALIZED")
    found = (
        sa.select(messages.c.id, messages.c.row_id, words.c.words)
        .join_from(words, messages, words.c.row_id == messages.c.row_id)
        .where(*searched(scope))
        .order_by(words.c.row_id.desc())
        .limit(MOST_CANDIDATES)
        .cte("found")
    )
    given = (sa.cast(sa.bindparam("terms"), ARRAY(sa.Text)), sa.cast(sa.bindparam("weights"), ARRAY(sa.Double)))
    terms = (
        sa.func.unnest(*given).table_valued(sa.column("term", sa.Text), sa.column("weight", sa.Double)).render_derived()
    )
    query = sa.cast(terms.c.term, TSQUERY)
    share = sa.func.ts_rank(sa.text("'{0, 0, 0.5, 1}'"), found.c.words, query, 1)
    score = sa.func.sum(terms.c.weight * share, type_=sa.Double).label("score")
    return (
        sa.select(found.c.id, score)
        .join_from(found, terms, found.c.words.op("@@")(query))
        .group_by(found.c.id, found.c.row_id)
        .order_by(score.desc(), found.c.row_id.desc())
        .limit(limit)
    )


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
