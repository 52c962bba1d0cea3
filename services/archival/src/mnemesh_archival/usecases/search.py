"""The use cases that find passages: search and list, over any number of archives and embedders, ranked and reranked."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from mnemesh_kit.call_context import Principal
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_retrieval.embedder import Vector, averages_words
from mnemesh_retrieval.index import Candidates, SearchMode, WordMatch
from mnemesh_retrieval.ranking.scores import DEFAULTS, REACH, Ranked, best_of_queries, fingerprint, utterance
from mnemesh_retrieval.rerankers.reranking import Reranking, readable
from mnemesh_retrieval.time_expressions.resolver import TimeRange, resolve, resolve_all
from mnemesh_retrieval.words.sparse import WordQuery, name_words, without_names
from mnemesh_types.archival import PassageHit

from mnemesh_archival.errors import EmbedderUnavailable, EmbedderUnknown, VectorIndexUnavailable
from mnemesh_archival.model import ranking
from mnemesh_archival.model.passages import Passage, PassageFilter, PassagePosition, validate_filter
from mnemesh_archival.model.ranking import PassageSearch, SearchResult, equal_to, validate_query, validate_search
from mnemesh_archival.store.archives import ArchiveStore
from mnemesh_archival.store.passages import PassageStore
from mnemesh_archival.store.tables import ArchiveRef, Equals, Neighbourhood, PassageScope
from mnemesh_archival.usecases.passages import with_embeddings
from mnemesh_archival.vectors import Embedders, PassageIndex

SCANNED: Final = 100_000
"""The number of newest passages that a search looks through."""
BATCH: Final = 500
BATCH_BYTES: Final = 2_000_000


class WordScan:
    """Scans of the record. One runs at a time, so that a rebuild of the index leaves time for other calls."""

    def __init__(self, passages: PassageStore) -> None:
        self._passages = passages
        self._scanning = asyncio.Lock()

    async def scan(self, scope: PassageScope, query: str, limit: int) -> list[WordMatch]:
        """Returns the best passages of a scope by their words, in no particular order."""
        async with self._scanning:
            sizes = await self._passages.newest_sizes(scope, SCANNED)
            return _best(await self._matches(query, _batches(sizes)), limit)

    async def among(self, scope: PassageScope, query: str, points: Sequence[UUID], limit: int) -> list[WordMatch]:
        """Returns the best of these passages by their words, without those that are not in the scope."""
        async with self._scanning:
            inside = await self._passages.match(scope, points)
            found = [str(point) for point in points if point in inside]
            batches = (found[start : start + BATCH] for start in range(0, len(found), BATCH))
            return _best(await self._matches(query, batches), limit)

    async def _matches(self, query: str, batches: Iterable[Sequence[str]]) -> list[WordMatch]:
        words = WordQuery(query)
        found: list[WordMatch] = []
        for batch in batches:
            texts = await self._passages.texts(batch)
            found += [match for point, text in texts if (match := words.match(point, text)) is not None]
            await asyncio.sleep(0)
        return found


def _best(matches: Sequence[WordMatch], limit: int) -> list[WordMatch]:
    best = set(ranking.best_by_own_words(matches, ranking.word_rarities(matches, len(matches)), limit))
    return [match for match in matches if match.id in best]


def _batches(sizes: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    batch: list[str] = []
    total = 0
    for point, size in sizes:
        if batch and (total + size > BATCH_BYTES or len(batch) == BATCH):
            yield batch
            batch, total = [], 0
        batch.append(point)
        total += size
    if batch:
        yield batch


EMBEDDER_SECONDS = 2.0
"""How long a search waits for an embedder before it continues with words only."""


@dataclass(frozen=True, slots=True)
class EmbedderGroup:
    """The archives in scope that share an embedder."""

    scope: PassageScope
    embedder: str
    size: int
    """The number of passages in these archives."""
    dimension: int


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates of one query in one group."""

    group: EmbedderGroup
    words: Sequence[WordMatch] = ()
    dense: Sequence[tuple[UUID, float]] = ()
    """Best first."""
    vector: Vector | None = None
    """The vector of the query; None if it was not embedded."""
    outdated: frozenset[UUID] = field(default_factory=frozenset)
    """Passages whose points may have earlier texts."""
    degraded: bool = False


