"""The vectors of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.errors import EmbedderUnavailable as EmbedderUnreachable
from mnemesh_retrieval.index import NearestIndex, Point
from mnemesh_types.messages import Message

from mnemesh_recall.errors import EmbedderUnavailable
from mnemesh_recall.model.searchable_text import searchable_text
from mnemesh_recall.vectors.vector_points import collection, of_agent, payload, uuid_of

PREFIX: Final = "messages."
"""The prefix of the names of message collections. Other collections may belong to other services."""


class MessageVectors:
    """The collection with the vectors of messages by one embedder."""

    def __init__(self, index: NearestIndex, embedder: Embedder) -> None:
        self.index = index
        self.embedder = embedder
        self._definition = collection(embedder.handle, embedder.dimension)
        self.collection = self._definition.name

    async def exists(self) -> bool:
        """Returns whether the index has the collection."""
        return self.collection in await self.index.collections()

    async def open(self) -> None:
        """Opens the collection, or creates it. Collections of other embedders and formats are dropped."""
        for name in await self.index.collections():
            if name.startswith(PREFIX) and name != self.collection:
                await self.index.drop_collection(name)
        await self.index.ensure_collection(self._definition)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Returns the vectors of texts. Raises EmbedderUnavailable if the embedder cannot be reached."""
        try:
            return await self.embedder.embed(texts)
        except EmbedderUnreachable as error:
            raise EmbedderUnavailable(self.embedder.handle) from error

    async def put(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Writes messages, each with its organization. A message with an empty vector is removed."""
        if not messages:
            return
        vectors = await self.embed([searchable_text(message) for _, message in messages])
        points = [
            Point(id=uuid_of(message.id), vector=vector, text="", payload=payload(organization_id, message))
            for (organization_id, message), vector in zip(messages, vectors, strict=True)
            if vector.any()
        ]
        if points:
            await self.index.write(self.collection, points)
        await self.remove([m.id for (_, m), vector in zip(messages, vectors, strict=True) if not vector.any()])

    async def remove(self, ids: Sequence[str]) -> None:
        """Removes messages."""
        if ids:
            await self.index.delete(self.collection, [uuid_of(id_) for id_ in ids])

    async def remove_agent(self, agent_id: str) -> None:
        """Removes all messages of an agent."""
        await self.index.delete_where(self.collection, of_agent(agent_id))
