"""Archives of Letta and their passages as records."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import AsyncIterator, Set
from typing import Final

from mnemesh.agents.v1.agent_records_pb2 import AgentRecord, PassageRecord
from mnemesh.archival.v1.archives_pb2 import PASSAGE_SOURCE_AGENT, Archive, EmbedderIdentity, Passage
from mnemesh_cli.letta.database import LettaDatabase
from mnemesh_cli.letta.report import Report
from mnemesh_client.letta_files.agents import embedder_handle
from mnemesh_client.letta_files.values import Row, json_text, optional_text, timestamp
from mnemesh_kit.unicode import well_formed

_PADDED: Final = 4096
"""Letta fills vectors up with zeros to this number of dimensions."""


def same_model(handle: str, embedders: Set[str]) -> str | None:
    """Returns the embedder of the mesh with the model of a handle of Letta; None if there is none.

    Another provider may serve the same model: the last part of the handle names it, without the tag ":latest".
    """
    if handle in embedders:
        return handle
    return min((known for known in embedders if _model(known) == _model(handle)), default=None)


def _model(handle: str) -> str:
    return handle.rsplit("/", maxsplit=1)[-1].removesuffix(":latest")


def vector_of(stored: object, dimensions: int | None) -> list[float] | None:
    """Returns a stored vector without the zeros that fill it up; None if there is none with these dimensions.

    A vector of zeros, and one with numbers that are not finite, is none.

    Args:
        stored: the text of a pgvector value, or the 32-bit floats that SQLite holds.
        dimensions: those of the embedding model.
    """
    values = _values(stored)
    if not dimensions or len(values) < dimensions:
        return None
    if len(values) > dimensions and (len(values) != _PADDED or any(values[dimensions:])):
        return None
    return values[:dimensions] if any(values) and all(map(math.isfinite, values)) else None


def _values(stored: object) -> list[float]:
    if isinstance(stored, bytes):
        return list(struct.unpack(f"<{len(stored) // 4}f", stored)) if len(stored) % 4 == 0 else []
    if isinstance(stored, str) and stored.startswith("["):
        return [float(value) for value in json.loads(stored)]
    return []


async def archive_records(
    database: LettaDatabase, ids: list[str], embedders: Set[str], report: Report
) -> AsyncIterator[AgentRecord]:
    """Yields the archives with these ids, then their passages, the oldest first.

    Args:
        database: with the organization selected.
        ids: of the archives.
        embedders: the handles that the mesh has. The vectors of other models are left out.
        report: counts the passages without a usable vector.
    """
    rows = await database.all("archives", order=("created_at", "id"), id=ids)
    for row in rows:
        yield AgentRecord(archive=archive(row, embedders))
    for row in rows:
        config = row.get("embedding_config") or {}
        async for item in database.rows("archival_passages", order=("created_at", "id"), archive_id=row["id"]):
            yield AgentRecord(passage=_passage(item, config, embedders, report))


def archive(row: Row, embedders: Set[str]) -> Archive:
    """Returns an archive. An embedder whose model the mesh does not have is left out: the mesh chooses its own."""
    handle = embedder_handle(row.get("embedding_config") or {}) or ""
    return Archive(
        id=row["id"],
        name=row["name"],
        description=optional_text(row, "description"),
        embedder=same_model(handle, embedders) or "",
        metadata=json_text(row.get("metadata_")),
        create_time=timestamp(row.get("created_at")),
        update_time=timestamp(row.get("updated_at")),
    )


def passage(row: Row) -> Passage:
    """Returns a passage without its vector."""
    return Passage(
        id=row["id"],
        archive_id=row["archive_id"],
        text=well_formed(row["text"]),
        tags=list(dict.fromkeys(row.get("tags") or ())),
        metadata=json_text(row.get("metadata_")),
        source=PASSAGE_SOURCE_AGENT,
        create_time=timestamp(row.get("created_at")),
        update_time=timestamp(row.get("updated_at")),
    )


def _passage(row: Row, archive_config: Row, embedders: Set[str], report: Report) -> PassageRecord:
    config = row.get("embedding_config") or archive_config
    handle = embedder_handle(config) or ""
    embedder = same_model(handle, embedders)
    vector = vector_of(row.get("embedding"), config.get("embedding_dim"))
    record = PassageRecord(passage=passage(row))
    if embedder is None:
        report.without_vector.add(f"the mesh has no embedder with the model {handle}")
    elif vector is None:
        report.without_vector.add("Letta has no usable vector of them")
    else:
        record.passage.embedding.extend(vector)
        record.passage.embedded_by.CopyFrom(EmbedderIdentity(handle=embedder, dimension=len(vector)))
    return record
