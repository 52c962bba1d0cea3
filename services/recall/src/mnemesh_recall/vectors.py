"""The vectors of messages, episodes and facts, and these as the records from which they are derived."""

from collections.abc import Awaitable, Mapping, Sequence
from collections.abc import Collection as AbstractCollection
from functools import lru_cache
from typing import Final, TypeVar
from uuid import UUID

from mnemesh_kit.ids import derive_id
from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.errors import EmbedderError, IndexDamaged, VectorIndexError
from mnemesh_retrieval.filters import Filter, HasId, Match, MatchAny, Not, TimeRange, all_of
from mnemesh_retrieval.index import Collection, Comparison, Hit, NearestIndex, SearchMode, SearchQuery, instant
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.outbox import Record
from mnemesh_types.messages import Message

from mnemesh_recall.errors import EmbedderUnavailable, VectorIndexUnavailable
from mnemesh_recall.model.episodes import MemoryText, Scope
from mnemesh_recall.model.ranking import ID_PREFIX
from mnemesh_recall.model.search import SearchScope, embedded_text, searchable_text, speaker_of
from mnemesh_recall.store.indexed import IndexedMemories, IndexedMessages
from mnemesh_recall.store.transaction import MEMORIES, MESSAGES

T = TypeVar("T")


class VectorCollection:
    """Searches one collection. Without an indexer, it counts as complete."""

    def __init__(
        self, key: str, index: NearestIndex, embedder: Embedder, schema: Collection, indexer: Indexer | None
    ) -> None:
        self.index = index
        self.embedder = embedder
        self.schema = schema
        self._key = key
        self._indexer = indexer

    def is_complete(self) -> bool:
        """Returns whether the index has every record of the collection, except the newest."""
        return self._indexer is None or self._indexer.is_complete(self._key)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Returns the vectors of texts. Raises EmbedderUnavailable if the embedder is unreachable, or refuses them."""
        try:
            return await self.embedder.embed(texts)
        except EmbedderError as error:
            raise EmbedderUnavailable(self.embedder.handle) from error

    async def nearest(self, query: SearchQuery) -> list[Hit]:
        """Returns the best hits. Raises VectorIndexUnavailable if the index cannot be read now."""
        return await self._read(self.index.search(self.schema.name, query))

    async def compare(self, query: SearchQuery) -> Comparison:
        """Compares the vector of a query. Raises VectorIndexUnavailable if the index cannot be read now."""
        return await self._read(self.index.compare(self.schema.name, query))

    async def similarities(self, comparison: Comparison, ids: AbstractCollection[bytes]) -> dict[bytes, float]:
        """Returns the similarities of points. Raises VectorIndexUnavailable if the index cannot be read now."""
        return await self._read(comparison.similarities(ids))

    async def _read(self, read: Awaitable[T]) -> T:
        try:
            return await read
        except VectorIndexError as error:
            if isinstance(error, IndexDamaged) and self._indexer is not None:
                await self._indexer.report_damage(self.schema.name, error)
            raise VectorIndexUnavailable from error


FORMAT: Final = 3
"""The version of the points. An index with points of another version is rebuilt."""
# One list of values takes half the memory of as many fields.
_SCOPE: Final = "scope"
_TIME: Final = "created_at"


def collection(handle: str, dimension: int) -> Collection:
    """Returns the collection of an embedder."""
    return Collection(
        f"messages.{FORMAT}.{handle}", dimension, uuid_fields=(_SCOPE,), datetime_fields=(_TIME,), tenant_field=_SCOPE
    )


def uuid_of(message_id: str) -> UUID:
    """Returns the point id of a message."""
    return UUID(message_id.removeprefix(ID_PREFIX))


def message_id_of(point_id: UUID) -> str:
    return f"{ID_PREFIX}{point_id}"


def payload(organization_id: str, message: Message) -> dict[str, str | list[str]]:
    """Returns the fields that are stored with the vector of a message."""
    # The agent comes first, because an index may store points with the same first value together.
    speaker = speaker_of(message, searchable_text(message))
    values = (
        message.agent_id,
        organization_id,
        message.conversation_id,
        message.role.value,
        _speaker(speaker) if speaker else None,
        message.sender_id,
    )
    return {_SCOPE: [_mark(value) for value in values if value is not None], _TIME: instant(message.created_at)}


def of_agent(agent_id: str) -> Filter:
    """Returns the filter for all messages of an agent."""
    return Match(_SCOPE, _mark(agent_id))


def condition(organization_id: str, scope: SearchScope) -> Filter:
    """Returns the filter of a search. The store checks that an agent belongs to the organization."""
    ids = (scope.agent_id or organization_id, scope.conversation_id)
    return all_of(
        *(Match(_SCOPE, _mark(id_)) for id_ in ids if id_ is not None),
        MatchAny(_SCOPE, tuple(_mark(role.value) for role in scope.roles)) if scope.roles else None,
        MatchAny(_SCOPE, tuple(_mark(_speaker(name)) for name in scope.speakers)) if scope.speakers else None,
        MatchAny(_SCOPE, tuple(map(_mark, scope.sender_ids))) if scope.sender_ids else None,
        TimeRange(_TIME, gte=scope.from_time, lt=scope.before_time)
        if scope.from_time is not None or scope.before_time is not None
        else None,
        Not(HasId(tuple(uuid_of(id_) for id_ in scope.exclude_ids))) if scope.exclude_ids else None,
    )


def _speaker(name: str) -> str:
    return f"speaker {name.casefold()}"


@lru_cache(maxsize=4096)
def _mark(value: str) -> str:
    """Returns an id, a role or a speaker as a UUID, because the field accepts only UUIDs."""
    return derive_id("mark", value).partition("-")[2]


MESSAGE_PREFIX: Final = "messages."
"""The prefix of the names of message collections. Other collections may belong to other services."""


class MessageVectors(VectorCollection):
    """The collection with the vectors of messages by one embedder."""

    def __init__(self, index: NearestIndex, embedder: Embedder, indexer: Indexer | None = None) -> None:
        """Creates it. Without an indexer, the collection counts as complete."""
        super().__init__(MESSAGES, index, embedder, collection(embedder.handle, embedder.dimension), indexer)


class MessageSource:
    """See Source. The records are the messages with searchable text."""

    keep_without_vector = False
    words_version = None

    def __init__(self, messages: IndexedMessages, vectors: MessageVectors) -> None:
        self._messages = messages
        self.schema = vectors.schema
        self.embedder = vectors.embedder

    async def read(self, subjects: Sequence[str]) -> Mapping[str, Record]:
        """See Source."""
        found = await self._messages.read(subjects)
        return {
            id_: Record(embedded_text(message), payload(organization_id, message))
            for id_, (organization_id, message) in found.items()
        }

    def point_id(self, subject: str) -> UUID:
        """See Source."""
        return uuid_of(subject)

    def subject_of(self, point_id: UUID) -> str:
        """See Source."""
        return message_id_of(point_id)

    def group_filter(self, group: str) -> Filter:
        """See Source. A group is an agent."""
        return of_agent(group)

    async def list_subjects(self, after: str | None, limit: int) -> Sequence[tuple[str, str]]:
        """See Source."""
        return await self._messages.list_ids(after, limit)

    async def find_existing(self, points: Sequence[UUID]) -> AbstractCollection[UUID]:
        """See Source."""
        return {uuid_of(id_) for id_ in await self._messages.find_existing([message_id_of(point) for point in points])}

    async def count(self) -> int:
        """See Source."""
        return await self._messages.count()


MEMORY_PREFIX: Final = "memories."
"""The prefix of the names of memory collections."""
MAX_COMPARED: Final = 20_000
"""The number of newest vectors in scope that an index without a graph compares, in addition to `include`."""


class MemoryVectors(VectorCollection):
    """The collection with the vectors of episodes and facts by one embedder."""

    def __init__(self, index: NearestIndex, embedder: Embedder, indexer: Indexer | None = None) -> None:
        """Creates it. Without an indexer, the collection counts as complete."""
        schema = Collection(
            f"{MEMORY_PREFIX}{embedder.handle}",
            dimension=embedder.dimension,
            keyword_fields=("organization_id", "kind", "scope"),
            tenant_field="scope",
        )
        super().__init__(MEMORIES, index, embedder, schema, indexer)

    async def search(
        self,
        organization_id: str,
        kind: str,
        scopes: Sequence[Scope],
        text: str,
        limit: int,
        include: Sequence[str] = (),
    ) -> dict[str, float]:
        """Returns the memories with the nearest vectors, by id with their similarities, best first.

        Args:
            organization_id: the organization.
            kind: `episode` or `fact`.
            scopes: the scopes to search; all if empty.
            text: the text whose vector is compared.
            limit: the largest number of ids.
            include: memories that are compared in any case.

        Raises:
            EmbedderUnavailable: the embedder cannot be reached.
            VectorIndexUnavailable: the index cannot be read now.
        """
        (vector,) = await self.embed([text])
        if not vector.any():
            return {}
        filter_: Filter = all_of(
            Match("organization_id", organization_id),
            Match("kind", kind),
            MatchAny("scope", tuple(scope.key for scope in scopes)) if scopes else None,
        )
        query = SearchQuery(
            mode=SearchMode.VECTOR,
            vector=vector,
            filter=filter_,
            limit=limit,
            with_payload=False,
            newest=MAX_COMPARED,
            also=tuple(_uuid(id_) for id_ in include),
        )
        return {f"{kind}-{hit.id}": hit.score for hit in await self.nearest(query) if hit.score > 0}


class MemorySource:
    """See Source. The records are episodes and facts."""

    keep_without_vector = False
    words_version = None

    def __init__(self, memories: IndexedMemories, vectors: MemoryVectors) -> None:
        self._memories = memories
        self.schema = vectors.schema
        self.embedder = vectors.embedder

    async def read(self, subjects: Sequence[str]) -> Mapping[str, Record]:
        """See Source."""
        return {memory.id: Record(memory.text, _payload(memory)) for memory in await self._memories.read(subjects)}

    def point_id(self, subject: str) -> UUID:
        """See Source."""
        return _uuid(subject)

    def subject_of(self, point_id: UUID) -> str:
        """See Source. Neither an episode nor a fact has this point."""
        return f"fact-{point_id}"

    def group_filter(self, group: str) -> Filter:
        """See Source. A group is a scope."""
        return Match("scope", group)

    async def list_subjects(self, after: str | None, limit: int) -> Sequence[tuple[str, str]]:
        """See Source."""
        return [(id_, id_) for id_ in await self._memories.list_ids(after, limit)]

    async def find_existing(self, points: Sequence[UUID]) -> AbstractCollection[UUID]:
        """See Source."""
        ids = [f"{kind}-{point}" for point in points for kind in ("episode", "fact")]
        return {_uuid(id_) for id_ in await self._memories.find_existing(ids)}

    async def count(self) -> int:
        """See Source."""
        return await self._memories.count()


def _payload(memory: MemoryText) -> dict[str, str]:
    return {
        "organization_id": memory.organization_id,
        "kind": memory.id.partition("-")[0],
        "scope": memory.scope.key,
    }


def _uuid(memory_id: str) -> UUID:
    return UUID(memory_id.partition("-")[2])
