"""The ports of the vector index: collections of points that are searched by vector, by words, or by both."""

from collections.abc import Collection as AbstractCollection
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Protocol
from uuid import UUID

from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.filters import EVERYTHING, Filter
from mnemesh_retrieval.index_directory import IndexMark

Payload = Mapping[str, Any]

CHECK_PAUSE: Final = 3.0
"""The length of the pause after each part of a check of stored data, relative to the time that the part took."""


class WriteMode(Enum):
    """The effect of a write on points that are present or absent."""

    UPSERT = "upsert"
    INSERT_ABSENT = "insert_absent"
    UPDATE_PRESENT = "update_present"


class SearchMode(Enum):
    """Search by words (TEXT), by vector similarity (VECTOR), or both."""

    HYBRID = "hybrid"
    TEXT = "text"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class Collection:
    """The schema of a collection. There is one collection per embedding model."""

    name: str
    dimension: int
    keyword_fields: tuple[str, ...] = ()
    """Payload fields (strings or lists of strings) that filters and facets use."""
    uuid_fields: tuple[str, ...] = ()
    """Payload fields (UUIDs as text, or lists of them) that `Match` and `MatchAny` use. They need a
    third of the memory of keywords."""
    datetime_fields: tuple[str, ...] = ()
    """Payload fields (ISO 8601, as `instant` writes them) that ranges and orders use."""
    text_fields: tuple[str, ...] = ()
    """Payload fields that `HasWords` filters use."""
    tenant_field: str | None = None
    """The keyword or UUID field that almost every query filters by. Engines may store points by it; of a list, by its
    first value."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point to store."""

    id: UUID
    vector: Vector | None
    """None for a point that only words find."""
    text: str
    """The text that words are matched against. It is not stored as text; put it into the payload to read it back."""
    payload: Payload = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredPoint:
    id: UUID
    payload: dict[str, Any]
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search. DENSE needs a vector, TEXT needs a text, HYBRID needs either or both and is only for `candidates`."""

    mode: SearchMode
    text: str = ""
    vector: Vector | None = None
    filter: Filter = EVERYTHING
    limit: int = 10
    """The largest number of hits, or of candidates in each list."""
    with_payload: bool = True
    """False leaves the payloads of hits empty, which saves a read per hit."""
    newest: int = 0
    """A bound for engines that compare vectors one by one: they may consider only this many of the newest points that
    the keywords of the filter select, by the datetime field or, without one, by the order of writes. 0 for no bound.
    Other engines ignore it."""
    also: tuple[UUID, ...] = ()
    """Points that are considered in any case, if the filter matches them."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A point that was found."""

    id: UUID
    score: float
    """Cosine similarity (DENSE) or BM25 (TEXT)."""
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WordMatch:
    """A point that has at least one word of a query."""

    id: UUID
    score: float
    """BM25, with the rarity of each word in the whole collection."""
    words: Mapping[int, float]
    """The weight of each word of the query in the point: BM25 without rarity. Words are numbers; see
    `words.sparse`."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The points with similar vectors and those with words of a query, each best first, ties by id."""

    dense: Sequence[tuple[UUID, float]] = ()
    """Ids with their cosine similarity."""
    text: Sequence[WordMatch] = ()


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in an ordered list: the value of the order field, and the id that breaks ties."""

    value: datetime
    id: UUID


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A range of points in the order of a datetime field; the id breaks ties in the same direction."""

    order_by: str
    descending: bool = False
    filter: Filter = EVERYTHING
    after: Position | None = None
    """Only points after this position in the requested order."""
    before: Position | None = None
    """Only points before this position in the requested order."""
    limit: int = 50


class Comparison(Protocol):
    """A vector that was compared with points."""

    @property
    def hits(self) -> list[Hit]:
        """The most similar points, best first, without payloads."""

    async def similarities(self, ids: AbstractCollection[bytes]) -> dict[bytes, float]:
        """Returns the cosine similarities of points, also of those that the filter excludes.

        Points beyond `SearchQuery.newest` may be missing. Ids are the bytes of UUIDs, which take less time to make.
        """


