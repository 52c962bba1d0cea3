"""The vectors and payload indexes of collections in the engine."""

from __future__ import annotations

import json
from pathlib import Path

import qdrant_edge as qe

from mnemesh_retrieval.errors import CollectionMismatch
from mnemesh_retrieval.index import Collection

DENSE = "dense"
TEXT = "text"


def engine_config(dimension: int) -> qe.EdgeConfig:
    """Returns the configuration with which every shard is created and loaded."""
    return qe.EdgeConfig(
        vectors={DENSE: qe.EdgeVectorParams(size=dimension, distance=qe.Distance.Cosine)},
        sparse_vectors={TEXT: qe.EdgeSparseVectorParams(modifier=qe.Modifier.Idf)},
        max_search_threads=1,
        wal_enabled=True,
    )


def stored_dimension(path: Path) -> int:
    """Returns the vector length of the shard at `path`."""
    config = json.loads((path / "edge_config.json").read_text())
    return int(config["vectors"][DENSE]["size"])


def require_dimension(collection: Collection, stored: int) -> None:
    """Raises CollectionMismatch if the stored dimension differs from that of the collection."""
    if stored != collection.dimension:
        raise CollectionMismatch(
            f"collection {collection.name!r} has vectors of {stored} numbers, not of {collection.dimension}"
        )


def add_missing_indexes(engine: qe.EdgeShard, collection: Collection) -> None:
    """Creates the payload indexes of the collection that the shard does not have."""
    present = engine.info().payload_schema
    for name in collection.keyword_fields:
        if name not in present:
            tenant = name == collection.tenant_field
            engine.update(qe.UpdateOperation.create_field_index(name, qe.KeywordIndexParams(is_tenant=tenant)))
    for name in collection.uuid_fields:
        if name not in present:
            tenant = name == collection.tenant_field
            engine.update(qe.UpdateOperation.create_field_index(name, qe.UuidIndexParams(is_tenant=tenant)))
    for name in collection.datetime_fields:
        if name not in present:
            engine.update(qe.UpdateOperation.create_field_index(name, qe.DatetimeIndexParams()))
    for name in collection.text_fields:
        if name not in present:
            folded = qe.TextIndexParams(tokenizer=qe.TokenizerType.Word, lowercase=True, ascii_folding=True)
            engine.update(qe.UpdateOperation.create_field_index(name, folded))