class CandidateFinder:
    """Finds candidates by words and by similarity."""

    def __init__(self, passages: PassageStore, index: PassageIndex, embedders: Embedders) -> None:
        self._index = index
        self._embedders = embedders
        self._scan = WordScan(passages)

    async def embed(
        self, group: EmbedderGroup, queries: Sequence[str], kind: SearchMode
    ) -> tuple[Sequence[Vector | None], bool]:
        """Returns the vectors of queries, and whether the embedder could not be used.

        Raises:
            EmbedderUnavailable, EmbedderUnknown: the embedder cannot be used, and a VECTOR search needs it.
        """
        if kind is SearchMode.TEXT:
            return [None] * len(queries), False
        try:
            return await self._embedders.embed(group.embedder, queries, within=EMBEDDER_SECONDS), False
        except (EmbedderUnavailable, EmbedderUnknown):
            if kind is SearchMode.VECTOR:
                raise
            return [None] * len(queries), True

    async def find(
        self, group: EmbedderGroup, query: str, kind: SearchMode, vector: Vector | None, count: int
    ) -> Found:
        """Returns up to `count` candidates by words and as many by similarity.

        Raises:
            VectorIndexUnavailable, EmbedderUnknown: the index cannot be used, and a VECTOR search needs it.
        """
        behind = await self._index.behind(group.embedder, SCANNED)
        try:
            mode = kind if behind is not None else SearchMode.VECTOR
            found = Candidates()
            if mode is not SearchMode.VECTOR or vector is not None:
                found = await self._index.candidates(group.scope, mode=mode, text=query, vector=vector, limit=count)
        except (VectorIndexUnavailable, EmbedderUnknown):
            if kind is SearchMode.VECTOR:
                raise
            found, behind = Candidates(), None
        if behind is not None and not behind:
            return Found(group, found.text, found.dense, vector)
        outdated = frozenset(behind or ())
        dense = [(point, score) for point, score in found.dense if point not in outdated]
        if kind is SearchMode.VECTOR:
            return Found(group, (), dense, vector, outdated, degraded=True)
        words = [match for match in found.text if match.id not in outdated]
        if behind is None:
            words = await self._scan.scan(group.scope, query, count)
        else:
            words += await self._scan.among(group.scope, query, behind, count)
        return Found(group, words, dense, vector, outdated, degraded=True)

    async def similar_to(self, found: Found, text: str, count: int) -> Found:
        """Returns candidates with those by similarity to another text; as they are if the index cannot be used now."""
        (vector,) = await self._embedders.embed(found.group.embedder, [text])
        try:
            similar = await self._index.candidates(
                found.group.scope, mode=SearchMode.VECTOR, text="", vector=vector, limit=count
            )
        except VectorIndexUnavailable:
            return found
        dense = [(point, score) for point, score in similar.dense if point not in found.outdated]
        return replace(found, dense=dense, vector=vector)

    def averages_words(self, found: Found) -> bool:
        """Returns whether the query was embedded for these candidates, and its vector is an average of words."""
        return found.vector is not None and averages_words(self._embedders.get(found.group.embedder))

    async def similarities(self, found: Found, points: Sequence[UUID]) -> dict[UUID, float]:
        """Returns the similarities of the candidates, and of further passages that the index has."""
        known = dict(found.dense)
        if found.vector is not None:
            further = [point for point in points if point not in known and point not in found.outdated]
            known |= await self._index.similarities(found.group.scope, found.vector, further)
        return known


MAX_EQUAL: Final = 200
"""The number of passages with the text of the query that are considered."""


@dataclass(frozen=True, slots=True)
class RankedQuery:
    text: str
    kind: SearchMode
    named_times: Sequence[TimeRange]
    depth: int
    """The number of hits of the search."""


