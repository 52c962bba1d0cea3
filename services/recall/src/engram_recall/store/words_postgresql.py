"""The word index on PostgreSQL: weighted tsvectors under GIN, which find and roughly rank the candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, TSQUERY

from engram_recall.commands import SearchScope
from engram_recall.store.documents import READ_CHARACTERS, Candidate, Document
from engram_recall.store.filters import searched
from engram_recall.store.tables import messages

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
_BY_INDEX: Final = sa.text("SET LOCAL enable_seqscan = off")
_UNCOMPILED: Final = sa.text("SET LOCAL jit = off")
_COUNTED: Final = sa.text(
    """
    SELECT term, (SELECT count(*) FROM (
        SELECT 1 FROM message_words
        WHERE words @@ (phraseto_tsquery('simple', term) && CAST(:scope AS tsquery)) LIMIT :most) AS held) AS holders
    FROM unnest(CAST(:terms AS text[])) AS term
    WHERE numnode(phraseto_tsquery('simple', term)) > 0
    """
)
_TABLE: Final = sa.table(
    "message_words",
    sa.column("row_id"),
    sa.column("words"),
    *(sa.column(name, sa.Text) for name in ("body", "beside", "around", "about")),
)


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
        conn.execute(_UNCOMPILED)
        rows = conn.execute(_COUNTED, {"terms": list(terms), "scope": _scopes(scope), "most": most})
        counts = {row.term: row.holders for row in rows}
        return {term: counts[term] for term in terms if counts.get(term)}

    def candidates(
        self, conn: sa.Connection, scope: SearchScope, weights: Mapping[str, float], limit: int
    ) -> list[Candidate]:
        """See WordIndex.candidates."""
        asked = {"scope": _scopes(scope), "terms": list(weights), "weights": list(weights.values())}
        return [Candidate(*row) for row in conn.execute(_best(scope, limit), asked)]


def _best(scope: SearchScope, limit: int) -> sa.Select[Any]:
    """Candidates by the sum over the terms of how rare each is, times how much of it a message has."""
    # The words first, whatever the planner believes: it knows nothing of how rare they are.
    given = (sa.cast(sa.bindparam("terms"), ARRAY(sa.Text)), sa.cast(sa.bindparam("weights"), ARRAY(sa.Double)))
    unnested = (
        sa.func.unnest(*given).table_valued(sa.column("term", sa.Text), sa.column("weight", sa.Double)).render_derived()
    )
    parsed = sa.func.phraseto_tsquery(sa.text("'simple'"), unnested.c.term, type_=TSQUERY)
    terms = sa.select(parsed.label("query"), unnested.c.weight).cte("terms").prefix_with("MATERIALIZED")
    narrow = sa.cast(sa.bindparam("scope", type_=sa.Text), TSQUERY)
    each = sa.func.concat("(", sa.cast(terms.c.query, sa.Text), ")")
    any_term = sa.select(sa.cast(sa.func.string_agg(each, sa.text("' | '")), TSQUERY)).scalar_subquery()
    having = (
        sa.select(_TABLE.c.row_id, _TABLE.c.words)
        .where(_TABLE.c.words.op("@@")(any_term.op("&&")(narrow)))
        .order_by((_TABLE.c.row_id + 0).desc())  # by no index: one in this order would be walked to the end
    )
    if not (scope.from_time or scope.before_time or scope.exclude_ids):
        having = having.limit(MOST_MATCHES)
    words = having.cte("words").prefix_with("MATERIALIZED")
    found = (
        sa.select(messages.c.id, messages.c.row_id, words.c.words)
        .join_from(words, messages, words.c.row_id == messages.c.row_id)
        .where(*searched(scope))
        .order_by(words.c.row_id.desc())
        .limit(MOST_MATCHES)
        .cte("found")
    )
    share = sa.func.ts_rank(sa.text("'{1, 0.3, 0.6, 1}'"), found.c.words, terms.c.query, 1)
    score = sa.func.sum(terms.c.weight * share, type_=sa.Double)
    best = (
        sa.select(found.c.id, found.c.row_id)
        .join_from(found, terms, found.c.words.op("@@")(terms.c.query))
        .group_by(found.c.id, found.c.row_id)
        .order_by(score.desc(), found.c.row_id.desc())
        .limit(limit)
        .cte("best")
    )
    held = _TABLE.c
    texts = (sa.func.substr(held.body, 1, READ_CHARACTERS), sa.func.length(held.body), held.beside, held.around)
    return (
        sa.select(best.c.id, *texts, held.about)
        .join_from(best, _TABLE, held.row_id == best.c.row_id)
        .order_by(best.c.row_id.desc())
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
