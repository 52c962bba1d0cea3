"""Archives of Letta and their passages as records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Set

from mnemesh.agents.v1.agent_records_pb2 import AgentRecord, PassageRecord
from mnemesh.archival.v1.archives_pb2 import PASSAGE_SOURCE_AGENT, Archive, EmbedderIdentity, Passage
from mnemesh_cli.letta.database import LettaDatabase
from mnemesh_cli.letta.report import Report
from mnemesh_cli.letta.vectors import same_model, vector_of
from mnemesh_client.letta_files.agents import embedder_handle
from mnemesh_client.letta_files.values import Row, json_text, optional_text, timestamp
from mnemesh_kit.unicode import well_formed


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
