"""The port of the vector index: collections of points, searched by vector, by words, or by both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol
from uuid import UUID

from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.filters import EVERYTHING, Filter

Payload = Mapping[str, Any]


class WriteMode(Enum):
    """What a write does with an id that is, or is not, there already."""

    UPSERT = "upsert"
    INSERT_ABSENT = "insert_absent"
    UPDATE_PRESENT = "update_present"


class SearchMode(Enum):
    """Which list of candidates a search draws from."""

    DENSE = "dense"
    TEXT = "text"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class Collection:
    """What a collection is made with; one collection per embedding model."""

    name: str
    dimension: int
    keyword_fields: tuple[str, ...] = ()
    """Payload fields (strings or lists of strings) that filters and facets use."""
    uuid_fields: tuple[str, ...] = ()
    """Payload fields (UUIDs as text, or lists of them) that `Match` and `MatchAny` use; they take a third of the memory
    of keywords."""
    datetime_fields: tuple[str, ...] = ()
    """Payload fields (ISO 8601, as `instant` writes them) that ranges and orders use."""
    text_fields: tuple[str, ...] = ()
    """Payload fields that `HasWords` filters look into."""
    tenant_field: str | None = None
    """The keyword or UUID field by which almost every query is narrowed; engines may lay data out by it, and by the
    first value of a list."""


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to find again."""

    id: UUID
    vector: Vector | None
    """None makes a point that only words find."""
    text: str
    """What words are matched against. It is not stored as text: who wants it back puts it into the payload."""
    payload: Payload = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """A point as the index holds it."""

    id: UUID
    payload: dict[str, Any]
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What to look for.

    DENSE needs a vector, TEXT needs text; HYBRID uses what is there of both.
    """

    mode: SearchMode
    text: str = ""
    vector: Vector | None = None
    filter: Filter = EVERYTHING
    limit: int = 10
    dense_weight: float = 1.0
    """How much a rank in the dense list counts in the fusion; an embedder's `hybrid_weight`."""
    text_weight: float = 1.0
    candidates: int = 0
    """How many hits each list offers to the fusion, or to who asks for `candidates`; 0 means max(50, 4 * limit)."""
    with_payload: bool = True
    """Without, hits have empty payloads, which need not be read one by one from all over the collection."""
    newest: int = 0
    """An engine that compares vectors one by one may look at the newest so many only of those that the filter's
    keywords name, by the datetime field, or where there is none as they were written; 0: at all. Engines with a better
    way look at all."""
    also: tuple[UUID, ...] = ()
    """Points that are looked at in any case, as far as the filter matches them."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A point that was found. Ranks count from 1; None means: not in that list."""

    id: UUID
    score: float
    """HYBRID: the fused score. DENSE: cosine similarity. TEXT: BM25."""
    payload: dict[str, Any]
    dense_rank: int | None = None
    text_rank: int | None = None
    dense_score: float | None = None
    text_score: float | None = None


@dataclass(frozen=True, slots=True)
class WordMatch:
    """A point that has at least one word of a query."""

    id: UUID
    score: float
    """BM25, with the rarity of each word in the whole collection."""
    words: Mapping[int, float]
    """What each word of the query that it has weighs in it, by the word's number: BM25 without rarity. Irregular forms
    of a word go by its number."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The two lists of a search before anything is made of them, each best first, ties by id."""

    dense: Sequence[tuple[UUID, float]] = ()
    """Ids with their cosine similarity."""
    text: Sequence[WordMatch] = ()


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in an ordered list: the value of the order field, ties broken by id."""

    value: datetime
    id: UUID


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A stretch of the points in the order of a datetime field; the id breaks ties in the same direction."""

    order_by: str
    descending: bool = False
    filter: Filter = EVERYTHING
    after: Position | None = None
    """Only what follows this place in the order asked for."""
    before: Position | None = None
    """Only what precedes this place in the order asked for."""
    limit: int = 50


