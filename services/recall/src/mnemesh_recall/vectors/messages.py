"""The vectors of messages, and the messages as the records from which they are derived."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

from mnemesh_retrieval.embedder import Embedder
from mnemesh_retrieval.filters import Filter
from mnemesh_retrieval.index import Collection as IndexCollection
from mnemesh_retrieval.index import NearestIndex
from mnemesh_retrieval.indexing.records import Record

from mnemesh_recall.model.outbox import MESSAGES
from mnemesh_recall.model.searchable_text import embedded_text
from mnemesh_recall.store.base import IndexedMessages
from mnemesh_recall.vectors.collections import VectorCollection
from mnemesh_recall.vectors.status import IndexStatus
from mnemesh_recall.vectors.vector_points import collection, message_id_of, of_agent, payload, uuid_of

PREFIX: Final = "messages."
"""The prefix of the names of message collections. Other collections may belong to other services."""


class MessageVectors(VectorCollection):
    """The collection with the vectors of messages by one embedder."""

    def __init__(self, index: NearestIndex, embedder: Embedder, status: IndexStatus | None = None) -> None:
        """Creates it. Without a status, the collection counts as complete."""
        super().__init__(MESSAGES, index, embedder, collection(embedder.handle, embedder.dimension), status)


class MessageSource:
    """See Source. The records are the messages with searchable text."""

    keep_without_vector = False
    words_version = None

    def __init__(self, messages: IndexedMessages, vectors: MessageVectors) -> None:
        self._messages = messages
        self._vectors = vectors

    @property
    def schema(self) -> IndexCollection:
        """See Source."""
        return self._vectors.schema

    @property
    def embedder(self) -> Embedder:
        """See Source."""
        return self._vectors.embedder

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

    async def existing(self, points: Sequence[UUID]) -> Collection[UUID]:
        """See Source."""
        return {uuid_of(id_) for id_ in await self._messages.existing([message_id_of(point) for point in points])}

    async def count(self) -> int:
        """See Source."""
        return await self._messages.count()