class NearestIndex(Protocol):
    """Stores points in collections and finds those with the most similar vectors, by cosine similarity.

    A write is complete when it returns: every later read sees it, and a crash of the process does not lose it. Each
    adapter states what a power loss can lose. The points of one call are written atomically.

    All methods raise CollectionMissing for a collection that is not open, IndexClosed after `close`, IndexDamaged if
    they find stored files damaged, and IndexFull if the disk has too little space for a write. An adapter
    that is not a VectorIndex stores neither payloads nor words: it filters by keyword, UUID and datetime fields, the
    payloads of hits are empty, and DENSE is the only mode.

    Example:
        >>> await index.ensure_collection(Collection("notes", dimension=256, keyword_fields=("tag",)))
        >>> await index.write("notes", [Point(id_, vector, "", {"tag": "tree"})])
        >>> query = SearchQuery(SearchMode.VECTOR, vector=vector, filter=Match("tag", "tree"))
        >>> hits = await index.search("notes", query)
    """

    async def ensure_collection(self, collection: Collection) -> None:
        """Creates or opens a collection. Raises CollectionMismatch if it has another dimension."""

    async def collections(self) -> tuple[str, ...]:
        """Returns the names of all stored collections, open or not, sorted."""

    async def drop_collection(self, name: str) -> None:
        """Deletes a collection and its files. An unknown name is not an error."""

    async def write(self, collection: str, points: Sequence[Point]) -> None:
        """Writes whole points and replaces those with the same ids; of several with one id, the last wins.

        Raises:
            PointInvalid: a point cannot be stored. None is.
        """

    async def delete(self, collection: str, ids: Sequence[UUID]) -> None:
        """Deletes points. Unknown ids are not an error."""

    async def delete_where(self, collection: str, condition: Filter) -> None:
        """Deletes all points that the filter matches."""

    async def search(self, collection: str, query: SearchQuery) -> list[Hit]:
        """Returns the best hits, best first, ties by id."""

    async def compare(self, collection: str, query: SearchQuery) -> Comparison:
        """Searches by vector, and keeps what is needed to return the similarities of further points cheaply."""

    async def scan(
        self, collection: str, condition: Filter, *, after: UUID | None = None, limit: int = 1000
    ) -> list[UUID]:
        """Returns ids of matching points in order, after the id `after`."""

    async def count(self, collection: str, condition: Filter) -> int:
        """Returns the exact number of matching points."""

    @property
    def durable_after_seconds(self) -> float:
        """A write is on stable storage once this time has passed since it and a `flush` after that has returned."""

    @property
    def mark(self) -> IndexMark | None:
        """The name of the state that the index shares with its records; None if the engine has no place for it."""

    async def flush(self) -> None:
        """Flushes all completed writes to stable storage; see `durable_after_seconds`."""

    async def verify(self, collection: str) -> None:
        """Reads what is stored of a collection and compares it with its checksums, as far as the engine has any.

        Raises:
            IndexDamaged: stored data is missing or altered.
        """

    async def set_aside(self, collection: str) -> str | None:
        """Moves the stored files of a damaged collection out of the way, so that `ensure_collection` creates it empty.

        Other collections that are stored in the same files are gone with it. Of earlier damaged files, the newest are
        kept and the others deleted.

        Returns:
            The directory with the files; None if they were deleted or did not exist.
        """

    async def close(self) -> None:
        """Flushes and releases everything. A second call has no effect."""


class VectorIndex(NearestIndex, Protocol):
    """A NearestIndex that also stores payloads, which are JSON objects, and words."""

    async def ensure_collection(self, collection: Collection) -> None:
        """Creates or opens a collection and adds missing payload indexes. Raises CollectionMismatch."""

    async def write(self, collection: str, points: Sequence[Point], mode: WriteMode = WriteMode.UPSERT) -> None:
        """Writes whole points: vector, words and payload; of several with one id, the last. Raises PointInvalid."""

    async def set_payload(self, collection: str, ids: Sequence[UUID], fields: Payload) -> None:
        """Sets payload fields of the points that exist among `ids`. Nothing else of them changes."""

    async def get(self, collection: str, ids: Sequence[UUID], *, with_vectors: bool = False) -> list[StoredPoint]:
        """Returns the points that exist among `ids`, in the order of `ids`."""

    async def search(self, collection: str, query: SearchQuery) -> list[Hit]:
        """Returns the best hits, best first, ties by id.

        Words are ranked by BM25 over stemmed, lower-cased words without accents; see `words.analysis`. Stop
        words of the query are ignored unless it has no others. Points without any of the words
        are never hits. Raises VectorIndexError in HYBRID mode, because the scores of the lists are not comparable.
        """

    async def candidates(self, collection: str, query: SearchQuery) -> Candidates:
        """Returns the lists that the mode uses, with up to `query.limit` points each. In a mode of one list, it has the
        points and scores that `search` returns.
        """

    async def list_points(self, collection: str, query: ListQuery) -> list[StoredPoint]:
        """Returns points in order, without those that lack the order field."""

    async def facets(self, collection: str, field: str, condition: Filter, *, limit: int = 1000) -> dict[str, int]:
        """Returns the values of a keyword field among matching points, with the number of points of each."""


def instant(value: datetime) -> str:
    """Returns a datetime as payloads store it: in UTC, with microseconds. Raises ValueError for a naive datetime."""
    if value.tzinfo is None:
        raise ValueError("a datetime without a time zone cannot be stored")
    return value.astimezone(UTC).isoformat(timespec="microseconds")
