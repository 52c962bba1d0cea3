"""The selection of candidates on every SQL engine: the terms that select, and the rarity of each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_retrieval.ranking.scores import rarity
from mnemesh_retrieval.words.analysis import terms

from mnemesh_recall.model.ranking import Candidates
from mnemesh_recall.model.search import SearchScope, WordCandidates, WordQuery
from mnemesh_recall.store.fulltext import unindexed
from mnemesh_recall.store.fulltext.agent_words import MOST_TAIL, open_agent
from mnemesh_recall.store.fulltext.documents import CandidateQuery, FulltextIndex, stored_languages
from mnemesh_recall.store.fulltext.postgresql import PostgresFulltextIndex
from mnemesh_recall.store.fulltext.segment_rows import ChangedAgents, DocumentCache
from mnemesh_recall.store.fulltext.segment_rows import overview as read_overview
from mnemesh_recall.store.fulltext.sqlite import SqliteFulltextIndex

FEW_HOLDERS: Final = 50
COMMON_SHARE: Final = 1 / 3
MOST_HOLDERS: Final = 1_000
"""A term that is in more messages, or in a larger share of more than a few messages, selects no candidates if there is
another term. It still counts for the candidates of other terms."""
_ALWAYS: Final = datetime.max.replace(tzinfo=UTC)


def select(
    index: FulltextIndex,
    cache: DocumentCache,
    conn: sa.Connection,
    organization_id: str,
    scope: SearchScope,
    words: WordQuery,
    limit: int,
    *,
    began: datetime | None,
) -> WordCandidates:
    """See MessageStore.search_words.

    Nothing is selected if messages of the scope wait to be indexed, unless the time is given at which the search began:
    then the result tells whether it lacks messages that were committed before.
    """
    before = began or _ALWAYS
    most = MOST_HOLDERS + 1
    overview, agent = None, None
    if scope.agent_id is not None:
        overview = read_overview(conn, organization_id, scope.agent_id, MOST_TAIL + 1, before)
        is_complete = overview.is_complete
    else:
        is_complete = unindexed.is_complete(conn, organization_id, before)
    if began is None and not is_complete:
        return WordCandidates(Candidates.of((), ()), {}, is_complete=False)
    if overview is not None:
        own = terms(words.text, overview.languages)
        agent = open_agent(conn, cache, index, scope, overview, words.text, tuple(own))
    else:
        own = terms(words.text, stored_languages(conn, organization_id)) if words.text else {}
    if agent is not None:
        size, counts = agent.size, agent.counts(most)
    else:
        size, counts = index.counts(conn, organization_id, scope, tuple(own), most) if own else (0, {})
    holders = holders_of_words(counts, own)
    rarities = {term: rarity(count, size) for term, count in holders.items()}
    selected = selective_terms(holders, rarities, size)
    are_few = all(holders[term] <= MOST_HOLDERS for term in selected)
    fit = sum(holders[term] for term in selected) <= limit
    query = CandidateQuery(selected, words.fingerprint, limit, are_few=are_few, are_all_candidates=fit)
    terms_ = tuple(rarities)
    if agent is None:
        found = index.candidates(conn, organization_id, scope, query)
        return WordCandidates(Candidates.of(found, terms_), rarities, is_complete=is_complete)
    return WordCandidates(
        agent.candidates(query, terms_),
        rarities,
        read=lambda keys, leaders: agent.read(keys, leaders, terms_),
        row_ids=agent.row_ids,
        is_complete=is_complete,
    )


def holders_of_words(counts: Mapping[str, int], terms_: Mapping[str, str]) -> dict[str, int]:
    """Returns for each counted term how many texts contain its word, in any language.

    Args:
        counts: the number of texts with each term.
        terms_: the terms as `words.analysis.terms` returns them.
    """
    totals: dict[str, int] = {}
    for term, count in counts.items():
        totals[terms_[term]] = totals.get(terms_[term], 0) + count
    return {term: totals[terms_[term]] for term in counts}


def selective_terms(holders: Mapping[str, int], weights: Mapping[str, float], size: int) -> dict[str, float]:
    """Returns the terms that select candidates, with their weights: the rarest one if all are common."""
    common = min(MOST_HOLDERS, max(FEW_HOLDERS, int(size * COMMON_SHARE)))
    found = {term: weights[term] for term, count in holders.items() if count <= common}
    if not found and weights:
        rarest = max(weights, key=lambda term: weights[term])
        found = {rarest: weights[rarest]}
    return found


def fulltext_index(database: Database, changed: ChangedAgents | None = None) -> FulltextIndex:
    """Returns the full-text index of the database's engine. It notes in `changed` whose documents it changes."""
    changed = changed or ChangedAgents()
    return SqliteFulltextIndex(changed) if database.dialect == "sqlite" else PostgresFulltextIndex(changed)
