"""Revision 0005 and collections of the old handles: data of `engram/…` embedders is kept."""

from __future__ import annotations

from uuid import UUID

from mnemesh_archival.vectors.points import collection
from mnemesh_kit.ids import new_id
from mnemesh_retrieval.registry import HASHING
from mnemesh_retrieval.server import ServerIndex, ServerSettings
from mnemesh_testkit.fakes.qdrant import fake_qdrant

from .earlier_index import EARLIER, fill_index


async def test_qdrant_collection_of_the_old_handle_is_used() -> None:
    archive, passage = new_id("archive"), new_id("passage")
    point = UUID(passage.removeprefix("passage-"))
    async with fake_qdrant() as server:
        index = await ServerIndex.open(ServerSettings(url="http://127.0.0.1:6333", grpc_port=server.port))
        await fill_index(index, archive, passage)
        schema = collection(HASHING, 256, await index.collections())
        await index.ensure_collection(schema)
        (found,) = await index.get(schema.name, [point])
        assert found.payload["text"] == "an oak"
        assert await index.collections() == (f"passages:{EARLIER}",)
        await index.close()
