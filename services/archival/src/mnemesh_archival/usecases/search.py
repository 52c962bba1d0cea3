"""The use cases that find passages: search and list, over any number of archives and embedders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mnemesh_kit.paging import Page, PageQuery, fitting
from mnemesh_kit.principal import Principal
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.fusion import RANK_CONSTANT
from mnemesh_retrieval.index import Candidates, SearchMode, WordMatch

from mnemesh_archival.errors import EmbedderUnavailable, EmbedderUnknown, VectorIndexUnavailable
from mnemesh_archival.model import query_dates, ranking
from mnemesh_archival.model.passages import Passage, PassageFilter, response_bytes, validate_filter
from mnemesh_archival.model.search import (
    PassageHit,
    SearchKind,
    SearchResult,
    validate_limit,
    validate_query,
)
from mnemesh_archival.store.base.archives import ArchiveRef, ArchiveStore
from mnemesh_archival.store.base.passage_index import PassageIndex
from mnemesh_archival.store.base.passages import PassageScope, PassageStore
from mnemesh_archival.usecases.passages import with_embeddings
from mnemesh_archival.usecases.word_scan import SCANNED, WordScan
from mnemesh_archival.vectors.embedders import Embedders

EMBEDDER_SECONDS = 2.0
"""How long a search waits for an embedder before it continues with words only."""
_MODES = {SearchKind.HYBRID: SearchMode.HYBRID, SearchKind.TEXT: SearchMode.TEXT, SearchKind.VECTOR: SearchMode.DENSE}


@dataclass(frozen=True, slots=True)
class _EmbedderGroup:
    """The archives in scope that share an embedder."""

    scope: PassageScope
    embedder: str
    size: int
    """The number of passages in these archives."""
    dimension: int


@dataclass(frozen=True, slots=True)
class _Found:
    """The candidates of a search in one group."""

    words: Sequence[WordMatch]
    dense: ranking.Scored
    degraded: bool


class PassageSearchService:
    """Passages of the caller's organization. The index finds them; text, tags and times are those of the record."""

    def __init__(
        self, archives: ArchiveStore, passages: PassageStore, index: PassageIndex, embedders: Embedders
    ) -> None:
        self._archives = archives
        self._passages = passages
        self._index = index
        self._embedders = embedders
        self._scan = WordScan(passages)

    async def search(
        self,
        caller: Principal,
        query: str,
        kind: SearchKind,
        filter_: PassageFilter,
        *,
        limit: int,
        offset: int = 0,
        with_embedding: bool = False,
    ) -> SearchResult:
        """Returns the best passages for a query; the newest for a blank one.

        While the index is incomplete, words are looked for in the record instead, and the result is `degraded`.

        Args:
            caller: the caller.
            query: the text to search for.
            kind: by words, by vector, or both.
            filter_: the passages to search among.
            limit: the largest number of hits; 0 for the default.
            offset: the number of best hits to leave out, because earlier calls returned them.
            with_embedding: also return the vectors of the hits.

        Raises:
            InvalidArgument: the query, the filter or the limit is bad.
            ArchiveNotFound: the filter names an archive that does not exist or that the agent does not have.
            EmbedderUnavailable: a VECTOR search cannot embed the query. A HYBRID one continues with words only.
            VectorIndexUnavailable: a VECTOR search cannot use the index.
        """
        query, filter_, limit = validate_query(query, "query"), validate_filter(filter_), validate_limit(limit)
        groups, scope = await self._groups(caller.organization_id, filter_)
        degraded = False
        if query.strip():
            lists = await asyncio.gather(*(self._search_group(group, query, kind, limit) for group in groups))
            hits = _merged([hits for hits, _ in lists], kind, limit)
            degraded = any(degraded for _, degraded in lists)
        else:
            newest = await self._passages.list_page(scope, PageQuery(limit=limit, ascending=False))
            hits = [PassageHit(passage, 0.0) for passage in newest.items]
        shown = hits[offset:]
        if with_embedding:
            passages = [hit.passage for hit in shown]
            embedded = await with_embeddings(self._passages, self._index, caller.organization_id, passages)
            shown = [replace(hit, passage=passage) for hit, passage in zip(shown, embedded, strict=True)]
        fit = fitting(shown, lambda hit: response_bytes(hit.passage))
        return SearchResult(tuple(shown[:fit]), degraded, offset + fit if fit < len(shown) else None)

    async def list_page(
        self,
        caller: Principal,
        filter_: PassageFilter,
        page: PageQuery,
        *,
        text_search: str = "",
        with_embedding: bool = False,
    ) -> Page[Passage]:
        """Returns a page of passages by creation time, from the record.

        Args:
            caller: the caller.
            filter_: the passages to list.
            page: the page.
            text_search: words that a passage must all contain; blank for no condition.
            with_embedding: also return the vectors.

        Raises:
            InvalidArgument: the filter or the text is bad.
            ArchiveNotFound: as for `search`.
            NotFound: `after_id` or `before_id` is not a passage of the organization.
        """
        filter_, words = validate_filter(filter_), validate_query(text_search, "text_search")
        groups, scope = await self._groups(caller.organization_id, filter_)
        vector_bytes = max((4 * group.dimension for group in groups), default=0) if with_embedding else 0
        found = await self._passages.list_page(scope, page, words=words, bytes_each=vector_bytes)
        if not with_embedding:
            return found
        embedded = await with_embeddings(self._passages, self._index, caller.organization_id, found.items)
        return Page(tuple(embedded), found.next_cursor)

    async def _groups(self, organization_id: str, filter_: PassageFilter) -> tuple[list[_EmbedderGroup], PassageScope]:
        """Returns the archives of a filter by embedder, and all of them as one scope."""
        groups: dict[str, list[ArchiveRef]] = {}
        covered = await self._archives.scope(organization_id, filter_.agent_id, filter_.archive_id)
        for archive in covered:
            groups.setdefault(archive.embedder, []).append(archive)
        whole_organization = filter_.agent_id is None and filter_.archive_id is None

        def scope(archives: Sequence[ArchiveRef], embedder: str | None = None) -> PassageScope:
            ids = None if whole_organization else tuple(archive.id for archive in archives)
            return PassageScope(organization_id, ids, filter_, embedder)

        by_embedder = [
            _EmbedderGroup(
                scope(archives, embedder),
                embedder,
                sum(archive.passage_count for archive in archives),
                archives[0].dimension,
            )
            for embedder, archives in sorted(groups.items())
        ]
        return by_embedder, scope(covered)

    async def _search_group(
        self, group: _EmbedderGroup, query: str, kind: SearchKind, limit: int
    ) -> tuple[list[PassageHit], bool]:
        vector: Vector | None = None
        unembedded = False
        if kind is not SearchKind.TEXT:
            try:
                (vector,) = await self._embedders.embed(group.embedder, [query], within=EMBEDDER_SECONDS)
            except (EmbedderUnavailable, EmbedderUnknown):
                if kind is SearchKind.VECTOR:
                    raise
                unembedded = True
        found = await self._candidates(group, query, kind, vector, max(ranking.CANDIDATES, 4 * limit))
        by_words = await self._rank_by_words(group, query, found.words, limit)
        hits = await self._hits(group, kind, by_words, found.dense, limit)
        return hits, unembedded or found.degraded

    async def _candidates(
        self, group: _EmbedderGroup, query: str, kind: SearchKind, vector: Vector | None, count: int
    ) -> _Found:
        """Returns candidates from the index, and from the record where the index is behind or incomplete."""
        behind = await self._index.behind(group.embedder, SCANNED)
        try:
            mode = _MODES[kind] if behind is not None else SearchMode.DENSE
            found = Candidates()
            if mode is not SearchMode.DENSE or vector is not None:
                found = await self._index.candidates(group.scope, mode=mode, text=query, vector=vector, limit=count)
        except (VectorIndexUnavailable, EmbedderUnknown):
            if kind is SearchKind.VECTOR:
                raise
            found, behind = Candidates(), None
        if behind is not None and not behind:
            return _Found(found.text, list(found.dense), degraded=False)
        # The points of these passages may have earlier texts.
        outdated = frozenset(behind or ())
        dense = [(point, score) for point, score in found.dense if point not in outdated]
        if kind is SearchKind.VECTOR:
            return _Found((), dense, degraded=True)
        words = [match for match in found.text if match.id not in outdated]
        if behind is None:
            words = await self._scan.everything(group.scope, query, count)
        else:
            words += await self._scan.among(group.scope, query, behind, count)
        return _Found(words, dense, degraded=True)

    async def _rank_by_words(
        self, group: _EmbedderGroup, query: str, matches: Sequence[WordMatch], limit: int
    ) -> ranking.Scored:
        if not matches:
            return []
        rarity = ranking.word_rarities(matches, group.size)
        best = ranking.best_by_own_words(matches, rarity, max(ranking.RANKED, 2 * limit))
        positions = await self._passages.neighbours(group.scope.organization_id, best, ranking.REACH)
        ranked = ranking.rank_by_words(matches, rarity, positions, query_dates.date_scores(query, positions))
        known = {match.id for match in matches}
        neighbours = [id_ for id_, _ in ranked if id_ not in known]
        if not neighbours or not group.scope.filter.narrows:
            return ranked
        # The filter may exclude a neighbour of a match.
        known |= await self._passages.matching(group.scope, neighbours)
        return [(id_, score) for id_, score in ranked if id_ in known]

    async def _hits(
        self,
        group: _EmbedderGroup,
        kind: SearchKind,
        by_words: ranking.Scored,
        by_vector: ranking.Scored,
        limit: int,
    ) -> list[PassageHit]:
        ranked = by_words or by_vector
        if kind is SearchKind.HYBRID:
            weight = self._embedders.get(group.embedder).hybrid_weight if by_vector else 0.0
            ranked = ranking.fuse_lists(by_words, by_vector, weight)
        text_ranks = {id_: rank for rank, (id_, _) in enumerate(by_words, start=1)}
        vector_ranks = {id_: rank for rank, (id_, _) in enumerate(by_vector, start=1)}
        hits: list[PassageHit] = []
        start = 0
        # A candidate may have been deleted or changed since the index had it; the next best takes its place.
        while len(hits) < limit and start < len(ranked):
            some = ranked[start : start + limit - len(hits)]
            start += len(some)
            passages = await self._passages.resolve(group.scope, [id_ for id_, _ in some])
            hits += [
                PassageHit(passages[id_], score, vector_ranks.get(id_), text_ranks.get(id_))
                for id_, score in some
                if id_ in passages
            ]
        return hits


def _merged(lists: Sequence[list[PassageHit]], kind: SearchKind, limit: int) -> list[PassageHit]:
    """Merges lists of several embedders. Their similarities cannot be compared, so vector hits are scored by rank.

    A passage of an archive that is changing its embedder may be in two lists.
    """
    if len(lists) == 1:
        return lists[0]
    hits = [hit for some in lists for hit in some]
    if kind is SearchKind.VECTOR:
        hits = [replace(hit, score=1.0 / (RANK_CONSTANT + (hit.vector_rank or 0))) for hit in hits]
    best: dict[str, PassageHit] = {}
    for hit in sorted(hits, key=lambda hit: (-hit.score, hit.passage.id)):
        best.setdefault(hit.passage.id, hit)
    return list(best.values())[:limit]
