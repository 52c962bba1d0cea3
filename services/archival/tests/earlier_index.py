"""The vector index of versions before the product was renamed, and values that their rows share with it."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from mnemesh_kit.principal import DEFAULT_PRINCIPAL
from mnemesh_retrieval.index import Collection, Point, VectorIndex, instant
from mnemesh_retrieval.registry import HASHING, make_embedder

EARLIER = "engram/hashing-256"
"""HASHING before the product was renamed."""
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
"""The time of every row and passage."""
STORED = "2026-01-02 03:04:05.000000"
"""NOW in a row."""
ORG = DEFAULT_PRINCIPAL.organization_id


async def fill_index(index: VectorIndex, archive: str, *passages: str) -> None:
    """Creates the collection of EARLIER with these passages."""
    collection = Collection(
        f"passages:{EARLIER}",
        256,
        keyword_fields=("organization_id", "archive_id", "tags", "agent_id", "file_id", "folder_id", "source"),
        datetime_fields=("created_at",),
        text_fields=("text",),
        tenant_field="archive_id",
    )
    await index.ensure_collection(collection)
    (vector,) = await make_embedder(HASHING).embed(["an oak"])
    payload = {
        "organization_id": ORG, "archive_id": archive, "text": "an oak", "tags": ["tree"], "metadata": '{"a": 1}',
        "source": "OWNER", "agent_id": None, "file_id": None, "folder_id": None, "file_name": "trees.txt",
        "chunk_index": None, "created_at": instant(NOW), "updated_at": instant(NOW),
    }  # fmt: skip
    points = [
        Point(UUID(passage.removeprefix("passage-")), vector, "an oak", {**payload, "passage_id": passage})
        for passage in passages
    ]
    await index.write(collection.name, points)
