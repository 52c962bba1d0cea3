"""Revision 0005 and collections of the old handles: data of `engram/…` embedders is kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from mnemesh_archival.model.inserts import InsertTarget, new_passage
from mnemesh_archival.model.operations import DropArchive, InsertPoints
from mnemesh_archival.model.passages import PassageDraft
from mnemesh_archival.store.sql import operation_rows, reembedding_rows
from mnemesh_archival.vectors.embedders import Embedders
from mnemesh_archival.vectors.passages import VectorPassageStore
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database
from mnemesh_retrieval.registry import HASHING, EmbedderSettings, make_embedder
from mnemesh_retrieval.server import ServerIndex, ServerSettings
from mnemesh_testkit.databases.revisions import at_revision
from mnemesh_testkit.fakes.qdrant import fake_qdrant

from .test_migrations import EARLIER, ORG, fill_index

TIME = "2026-01-02 03:04:05.000000"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_operations_and_changes_get_the_new_handles(database_url: str) -> None:
    archive, passage_id = new_id("archive"), new_id("passage")
    draft = PassageDraft(text=f'"embedder":"{EARLIER}" and /{EARLIER}')
    passage = new_passage(draft, InsertTarget(archive_id=archive), passage_id, 0, NOW)
    point = UUID(passage_id.removeprefix("passage-"))
    insert = InsertPoints("operation-1", ORG, EARLIER, (passage,), (point,))
    drop = DropArchive(f"vacate-{archive}/{EARLIER}", ORG, EARLIER, archive)
    rows: dict[str, list[dict[str, Any]]] = {
        "reembeddings": [
            {
                "organization_id": ORG, "archive_id": archive, "generation": 1, "embedder": EARLIER, "dimension": 256,
                "started_at": TIME, "claimed_until": TIME,
            }
        ],
        "operations": [
            {
                "organization_id": ORG, "id": operation.id, "kind": type(operation).__name__,
                "body": msgspec.json.encode(operation).decode(), "created_at": TIME, "claimed_until": TIME,
            }
            for operation in (insert, drop)
        ],
    }  # fmt: skip
    await at_revision(database_url, "mnemesh_archival", "0004", rows)
    database = Database.open(database_url)
    await database.migrate("mnemesh_archival")

    def read(conn: sa.Connection) -> tuple[Any, Any, Any]:
        return (
            operation_rows.by_id(conn, ORG, "operation-1"),
            reembedding_rows.is_drop_scheduled(conn, ORG, archive, HASHING),
            reembedding_rows.target(conn, ORG, archive),
        )

    operation, scheduled, target = await database.read(read)
    await database.close()
    assert operation == InsertPoints("operation-1", ORG, HASHING, (passage,), (point,))
    assert scheduled
    assert target == HASHING


async def test_a_qdrant_collection_of_the_old_handle_is_used() -> None:
    archive, passage = new_id("archive"), new_id("passage")
    point = UUID(passage.removeprefix("passage-"))
    async with fake_qdrant() as server:
        index = await ServerIndex.open(ServerSettings(url="http://127.0.0.1:6333", grpc_port=server.port))
        await fill_index(index, archive, passage, point)
        store = VectorPassageStore(index, Embedders(make_embedder(HASHING), EmbedderSettings()))
        (found,) = (await store.get(HASHING, [point], with_embedding=False)).values()
        assert found.text == "an oak"
        assert await index.collections() == (f"passages:{EARLIER}",)
        await index.close()
