"""The comparison of an index that answers each question with a search of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from uuid import UUID

from mnemesh_retrieval.filters import HasId
from mnemesh_retrieval.index import Hit, SearchMode, SearchQuery

Search = Callable[[str, SearchQuery], Awaitable[list[Hit]]]


class SearchedComparison:
    """See Comparison. `similarities` searches among the points."""

    def __init__(self, search: Search, collection: str, query: SearchQuery, hits: list[Hit]) -> None:
        self.hits = hits
        self._search = search
        self._collection = collection
        self._query = query

    async def similarities(self, ids: Collection[bytes]) -> dict[bytes, float]:
        """See Comparison.similarities."""
        known = {hit.id.bytes: hit.score for hit in self.hits}
        missing = tuple(UUID(bytes=id_) for id_ in ids if id_ not in known)
        if missing:
            query = replace(self._query, filter=HasId(missing), limit=len(missing), also=())
            known |= {hit.id.bytes: hit.score for hit in await self._search(self._collection, query)}
        return {id_: known[id_] for id_ in ids if id_ in known}


async def compared_by_search(search: Search, collection: str, query: SearchQuery) -> SearchedComparison:
    """Returns the comparison of a query with an index that `search` searches."""
    query = replace(query, mode=SearchMode.DENSE, with_payload=False)
    return SearchedComparison(search, collection, query, await search(collection, query))
