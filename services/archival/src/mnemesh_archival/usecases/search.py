"""The use cases that find passages: search and list, over any number of archives and embedders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

from mnemesh_kit.errors import NotFound, PageTokenInvalid
from mnemesh_kit.paging import Cursor, Page, PageQuery
from mnemesh_kit.principal import Principal
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.fusion import RANK_CONSTANT
from mnemesh_retrieval.index import Position, SearchMode, WordMatch

from mnemesh_archival.errors import EmbedderUnavailable
from mnemesh_archival.model import query_dates, ranking
from mnemesh_archival.model.passages import Passage, PassageFilter, validate_filter
from mnemesh_archival.model.search import (
    PassageHit,
    SearchKind,
    SearchResult,
    validate_limit,
    validate_query,
)
from mnemesh_archival.store.base.archives import ArchiveRef, ArchiveStore
from mnemesh_archival.store.base.passage_ledger import PassageLedger
from mnemesh_archival.store.base.passages import PassageScope, PassageStore
from mnemesh_archival.vectors.embedders import Embedders

EMBEDDER_SECONDS = 2.0
"""How long a search waits for an embedder before it continues with words only."""
_MODES = {SearchKind.HYBRID: SearchMode.HYBRID, SearchKind.TEXT: SearchMode.TEXT, SearchKind.VECTOR: SearchMode.DENSE}


@dataclass(frozen=True, slots=True)
class _EmbedderGroup:
    """The archives in scope that share an embedder."""

    scope: PassageScope
    size: int
    """The number of passages in these archives."""


class PassageSearchService:
    """Passages of the caller's organization."""

    def __init__(
        self, archives: ArchiveStore, ledger: PassageLedger, passages: PassageStore, embedders: Embedders
    ) -> None:
        self._archives = archives
        self._ledger = ledger
        self._passages = passages
        self._embedders = embedders

    async def search(
        self,
        caller: Principal,
        query: str,
        kind: SearchKind,
        filter_: PassageFilter,
        *,
        limit: int,
        with_embedding: bool = False,
    ) -> SearchResult:
        """Returns the best passages for a query; the newest for a blank one.

        Args:
            caller: the caller.
            query: the text to search for.
            kind: by words, by vector, or both.
            filter_: the passages to search among.
            limit: the largest number of hits; 0 for the default.
            with_embedding: also return the vectors of the hits.

        Raises:
            InvalidArgument: the query, the filter or the limit is bad.
            ArchiveNotFound: the filter names an archive that does not exist or that the agent does not have.
            EmbedderUnavailable: a VECTOR search cannot embed the query. A HYBRID one continues with words only.
        """
        query, filter_, limit = validate_query(query, "query"), validate_filter(filter_), validate_limit(limit)
        organization_id = caller.organization_id
        groups = await self._groups(organization_id, filter_)
        if not query.strip():
            newest = await self._newest(groups, limit)
            passages = await self._with_embeddings(organization_id, newest, with_embedding)
            return SearchResult(tuple(PassageHit(passage, 0.0) for passage in passages))
        lists = await asyncio.gather(*(self._search_group(group, query, kind, limit) for group in groups))
        hits = _merged([hits for hits, _ in lists], kind, limit)
        passages = await self._with_embeddings(organization_id, [hit.passage for hit in hits], with_embedding)
        hits = [replace(hit, passage=passage) for hit, passage in zip(hits, passages, strict=True)]
        return SearchResult(tuple(hits), degraded=any(degraded for _, degraded in lists))

    async def list_page(
        self,
        caller: Principal,
        filter_: PassageFilter,
        page: PageQuery,
        *,
        text_search: str = "",
        with_embedding: bool = False,
    ) -> Page[Passage]:
        """Returns a page of passages by creation time.

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
        filter_, words = validate_filter(filter_), validate_query(text_search, "text_search").strip() or None
        organization_id = caller.organization_id
        after = await self._after(organization_id, page)
        before = await self._position(organization_id, page.before_id, "before_id")
        lists = [
            await self._passages.list(
                group.scope,
                words=words,
                ascending=page.ascending,
                after=after,
                before=before,
                limit=page.limit + 1,
            )
            for group in await self._groups(organization_id, filter_)
        ]
        listed = sorted((each for some in lists for each in some), key=lambda each: each[0], reverse=not page.ascending)
        shown = listed[: page.limit]
        passages = await self._with_embeddings(organization_id, [passage for _, passage in shown], with_embedding)
        if len(listed) <= page.limit:
            return Page(tuple(passages))
        last = shown[-1][0]
        return Page(tuple(passages), Cursor(last.value.isoformat(), str(last.id)))

    async def _groups(self, organization_id: str, filter_: PassageFilter) -> list[_EmbedderGroup]:
        groups: dict[str, list[ArchiveRef]] = {}
        for archive in await self._archives.scope(organization_id, filter_.agent_id, filter_.archive_id):
            groups.setdefault(archive.embedder, []).append(archive)
        whole_organization = filter_.agent_id is None and filter_.archive_id is None
        return [
            _EmbedderGroup(
                PassageScope(
                    embedder,
                    organization_id,
                    None if whole_organization else tuple(archive.id for archive in archives),
                    filter_,
                ),
                sum(archive.passage_count for archive in archives),
            )
            for embedder, archives in sorted(groups.items())
        ]

    async def _search_group(
        self, group: _EmbedderGroup, query: str, kind: SearchKind, limit: int
    ) -> tuple[list[PassageHit], bool]:
        vector: Vector | None = None
        degraded = False
        if kind is not SearchKind.TEXT:
            try:
                (vector,) = await self._embedders.embed(group.scope.embedder, [query], within=EMBEDDER_SECONDS)
            except EmbedderUnavailable:
                if kind is SearchKind.VECTOR:
                    raise
                degraded = True
        candidates = await self._passages.candidates(
            group.scope, mode=_MODES[kind], text=query, vector=vector, limit=max(ranking.CANDIDATES, 4 * limit)
        )
        by_words = await self._rank_by_words(group, query, candidates.text, limit)
        return await self._hits(group.scope, kind, by_words, list(candidates.dense), limit), degraded

    async def _rank_by_words(
        self, group: _EmbedderGroup, query: str, matches: Sequence[WordMatch], limit: int
    ) -> ranking.Scored:
        if not matches:
            return []
        rarity = ranking.word_rarities(matches, group.size)
        best = ranking.best_by_own_words(matches, rarity, max(ranking.RANKED, 2 * limit))
        positions = await self._ledger.neighbours(group.scope.organization_id, best, ranking.REACH)
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
        scope: PassageScope,
        kind: SearchKind,
        by_words: ranking.Scored,
        by_vector: ranking.Scored,
        limit: int,
    ) -> list[PassageHit]:
        ranked = by_words or by_vector
        if kind is SearchKind.HYBRID:
            ranked = ranking.fuse_lists(by_words, by_vector, self._embedders.get(scope.embedder).hybrid_weight)
        best = ranked[:limit]
        passages = await self._passages.get(scope.embedder, [id_ for id_, _ in best], with_embedding=False)
        text_ranks = {id_: rank for rank, (id_, _) in enumerate(by_words, start=1)}
        vector_ranks = {id_: rank for rank, (id_, _) in enumerate(by_vector, start=1)}
        return [
            PassageHit(passages[id_], score, vector_ranks.get(id_), text_ranks.get(id_))
            for id_, score in best
            if id_ in passages
        ]

    async def _newest(self, groups: Sequence[_EmbedderGroup], limit: int) -> list[Passage]:
        listed: list[tuple[Position, Passage]] = []
        for group in groups:
            listed += await self._passages.list(
                group.scope, words=None, ascending=False, after=None, before=None, limit=limit
            )
        return [passage for _, passage in sorted(listed, key=lambda each: each[0], reverse=True)[:limit]]

    async def _with_embeddings(
        self, organization_id: str, passages: Sequence[Passage], with_embedding: bool
    ) -> list[Passage]:
        if not with_embedding or not passages:
            return list(passages)
        rows = await self._ledger.find(organization_id, [passage.id for passage in passages])
        vectors: dict[str, tuple[float, ...]] = {}
        for embedder in {row.embedder for row in rows.values()}:
            points = [row.point_id for row in rows.values() if row.embedder == embedder]
            found = await self._passages.get(embedder, points, with_embedding=True)
            vectors.update((passage.id, passage.embedding) for passage in found.values())
        return [replace(passage, embedding=vectors.get(passage.id, ())) for passage in passages]

    async def _after(self, organization_id: str, page: PageQuery) -> Position | None:
        """Returns the position that the page starts after: the later of `after_id` and the page token."""
        positions = [await self._position(organization_id, page.after_id, "after_id"), _cursor_position(page.cursor)]
        known = [position for position in positions if position is not None]
        if not known:
            return None
        return max(known) if page.ascending else min(known)

    async def _position(self, organization_id: str, passage_id: str | None, field: str) -> Position | None:
        if passage_id is None:
            return None
        try:
            return await self._ledger.list_position(organization_id, passage_id)
        except NotFound as error:
            raise NotFound(f"{field} names no row of this list.", field=field, resource_id=passage_id) from error


def _cursor_position(cursor: Cursor | None) -> Position | None:
    if cursor is None:
        return None
    try:
        value = datetime.fromisoformat(str(cursor.value))
        if value.tzinfo is None:
            raise ValueError("a naive datetime")
        return Position(value.astimezone(UTC), UUID(cursor.id))
    except (ValueError, OverflowError) as error:
        raise PageTokenInvalid("page_token is not a token of this server.", field="page_token") from error


def _merged(lists: Sequence[list[PassageHit]], kind: SearchKind, limit: int) -> list[PassageHit]:
    """Merges lists of several embedders. Their similarities cannot be compared, so vector hits are scored by rank."""
    if len(lists) == 1:
        return lists[0]
    hits = [hit for some in lists for hit in some]
    if kind is SearchKind.VECTOR:
        hits = [replace(hit, score=1.0 / (RANK_CONSTANT + (hit.vector_rank or 0))) for hit in hits]
    return sorted(hits, key=lambda hit: (-hit.score, hit.passage.id))[:limit]
