"""Conversion of archives, their filters and summaries."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from mnemesh.archival.v1 import archives_pb2, archives_service_pb2, passages_service_pb2
from mnemesh.types.v1 import audit_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_from_proto, timestamp_to_proto

from mnemesh_archival.model.archives import (
    CLIENT_PROVENANCE,
    Archive,
    ArchiveDraft,
    ArchiveFilter,
    Provenance,
    RestoredArchive,
    Summary,
)
from mnemesh_archival.rpc.convert.ids import agent_id_from_proto, archive_id_from_proto


def archive_to_proto(archive: Archive) -> archives_pb2.Archive:
    """Returns an archive as a message."""
    return archives_pb2.Archive(
        id=archive.id,
        name=archive.name,
        description=archive.description,
        embedder=archive.embedder,
        dimension=archive.dimension,
        metadata=archive.metadata,
        passage_count=archive.passage_count,
        deduplicate=archive.deduplicate,
        reembedding=_reembedding_to_proto(archive),
        created_for_agent_id=archive.created_for_agent_id,
        create_time=timestamp_to_proto(archive.created_at),
        update_time=timestamp_to_proto(archive.updated_at),
        provenance=audit_pb2.Provenance(
            created_by_id=archive.provenance.created_by_id,
            last_updated_by_id=archive.provenance.last_updated_by_id,
            **{name: getattr(archive.provenance, name) for name in CLIENT_PROVENANCE},
        ),
    )


def archive_draft_from_proto(message: archives_pb2.Archive) -> ArchiveDraft:
    """Returns the fields of an archive that callers set."""
    provenance: dict[str, Any] = {name: _optional(message.provenance, name) for name in CLIENT_PROVENANCE}
    return ArchiveDraft(
        name=message.name,
        description=_optional(message, "description"),
        embedder=message.embedder,
        metadata=_optional(message, "metadata"),
        deduplicate=message.deduplicate,
        provenance=Provenance(**provenance),
    )


def restored_from_proto(message: archives_pb2.Archive) -> RestoredArchive:
    """Returns the values of an archive that was created elsewhere. Raises InvalidArgument for a bad id or time."""
    return RestoredArchive(
        id=archive_id_from_proto(message.id, "archive.id"),
        created_at=timestamp_from_proto(message.create_time, "archive.create_time"),
        updated_at=timestamp_from_proto(message.update_time, "archive.update_time"),
        created_by_id=message.provenance.created_by_id,
        last_updated_by_id=message.provenance.last_updated_by_id,
    )


def archive_filter_from_proto(message: archives_service_pb2.ArchiveFilter) -> ArchiveFilter:
    """Returns a filter of archives. Raises InvalidArgument for an id that is not well-formed."""
    return ArchiveFilter(
        agent_id=agent_id_from_proto(message.agent_id, "filter.agent_id") if message.HasField("agent_id") else None,
        name=_optional(message, "name"),
        archive_ids=tuple(archive_id_from_proto(value, "filter.archive_ids") for value in message.archive_ids),
        name_search=_optional(message, "name_search"),
    )


def by_name_from_proto(order_by: int) -> bool:
    """Returns whether archives are listed by name instead of creation time. Raises InvalidArgument if unknown."""
    if order_by not in archives_service_pb2.ArchiveOrderBy.values():
        raise InvalidArgument("order_by is not a known order.", field="order_by")
    return order_by == archives_service_pb2.ARCHIVE_ORDER_BY_NAME


def require_agent_order(order_by: int) -> None:
    """Raises InvalidArgument if the order of an archive's agents is unknown."""
    if order_by not in archives_service_pb2.ArchiveAgentOrderBy.values():
        raise InvalidArgument("order_by is not a known order.", field="order_by")


def summary_to_proto(summary: Summary) -> passages_service_pb2.GetArchivalSummaryResponse:
    """Returns a summary as a response."""
    return passages_service_pb2.GetArchivalSummaryResponse(
        not_modified=summary.not_modified,
        revision=summary.revision,
        passage_count=summary.passage_count,
        tags=summary.tags,
        update_time=optional_timestamp_to_proto(summary.updated_at),
    )


def _reembedding_to_proto(archive: Archive) -> archives_pb2.ReembeddingState | None:
    progress = archive.reembedding
    if progress is None:
        return None
    return archives_pb2.ReembeddingState(
        target_embedder=progress.embedder, done_passages=progress.done, total_passages=progress.total
    )


def _optional(message: Message, name: str) -> str | None:
    return str(getattr(message, name)) if message.HasField(name) else None
