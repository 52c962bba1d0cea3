"""The use cases that find passages: search and list, over any number of archives and embedders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal
from mnemesh_retrieval.ranking.constants import DEFAULTS, RankingConstants
from mnemesh_retrieval.ranking.scores import Ranked, best_of_queries
from mnemesh_retrieval.rerankers.reranking import Reranking
from mnemesh_retrieval.time_expressions.resolver import resolve, resolve_all

from mnemesh_archival.model import ranking
from mnemesh_archival.model.passages import Passage, PassageFilter, validate_filter
from mnemesh_archival.model.search import (
    PassageHit,
    PassageSearch,
    SearchResult,
    validate_query,
    validate_search,
)
from mnemesh_archival.store.base.archives import ArchiveRef, ArchiveStore
from mnemesh_archival.store.base.passage_index import PassageIndex
from mnemesh_archival.store.base.passages import PassageScope, PassageStore
from mnemesh_archival.usecases.candidates import CandidateFinder, EmbedderGroup, Found
from mnemesh_archival.usecases.passage_reranking import PassageReranking
from mnemesh_archival.usecases.passages import with_embeddings
from mnemesh_archival.usecases.ranked_search import RankedQuery, RankedSearch
from mnemesh_archival.vectors.embedders import Embedders


class PassageSearchService:
    """Passages of the caller's organization. The index finds them; text, tags and times are those of the record."""

    def __init__(
        self,
        archives: ArchiveStore,
        passages: PassageStore,
        index: PassageIndex,
        embedders: Embedders,
        constants: RankingConstants = DEFAULTS,
        reranking: Reranking | None = None,
    ) -> None:
        self._archives = archives
        self._passages = passages
        self._index = index
        self._finder = CandidateFinder(passages, index, embedders)
        self._ranked = RankedSearch(passages, self._finder, embedders, constants)
        self._reranking = PassageReranking(passages, reranking or Reranking(None))

    async def search(self, caller: Principal, search: PassageSearch) -> SearchResult:
        """Returns the best passages for the queries; the newest if all are blank.

        While the index is incomplete, words are looked for in the record instead, and the result is `degraded`.

        Raises:
            InvalidArgument: a query, the filter or a number is not valid.
            ArchiveNotFound: the filter names an archive that does not exist or that the agent does not have.
            EmbedderUnavailable: a VECTOR search cannot embed the queries. A HYBRID one continues with words only.
            VectorIndexUnavailable: a VECTOR search cannot use the index.
        """
        search = validate_search(search)
        groups, scope = await self._groups(caller.organization_id, search.filter)
        queries, degraded, reranked = search.queries, False, None
        if queries and groups:
            ranked, degraded = await self._rank(groups, scope, queries, search)
            reranked = await self._reranking.rerank(scope, search, ranked)
            hits = await self._hits(scope, reranked or ranked, search.limit)
        elif queries:
            hits = []
        else:
            newest = await self._passages.list_page(scope, PageQuery(limit=search.limit, ascending=False))
            hits = [PassageHit(passage, 0.0) for passage in newest.items]
        shown = await self._completed(caller.organization_id, hits[search.offset :], search)
        return SearchResult(
            tuple(shown),
            degraded,
            resolve_all(queries, search.zone, search.reference_time),
            reranked is not None,
        )

    async def list_page(
        self,
        caller: Principal,
        filter_: PassageFilter,
        page: PageQuery,
        *,
        text_search: str = "",
        text_contains: str = "",
        with_embedding: bool = False,
    ) -> Page[Passage]:
        """Returns a page of passages by creation time, from the record.

        Args:
            caller: the caller.
            filter_: the passages to list.
            page: the page.
            text_search: words that a passage must all contain; blank for no condition.
            text_contains: a text that a passage must contain, in any case; empty for no condition.
            with_embedding: also return the vectors.

        Raises:
            InvalidArgument: the filter or the text is bad.
            ArchiveNotFound: as for `search`.
            NotFound: `after_id` or `before_id` is not a passage of the organization.
        """
        filter_, words = validate_filter(filter_), validate_query(text_search, "text_search")
        contains = validate_query(text_contains, "text_contains")
        groups, scope = await self._groups(caller.organization_id, filter_)
        vector_bytes = max((4 * group.dimension for group in groups), default=0) if with_embedding else 0
        found = await self._passages.list_page(scope, page, words=words, contains=contains, bytes_each=vector_bytes)
        if not with_embedding:
            return found
        return found.with_items(await with_embeddings(self._passages, self._index, caller.organization_id, found.items))

    async def _groups(self, organization_id: str, filter_: PassageFilter) -> tuple[list[EmbedderGroup], PassageScope]:
        """Returns the archives of a filter by embedder, and all of them as one scope."""
        groups: dict[str, list[ArchiveRef]] = {}
        covered = await self._archives.scope(organization_id, filter_.agent_id, filter_.archive_id, filter_.archive_ids)
        for archive in covered:
            groups.setdefault(archive.embedder, []).append(archive)
        whole_organization = filter_.agent_id is None and filter_.archive_id is None and not filter_.archive_ids

        def scope(archives: Sequence[ArchiveRef], embedder: str | None = None) -> PassageScope:
            ids = None if whole_organization else tuple(archive.id for archive in archives)
            return PassageScope(organization_id, ids, filter_, embedder)

        by_embedder = [
            EmbedderGroup(
                scope(archives, embedder),
                embedder,
                sum(archive.passage_count for archive in archives),
                archives[0].dimension,
            )
            for embedder, archives in sorted(groups.items())
        ]
        return by_embedder, scope(covered)

    async def _rank(
        self, groups: Sequence[EmbedderGroup], scope: PassageScope, queries: Sequence[str], search: PassageSearch
    ) -> tuple[list[Ranked[UUID]], bool]:
        """Returns the passages that match, best first, and whether the search is degraded."""
        embedded = await asyncio.gather(*(self._finder.embed(group, queries, search.kind) for group in groups))
        rankings: list[list[Ranked[UUID]]] = []
        degraded = any(without for _, without in embedded)
        depth = self._reranking.depth(search)
        count = ranking.candidates(depth)
        for index, query in enumerate(queries):
            found: list[Found] = list(
                await asyncio.gather(
                    *(
                        self._finder.find(group, query, search.kind, vectors[index], count)
                        for group, (vectors, _) in zip(groups, embedded, strict=True)
                    )
                )
            )
            degraded = degraded or any(each.degraded for each in found)
            times = resolve(query, search.zone, search.reference_time)
            ranked = RankedQuery(query, search.kind, times, depth)
            rankings.append(await self._ranked.rank(ranked, scope, found))
        return best_of_queries(rankings), degraded

    async def _hits(self, scope: PassageScope, ranked: Sequence[Ranked[UUID]], limit: int) -> list[PassageHit]:
        hits: list[PassageHit] = []
        start = 0
        # A candidate may have been deleted or changed since the index had it; the next best takes its place.
        while len(hits) < limit and start < len(ranked):
            some = ranked[start : start + limit - len(hits)]
            start += len(some)
            passages = await self._passages.resolve(scope, [each.id for each in some])
            hits += [
                PassageHit(
                    passages[each.id],
                    each.score,
                    each.vector_rank,
                    each.text_rank,
                    each.text_score,
                    each.vector_score,
                    each.rerank_score,
                )
                for each in some
                if each.id in passages
            ]
        return hits

    async def _completed(
        self, organization_id: str, hits: Sequence[PassageHit], search: PassageSearch
    ) -> list[PassageHit]:
        """Returns the hits with what the search requests beside them: vectors, and the passages around them."""
        completed = list(hits)
        if search.with_embedding:
            passages = [hit.passage for hit in completed]
            embedded = await with_embeddings(self._passages, self._index, organization_id, passages)
            completed = [replace(hit, passage=passage) for hit, passage in zip(completed, embedded, strict=True)]
        if (search.before or search.after) and completed:
            ids = [hit.passage.id for hit in completed]
            around = await self._passages.around(organization_id, ids, search.before, search.after)
            completed = [
                replace(hit, before=around[hit.passage.id].before, after=around[hit.passage.id].after)
                if hit.passage.id in around
                else hit
                for hit in completed
            ]
        return completed
