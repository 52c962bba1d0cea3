"""The names, vectors and payload indexes of collections on the server."""

from __future__ import annotations

from urllib.parse import quote, unquote

from qdrant_client import AsyncQdrantClient, models

from mnemesh_retrieval.errors import CollectionMismatch
from mnemesh_retrieval.index import Collection
from mnemesh_retrieval.server.features import Features, runs_field

DENSE = "dense"
TEXT = "text"


def server_name(prefix: str, name: str) -> str:
    """Returns the name of a collection on the server, which allows fewer characters."""
    return f"{prefix}.{quote(name, safe='').replace('%', '=')}"


def own_name(prefix: str, name: str) -> str | None:
    """Returns the name of a collection from its name on the server; None if it has another prefix."""
    head = f"{prefix}."
    return unquote(name.removeprefix(head).replace("=", "%")) if name.startswith(head) else None


async def ensure(client: AsyncQdrantClient, name: str, collection: Collection, features: Features) -> None:
    """Creates a collection, or adds its missing payload indexes. Raises CollectionMismatch if the dimension differs."""
    if not await client.collection_exists(name):
        try:
            await client.create_collection(
                name,
                vectors_config={DENSE: models.VectorParams(size=collection.dimension, distance=models.Distance.COSINE)},
                sparse_vectors_config={TEXT: models.SparseVectorParams(modifier=models.Modifier.IDF)},
            )
        except Exception:
            # Another replica may have created it first.
            if not await client.collection_exists(name):
                raise
    info = await client.get_collection(name)
    vectors = info.config.params.vectors
    stored = vectors[DENSE].size if isinstance(vectors, dict) else None
    if stored != collection.dimension:
        raise CollectionMismatch(
            f"collection {collection.name!r} has vectors of {stored} numbers, not of {collection.dimension}"
        )
    for field, params in _payload_indexes(collection, features).items():
        if field not in info.payload_schema:
            await client.create_payload_index(name, field, params, wait=True)


def _payload_indexes(collection: Collection, features: Features) -> dict[str, models.PayloadSchemaParams]:
    indexes: dict[str, models.PayloadSchemaParams] = {}
    for field in collection.keyword_fields:
        tenant = field == collection.tenant_field
        # The server stores the points of one tenant together.
        indexes[field] = models.KeywordIndexParams(
            type=models.KeywordIndexType.KEYWORD, is_tenant=True if tenant else None
        )
    for field in collection.uuid_fields:
        tenant = field == collection.tenant_field
        indexes[field] = models.UuidIndexParams(type=models.UuidIndexType.UUID, is_tenant=True if tenant else None)
    for field in collection.datetime_fields:
        indexes[field] = models.DatetimeIndexParams(type=models.DatetimeIndexType.DATETIME)
    for field in collection.text_fields:
        indexes[field] = models.TextIndexParams(
            type=models.TextIndexType.TEXT, tokenizer=models.TokenizerType.WORD, lowercase=True, ascii_folding=True
        )
        if not features.substrings:
            indexes[runs_field(field)] = models.TextIndexParams(
                type=models.TextIndexType.TEXT, tokenizer=models.TokenizerType.WORD, phrase_matching=True
            )
    return indexes
