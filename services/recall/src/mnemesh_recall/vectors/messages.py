"""The texts of messages in the vector index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.errors import EmbedderUnavailable
from mnemesh_retrieval.index import NearestIndex, Point

from mnemesh_recall.errors import EmbedderAway
from mnemesh_recall.model.messages import Message
from mnemesh_recall.model.searchable_text import searchable_text
from mnemesh_recall.vectors.vector_points import collection, of_agent, payload, uuid_of

PREFIX: Final = "messages."
"""Begins the names of the collections of messages; what else an index holds is not ours."""


class MessageVectors:
    """The message texts of one embedder in the vector index."""

    def __init__(self, index: NearestIndex, embedder: Embedder) -> None:
        self.index = index
        self.embedder = embedder
        self._made = collection(embedder.handle, embedder.dimension)
        self.collection = self._made.name

    async def exists(self) -> bool:
        """Whether the collection was made before."""
        return self.collection in await self.index.collections()

    async def open(self) -> None:
        """Makes the collection, or opens it; those of other embedders or of another make, which nobody
        keeps up to date, are dropped."""
        for name in await self.index.collections():
            if name.startswith(PREFIX) and name != self.collection:
                await self.index.drop_collection(name)
        await self.index.ensure_collection(self._made)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Vectors of texts. EmbedderAway where the embedder cannot be reached."""
        try:
            return await self.embedder.embed(texts)
        except EmbedderUnavailable as error:
            raise EmbedderAway(self.embedder.handle) from error

    async def put(self, found: Sequence[tuple[str, Message]]) -> None:
        """Writes the messages, each with its organization."""
        if not found:
            return
        texts = [searchable_text(message) for _, message in found]
        vectors = await self.embed(texts)
        points = [
            Point(id=uuid_of(message.id), vector=vector, text="", payload=payload(organization_id, message))
            for (organization_id, message), vector in zip(found, vectors, strict=True)
            if vector.any()
        ]
        wordless = [uuid_of(m.id) for (_, m), vector in zip(found, vectors, strict=True) if not vector.any()]
        if points:
            await self.index.write(self.collection, points)
        if wordless:
            await self.index.delete(self.collection, wordless)

    async def forget(self, ids: Sequence[str]) -> None:
        """Takes messages out."""
        if ids:
            await self.index.delete(self.collection, [uuid_of(id_) for id_ in ids])

    async def forget_agent(self, agent_id: str) -> None:
        """Takes all messages of an agent out."""
        await self.index.delete_where(self.collection, of_agent(agent_id))
