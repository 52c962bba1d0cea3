"""The use cases that find passages: search and list, over any number of archives and embedders as over one."""

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
from mnemesh_archival.model.passages import Passage, PassageFilter
from mnemesh_archival.model.search import PassageHit, SearchKind
from mnemesh_archival.store.base import ArchiveRef, ArchiveStore, PassageLedger, PassageStore
from mnemesh_archival.vectors.embedders import Embedders

QUERY_SECONDS = 2.0
"""How long a search waits for an embedder before it goes on with words alone."""
MODES = {SearchKind.HYBRID: SearchMode.HYBRID, SearchKind.TEXT: SearchMode.TEXT, SearchKind.VECTOR: SearchMode.DENSE}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits, best first; `degraded` if meaning could not be searched."""

    hits: tuple[PassageHit, ...]
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class _EmbedderGroup:
    """The archives of a scope that share an embedder. `archive_ids` is None for all of the organization's."""

    embedder: str
    archive_ids: tuple[str, ...] | None
    size: int
    """How many passages they hold."""


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
        which: PassageFilter,
        *,
        limit: int,
        with_embedding: bool = False,
    ) -> SearchResult:
        """The best passages; the newest for a blank query."""
        organization_id = caller.organization_id
        groups = await self._groups(organization_id, which)
        if not query.strip():
            newest = await self._newest(organization_id, groups, which, limit)
            return SearchResult(
                tuple(PassageHit(each, 0.0) for each in await self._embedded(organization_id, newest, with_embedding))
            )
        lists = await asyncio.gather(
            *(self._search_group(organization_id, group, query, kind, which, limit) for group in groups)
        )
        hits = _merged([hits for hits, _ in lists], kind, limit)
        passages = await self._embedded(organization_id, [hit.passage for hit in hits], with_embedding)
        hits = [replace(hit, passage=passage) for hit, passage in zip(hits, passages, strict=True)]
        return SearchResult(tuple(hits), degraded=any(degraded for _, degraded in lists))

    async def list_page(
        self,
        caller: Principal,
        which: PassageFilter,
        page: PageQuery,
        *,
        words: str | None = None,
        with_embedding: bool = False,
    ) -> Page[Passage]:
        """Passages by creation time."""
        organization_id = caller.organization_id
        after = await self._after(organization_id, page)
        before = await self._place(organization_id, page.before_id, "before_id")
        lists = [
            await self._passages.list(
                group.embedder,
                organization_id,
                group.archive_ids,
                which,
                words=words,
                ascending=page.ascending,
                after=after,
                before=before,
                limit=page.limit + 1,
            )
            for group in await self._groups(organization_id, which)
        ]
        listed = sorted((each for some in lists for each in some), key=lambda each: each[0], reverse=not page.ascending)
        shown = listed[: page.limit]
        passages = await self._embedded(organization_id, [passage for _, passage in shown], with_embedding)
        if len(listed) <= page.limit:
            return Page(tuple(passages))
        last = shown[-1][0]
        return Page(tuple(passages), Cursor(last.value.isoformat(), str(last.id)))

    async def _groups(self, organization_id: str, which: PassageFilter) -> list[_EmbedderGroup]:
        scope = await self._archives.scope(organization_id, which.agent_id, which.archive_id)
        groups: dict[str, list[ArchiveRef]] = {}
        for archive in scope:
            groups.setdefault(archive.embedder, []).append(archive)
        everywhere = which.agent_id is None and which.archive_id is None
        return [
            _EmbedderGroup(
                embedder,
                None if everywhere else tuple(archive.id for archive in some),
                sum(archive.passage_count for archive in some),
            )
            for embedder, some in sorted(groups.items())
        ]

    async def _search_group(
        self,
        organization_id: str,
        group: _EmbedderGroup,
        query: str,
        kind: SearchKind,
        which: PassageFilter,
        limit: int,
    ) -> tuple[list[PassageHit], bool]:
        vector: Vector | None = None
        degraded = False
        if kind is not SearchKind.TEXT:
            try:
                (vector,) = await self._embedders.embed(group.embedder, [query], within=QUERY_SECONDS)
            except EmbedderUnavailable:
                if kind is SearchKind.VECTOR:
                    raise
                degraded = True
        found = await self._passages.candidates(
            group.embedder,
            organization_id,
            group.archive_ids,
            which,
            mode=MODES[kind],
            text=query,
            vector=vector,
            limit=max(ranking.COUNTED, 4 * limit),
        )
        words = await self._by_words(organization_id, group, query, which, found.text, limit)
        return await self._hits(group, kind, words, list(found.dense), limit), degraded

    async def _by_words(
        self,
        organization_id: str,
        group: _EmbedderGroup,
        query: str,
        which: PassageFilter,
        found: Sequence[WordMatch],
        limit: int,
    ) -> ranking.Scored:
        if not found:
            return []
        rarity = ranking.rarities(found, group.size)
        best = ranking.strongest(found, rarity, max(ranking.RANKED, 2 * limit))
        places = await self._ledger.around(organization_id, best, ranking.REACH)
        words = ranking.by_words(found, rarity, places, query_dates.matching(query, places))
        known = {match.id for match in found}
        beside = [id_ for id_, _ in words if id_ not in known]
        if not beside or not which.narrows:
            return words
        known |= await self._passages.matching(group.embedder, organization_id, group.archive_ids, which, beside)
        return [(id_, score) for id_, score in words if id_ in known]

    async def _hits(
        self, group: _EmbedderGroup, kind: SearchKind, words: ranking.Scored, meaning: ranking.Scored, limit: int
    ) -> list[PassageHit]:
        ranked = words or meaning
        if kind is SearchKind.HYBRID:
            ranked = ranking.fused(words, meaning, self._embedders.get(group.embedder).hybrid_weight)
        best = ranked[:limit]
        passages = await self._passages.get(group.embedder, [id_ for id_, _ in best], with_embedding=False)
        text_ranks = {id_: rank for rank, (id_, _) in enumerate(words, start=1)}
        vector_ranks = {id_: rank for rank, (id_, _) in enumerate(meaning, start=1)}
        return [
            PassageHit(passages[id_], score, vector_ranks.get(id_), text_ranks.get(id_))
            for id_, score in best
            if id_ in passages
        ]

    async def _newest(
        self, organization_id: str, groups: Sequence[_EmbedderGroup], which: PassageFilter, limit: int
    ) -> list[Passage]:
        listed: list[tuple[Position, Passage]] = []
        for group in groups:
            listed += await self._passages.list(
                group.embedder,
                organization_id,
                group.archive_ids,
                which,
                words=None,
                ascending=False,
                after=None,
                before=None,
                limit=limit,
            )
        return [passage for _, passage in sorted(listed, key=lambda each: each[0], reverse=True)[:limit]]

    async def _embedded(self, organization_id: str, passages: Sequence[Passage], wanted: bool) -> list[Passage]:
        if not wanted or not passages:
            return list(passages)
        rows = await self._ledger.find(organization_id, [passage.id for passage in passages])
        vectors: dict[str, tuple[float, ...]] = {}
        for embedder in {row.embedder for row in rows.values()}:
            points = [row.point_id for row in rows.values() if row.embedder == embedder]
            read = await self._passages.get(embedder, points, with_embedding=True)
            vectors.update((passage.id, passage.embedding) for passage in read.values())
        return [replace(passage, embedding=vectors.get(passage.id, ())) for passage in passages]

    async def _after(self, organization_id: str, page: PageQuery) -> Position | None:
        """The later, in the order asked for, of the two places that the page may begin behind."""
        places = [await self._place(organization_id, page.after_id, "after_id"), _cursor(page.cursor)]
        given = [place for place in places if place is not None]
        if not given:
            return None
        return max(given) if page.ascending else min(given)

    async def _place(self, organization_id: str, passage_id: str | None, field: str) -> Position | None:
        if passage_id is None:
            return None
        try:
            return await self._ledger.place(organization_id, passage_id)
        except NotFound as error:
            raise NotFound(f"{field} names no row of this list.", field=field, resource_id=passage_id) from error


def _cursor(cursor: Cursor | None) -> Position | None:
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
    """One list of several. Likeness by different embedders cannot be compared, so there the rank decides."""
    if len(lists) == 1:
        return lists[0]
    hits = [hit for some in lists for hit in some]
    if kind is SearchKind.VECTOR:
        hits = [replace(hit, score=1.0 / (RANK_CONSTANT + (hit.vector_rank or 0))) for hit in hits]
    return sorted(hits, key=lambda hit: (-hit.score, hit.passage.id))[:limit]