class RankedSearch:
    """Ranks candidates with what the record knows of them and of their neighbours."""

    def __init__(self, passages: PassageStore, finder: CandidateFinder, embedders: Embedders) -> None:
        self._passages = passages
        self._finder = finder
        self._embedders = embedders

    async def rank(self, query: RankedQuery, scope: PassageScope, found: Sequence[Found]) -> list[Ranked[UUID]]:
        """Returns the passages that match a query, best first.

        Args:
            query: the query.
            scope: all passages in which it searches.
            found: its candidates in each group of archives.
        """
        matches = [match for each in found for match in each.words]
        rarities = ranking.word_rarities(matches, sum(each.group.size for each in found))
        best = ranking.best_by_own_words(matches, rarities, max(ranking.RANKED, 2 * query.depth))
        nearest, around = await self._around(query, scope, found, best)
        if nameless := await self._without_names(query, found, around.positions):
            found = nameless
            nearest, around = await self._around(query, scope, found, best)
        points = dict.fromkeys((*best, *nearest))
        ranked = ranking.PassageRanking(around.positions, matches, rarities, DEFAULTS)
        words, own = WordQuery(query.text), {match.id: match.words for match in matches}
        ranked.score_words(
            {id_: _asked(words, text, own[id_]) for id_, text in around.questions.items()},
            lambda text: words.words_of(text).keys(),
            ranking.date_scores(query.text, around.positions),
            query.named_times,
        )
        await self._exclude_outside(found, ranked, points.keys() | around.equal.keys())
        likenesses = await self._likenesses(query, found, ranked, nearest)
        return ranked.rank(likenesses, equal_to(query.text, around.equal), query.depth)

    async def _around(
        self, query: RankedQuery, scope: PassageScope, found: Sequence[Found], best: Sequence[UUID]
    ) -> tuple[list[UUID], Neighbourhood]:
        """Returns the most similar passages, and the passages around them and around the best by words."""
        nearest = self._nearest(found, query.depth)
        points = list(dict.fromkeys((*best, *nearest)))
        equals = Equals(fingerprint(query.text), MAX_EQUAL)
        return nearest, await self._passages.neighbours(scope, points, REACH, frozenset(best), equals)

    async def _without_names(
        self, query: RankedQuery, found: Sequence[Found], positions: Sequence[PassagePosition]
    ) -> list[Found] | None:
        """Returns the candidates if embedders that average words get the query without the names of speakers.

        None if that changes nothing.
        """
        averaged = [self._finder.averages_words(each) for each in found]
        if not any(averaged):
            return None
        speakers = {each.speaker for each in positions if each.continuity.is_spoken}
        text = without_names(query.text, frozenset[str]().union(*map(name_words, speakers)))
        if text == query.text:
            return None
        count = ranking.candidates(query.depth)
        return [
            await self._finder.similar_to(each, text, count) if is_average else each
            for each, is_average in zip(found, averaged, strict=True)
        ]

    def _nearest(self, found: Sequence[Found], depth: int) -> list[UUID]:
        """Returns the most similar passages of each group."""
        count = max(ranking.NEAREST, depth)
        return [point for each in found for point, _ in each.dense[:count]]

    async def _exclude_outside(
        self, found: Sequence[Found], ranked: ranking.PassageRanking, candidates: Collection[UUID]
    ) -> None:
        """Excludes neighbours of candidates that the filter excludes."""
        if not found[0].group.scope.filter.narrows:
            return
        if neighbours := [id_ for id_ in ranked.receivers() if id_ not in candidates]:
            scopes = [each.group.scope for each in found]
            inside = await asyncio.gather(*(self._passages.match(scope, neighbours) for scope in scopes))
            ranked.exclude(set(neighbours).difference(*inside))

    async def _likenesses(
        self, query: RankedQuery, found: Sequence[Found], ranked: ranking.PassageRanking, nearest: Sequence[UUID]
    ) -> list[ranking.Likeness]:
        """Returns the similarities of the candidates, and of their neighbours, by each embedder."""
        likenesses = []
        points = ranked.compared(nearest, query.depth)
        for each in found:
            embedder = self._embedders.get(each.group.embedder) if each.vector is not None else None
            if embedder is None:
                continue
            is_vector = query.kind is SearchMode.VECTOR
            weight = 1.0 if is_vector else embedder.similarity_weight
            least = 0.0 if is_vector else embedder.least_similarity
            if weight:
                # Each group is asked for all: the index knows which passages are in its archives.
                known = await self._finder.similarities(each, points)
                likenesses.append(ranking.Likeness(weight, least, known))
        return likenesses


def _asked(words: WordQuery, text: str, own: Mapping[int, float]) -> Collection[int]:
    """Returns the words of the query in the question sentences of a text, of which it has those of `own`."""
    parts = utterance(text)
    return words.words_of(parts.questions).keys() if parts.statements else own.keys()


class PassageReranking:
    """Orders the best candidates of a search by the reranker, if one is configured and requested."""

    def __init__(self, passages: PassageStore, reranking: Reranking) -> None:
        self._passages = passages
        self._reranking = reranking

    def depth(self, search: PassageSearch) -> int:
        """Returns how many candidates of a search are looked at: those that are returned or reranked."""
        return self._reranking.depth(search.limit, search.rerank)

    async def rerank(
        self, scope: PassageScope, search: PassageSearch, ranked: Sequence[Ranked[UUID]]
    ) -> list[Ranked[UUID]] | None:
        """Returns the new ranking, or None if the first one stays; see `Reranking.rerank`."""
        if not self._reranking.is_requested(search.rerank):
            return None
        first = [each.id for each in ranked[: self._reranking.candidates]]
        found = await self._passages.resolve(scope, first)
        around = await self._passages.around(scope.organization_id, [each.id for each in found.values()], 1, 0)
        questions = {id_: _question(beside.before) for id_, beside in around.items()}
        texts = {
            point: readable(None, passage.text, questions.get(passage.id))
            for point, passage in found.items()
            if passage.text.strip()
        }
        return await self._reranking.rerank(search.queries, ranked, texts)


def _question(before: Sequence[Passage]) -> str | None:
    """Returns the text of the passage before, if that asks a question."""
    return before[-1].text if before and utterance(before[-1].text).asks else None


class PassageSearchService:
    """Passages of the caller's organization. The index finds them; text, tags and times are those of the record."""

    def __init__(
        self,
        archives: ArchiveStore,
        passages: PassageStore,
        index: PassageIndex,
        embedders: Embedders,
        reranking: Reranking | None = None,
    ) -> None:
        self._archives = archives
        self._passages = passages
        self._index = index
        self._finder = CandidateFinder(passages, index, embedders)
        self._ranked = RankedSearch(passages, self._finder, embedders)
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
        shown = await self._complete(caller.organization_id, hits[search.offset :], search)
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

    async def _complete(
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