class NearestIndex(Protocol):
    """Holds points in collections, and finds those whose vectors are most like one.

    Every write is complete when it returns: the next read of any caller sees it, and the death of the process does
    not lose it (what a power loss can take is each adapter's to state). Writes of one call are applied as one.
    Vectors are compared by cosine similarity.

    All methods raise CollectionMissing for an unknown collection and IndexClosed after `close`. An adapter that is no
    VectorIndex keeps neither payloads nor words: it filters by keyword, UUID and datetime fields, a hit's payload is
    empty, and DENSE is the only mode.
    """

    async def ensure_collection(self, collection: Collection) -> None:
        """Create or open the collection. CollectionMismatch on another dimension."""

    async def collections(self) -> tuple[str, ...]:
        """The names of all stored collections, sorted, whether opened or not."""

    async def drop_collection(self, name: str) -> None:
        """Remove a collection and its bytes. An unknown name is no error."""

    async def write(self, collection: str, points: Sequence[Point]) -> None:
        """Write points, each whole, in place of what had its id. The last of several with one id wins. PointInvalid."""

    async def delete(self, collection: str, ids: Sequence[UUID]) -> None:
        """Delete points; ids that are not there are no error."""

    async def delete_where(self, collection: str, where: Filter) -> None:
        """Delete every point that the filter matches."""

    async def search(self, collection: str, query: SearchQuery) -> list[Hit]:
        """The best hits, best first, ties by id."""

    async def scan(self, collection: str, where: Filter, *, after: UUID | None = None, limit: int = 1000) -> list[UUID]:
        """Ids of matching points in the order of their ids, after the given one."""

    async def count(self, collection: str, where: Filter) -> int:
        """How many points match, exactly."""

    async def flush(self) -> None:
        """Bring every acknowledged write to the disk platter."""

    async def close(self) -> None:
        """Flush and release everything. Twice is no error."""


class VectorIndex(NearestIndex, Protocol):
    """A NearestIndex that also keeps payloads, which are JSON objects, and words."""

    async def ensure_collection(self, collection: Collection) -> None:
        """Create or open the collection, adding payload indexes it lacks. CollectionMismatch on another dimension."""

    async def write(self, collection: str, points: Sequence[Point], mode: WriteMode = WriteMode.UPSERT) -> None:
        """Write points, each whole (vector, words and payload). The last of several with one id wins. PointInvalid."""

    async def set_payload(self, collection: str, ids: Sequence[UUID], fields: Payload) -> None:
        """Set payload fields of the points that exist among `ids`, keeping their other fields, vector and words."""

    async def get(self, collection: str, ids: Sequence[UUID], *, with_vectors: bool = False) -> list[StoredPoint]:
        """The points that exist among `ids`, in the order of `ids`."""

    async def search(self, collection: str, query: SearchQuery) -> list[Hit]:
        """The best hits, best first, ties by id.

        Words: BM25 over stemmed, lower-cased, accent-folded words, irregular English ones in all their forms; stop
        words of the query are left out unless it has nothing else; points without any of the words are never hits.
        HYBRID fuses both lists by weighted reciprocal ranks.
        """

    async def candidates(self, collection: str, query: SearchQuery) -> Candidates:
        """The lists that the mode draws from, `query.candidates` of each, for callers who rank by more than is here.

        The same points in the same order as `search` takes them from; its weights and its limit count for nothing.
        """

    async def list_points(self, collection: str, query: ListQuery) -> list[StoredPoint]:
        """Points in order. Points without the order field are left out."""

    async def facets(self, collection: str, field: str, where: Filter, *, limit: int = 1000) -> dict[str, int]:
        """The values of a keyword field among matching points, with how many points hold each."""


def instant(value: datetime) -> str:
    """How datetimes are written into payloads: UTC, microseconds, one width. Refuses naive datetimes."""
    if value.tzinfo is None:
        raise ValueError("a datetime without a time zone cannot be stored")
    return value.astimezone(UTC).isoformat(timespec="microseconds")
