"""The candidates of a search by words: the terms that select them, the rarity of each, and the best messages."""

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_retrieval.ranking.scores import rarity
from mnemesh_retrieval.words.analysis import terms

from mnemesh_recall.model.ranking import Candidates
from mnemesh_recall.model.search import SearchScope, WordCandidates, WordQuery
from mnemesh_recall.store.fulltext.words import Matches, WordIndex
from mnemesh_recall.store.tables import AGENT, unindexed_agents

FEW_HOLDERS: Final = 50
COMMON_SHARE: Final = 1 / 3
MOST_HOLDERS: Final = 1_000
"""A term that is in more messages, or in a larger share of more than a few messages, selects no candidates if there is
another term. It still counts for the candidates of other terms."""
MOST_EXACT: Final = 10
"""The number of newest messages that equal the query which are always candidates."""
NEAR_SHARE: Final = 0.4
"""The weight of a term that only neighbours have, where one of the message itself weighs 1."""
_ALWAYS: Final = datetime.max.replace(tzinfo=UTC)

# All that a search needs first, in one statement: rows with a kind, and a number or a text. The organization is hidden
# from the planner where a row of the agent is read.
_OVERVIEW: Final = """
    SELECT 0 AS kind, CAST(coalesce(sum(message_count), 0) AS bigint) AS size, '' AS name FROM agents WHERE {agents}
    UNION ALL SELECT 1, 0, language FROM word_languages WHERE organization_id = :organization
    UNION ALL SELECT 2, 0, '' FROM unindexed_agents WHERE {agents} AND since < :before
    UNION ALL SELECT 2, 0, '' FROM word_rebuilds WHERE kind = :kind {rebuilds}
"""
_OF_AGENT: Final = {
    "agents": "agent_id = :agent AND organization_id || '' = :organization",
    "rebuilds": "AND subject = :agent",
}
_OF_ORGANIZATION: Final = {"agents": "organization_id = :organization", "rebuilds": ""}
_OVERVIEWS: Final = {
    is_of_agent: Prepared(
        sa.text(_OVERVIEW.format(**parts)).bindparams(sa.bindparam("before", type_=unindexed_agents.c.since.type))
    )
    for is_of_agent, parts in ((True, _OF_AGENT), (False, _OF_ORGANIZATION))
}


class _Overview(NamedTuple):
    """What a search reads first."""

    size: int
    """The number of messages of the agent or of the organization."""
    languages: list[str]
    """The languages of the organization's indexed texts other than English."""
    is_complete: bool
    """False if messages are not indexed yet, or have the words of an earlier analysis."""


def select(
    index: WordIndex,
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
    overview = _overview(conn, organization_id, scope, began or _ALWAYS)
    if (began is None and not overview.is_complete) or not overview.size:
        return WordCandidates(Candidates.of((), ()), {}, is_complete=overview.is_complete)
    own = terms(words.text, overview.languages)
    given = (conn, organization_id, scope)
    found, exact = index.newest(*given, tuple(own), words.fingerprint, MOST_HOLDERS + 1)
    matches = dict(zip(own, found, strict=True))
    counts = {term: _holders(found) for term, found in matches.items()}
    holders = holders_of_words({term: count for term, count in counts.items() if count}, own)
    rarities = {term: rarity(count, overview.size) for term, count in holders.items()}
    selected = selective_terms(holders, rarities, overview.size)
    if has_row_filters(scope):
        found, exact = index.newest(*given, tuple(selected), words.fingerprint, MOST_HOLDERS + 1, is_filtered=True)
        matches = dict(zip(selected, found, strict=True))
    best = _best([matches[term] for term in selected], list(selected.values()), limit)
    row_ids = {*best, *exact[:MOST_EXACT]}
    read = index.read(*given, row_ids=row_ids, exact=words.fingerprint)
    return WordCandidates(Candidates.of(read, tuple(rarities)), rarities, is_complete=overview.is_complete)


def has_row_filters(scope: SearchScope) -> bool:
    """Returns whether a scope has conditions that the word index cannot check."""
    return bool(scope.from_time or scope.before_time or scope.exclude_ids or scope.speakers or scope.sender_ids)


def _overview(conn: sa.Connection, organization_id: str, scope: SearchScope, before: datetime) -> _Overview:
    """Reads what a search needs first. Messages that were committed later than `before` need not be indexed."""
    size, languages, is_complete = 0, [], True
    parameters: dict[str, Any] = {"organization": organization_id, "before": before, "kind": AGENT}
    if scope.agent_id is not None:
        parameters["agent"] = scope.agent_id
    for kind, number, name in _OVERVIEWS[scope.agent_id is not None].all(conn, parameters):
        match kind:
            case 0:
                size = number
            case 1:
                languages.append(name)
            case _:
                is_complete = False
    return _Overview(size, sorted(languages), is_complete)


def _holders(found: Matches) -> int:
    """Returns how many messages have a word or are beside it; MOST_HOLDERS + 1 for a common one."""
    return MOST_HOLDERS + 1 if found.is_common else min(len({*found.rows, *found.near}), MOST_HOLDERS + 1)


def _best(matches: Sequence[Matches], weights: Sequence[float], limit: int) -> list[int]:
    """Returns the messages with the largest sums of the weights of their words, the best first, then the newest."""
    lists = [(rows, weight * share) for both, weight in zip(matches, weights, strict=True)
             for rows, share in ((both.rows, 1.0), (both.near, NEAR_SHARE))]  # fmt: skip
    rows = np.fromiter(itertools.chain.from_iterable(rows for rows, _ in lists), np.int64)
    of_rows = np.repeat([weight for _, weight in lists], [len(rows) for rows, _ in lists])
    different, places = np.unique(rows, return_inverse=True)
    scores = np.bincount(places, of_rows, len(different))
    best: list[int] = different[np.lexsort((-different, -scores))[:limit]].tolist()
    return best


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
