"""Conversion between proto messages and the types of the model: ids, archives, passages, searches, vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message
from mnemesh.archival.v1 import archives_pb2, archives_service_pb2, passages_service_pb2
from mnemesh.archival.v1 import embeddings_service_pb2 as embeddings_pb
from mnemesh.archival.v1 import passages_service_pb2 as pb
from mnemesh.types.v1 import audit_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import (
    date_range,
    optional_timestamp_from_proto,
    optional_timestamp_to_proto,
    timestamp_from_proto,
    timestamp_to_proto,
    zone_from_name,
)
from mnemesh_retrieval.time_expressions.resolver import TimeRange

from mnemesh_archival.model.archives import (
    CLIENT_PROVENANCE,
    Archive,
    ArchiveDraft,
    ArchiveFilter,
    Provenance,
    RestoredArchive,
    Summary,
)
from mnemesh_archival.model.continuity import Continuity
from mnemesh_archival.model.embeddings import EmbeddedTexts
from mnemesh_archival.model.inserts import InsertOutcome, InsertTarget
from mnemesh_archival.model.passages import (
    EmbedderIdentity,
    GivenVector,
    Passage,
    PassageDraft,
    PassageFilter,
    PassageSource,
    validated_vector,
)
from mnemesh_archival.model.search import PassageHit, PassageSearch, SearchKind


def archive_id_from_proto(value: str, field: str = "archive_id") -> str:
    """Returns an archive id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "archive", field)


def agent_id_from_proto(value: str, field: str = "agent_id") -> str:
    """Returns an agent id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "agent", field)


def agent_ids_from_proto(values: Sequence[str], field: str = "agent_ids") -> list[str]:
    """Returns agent ids. Raises InvalidArgument if one is not well-formed."""
    return [agent_id_from_proto(value, field) for value in values]


def passage_id_from_proto(value: str, field: str = "passage_id") -> str:
    """Returns a passage id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "passage", field)


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


def passage_to_proto(passage: Passage) -> archives_pb2.Passage:
    """Returns a passage as a message."""
    return archives_pb2.Passage(
        id=passage.id,
        archive_id=passage.archive_id,
        text=passage.text,
        tags=passage.tags,
        metadata=passage.metadata,
        source=archives_pb2.PassageSource.ValueType(passage.source.value),
        agent_id=passage.agent_id,
        file_id=passage.file_id,
        folder_id=passage.folder_id,
        file_name=passage.file_name,
        chunk_index=passage.chunk_index,
        embedding=passage.embedding,
        embedded_by=_identity_to_proto(passage.embedded_by),
        create_time=timestamp_to_proto(passage.created_at),
        update_time=timestamp_to_proto(passage.updated_at),
    )


def passage_draft_from_proto(message: archives_pb2.Passage, field: str) -> PassageDraft:
    """Returns the fields of a passage that callers set.

    Args:
        message: the passage.
        field: the path of the passage in the request, such as `passages[0]`.

    Raises:
        InvalidArgument: an unknown source, or a time out of range.
    """
    return PassageDraft(
        text=message.text,
        id=message.id or None,
        tags=tuple(message.tags),
        metadata=_optional(message, "metadata"),
        source=_source_from_proto(message.source, f"{field}.source"),
        agent_id=_optional(message, "agent_id"),
        file_id=_optional(message, "file_id"),
        folder_id=_optional(message, "folder_id"),
        file_name=_optional(message, "file_name"),
        chunk_index=message.chunk_index if message.HasField("chunk_index") else None,
        created_at=optional_timestamp_from_proto(message, "create_time", f"{field}.create_time"),
    )


def passage_drafts_from_proto(
    messages: Sequence[archives_pb2.Passage], *, restores: bool = False
) -> list[PassageDraft | InvalidArgument]:
    """Returns the passages of a batch, with the error in place of each that cannot be converted.

    Raises:
        InvalidArgument: a vector is bad. A caller that has such vectors has stored or read them wrongly.
    """
    drafts: list[PassageDraft | InvalidArgument] = []
    for index, message in enumerate(messages):
        field = f"passages[{index}]"
        vector = _vector_from_proto(message, field)
        try:
            draft = passage_draft_from_proto(message, field)
            if restores:
                updated_at = optional_timestamp_from_proto(message, "update_time", f"{field}.update_time")
                draft = replace(draft, updated_at=updated_at)
            drafts.append(replace(draft, vector=vector) if vector is not None else draft)
        except InvalidArgument as error:
            drafts.append(error)
    return drafts


def insert_target_from_proto(request: passages_service_pb2.InsertPassagesRequest) -> InsertTarget:
    """Returns the target of an insert. Raises InvalidArgument if it is missing or not well-formed."""
    match request.WhichOneof("target"):
        case "archive_id":
            return InsertTarget(archive_id=archive_id_from_proto(request.archive_id))
        case "agent_id":
            return InsertTarget(agent_id=agent_id_from_proto(request.agent_id))
        case _:
            raise InvalidArgument("archive_id or agent_id is required.", field="target")


def continuity_from_proto(value: int) -> Continuity:
    """Returns the continuity that a request states. Raises InvalidArgument if it is unknown."""
    if value not in passages_service_pb2.PassageContinuity.values():
        raise InvalidArgument("continuity must be UNSPECIFIED, CONTINUOUS or SEPARATE.", field="continuity")
    return Continuity(value)


def insert_outcome_to_proto(outcome: InsertOutcome) -> passages_service_pb2.InsertResult:
    """Returns the result for one passage of a batch as a message."""
    if outcome.failure is not None:
        failure = passages_service_pb2.InsertFailure(reason=outcome.failure.reason, message=outcome.failure.message)
        return passages_service_pb2.InsertResult(failure=failure)
    if outcome.passage is not None:
        passage = passage_to_proto(outcome.passage)
        use = passages_service_pb2.VectorUse.ValueType(outcome.vector_use.value)
        return passages_service_pb2.InsertResult(passage=passage, duplicate=outcome.duplicate, vector_use=use)
    deleted = archives_pb2.Passage(id=outcome.deleted_id or "", archive_id=outcome.archive_id)
    return passages_service_pb2.InsertResult(passage=deleted, duplicate=outcome.duplicate, deleted=True)


def passage_filter_from_proto(message: passages_service_pb2.PassageFilter) -> PassageFilter:
    """Returns a filter of passages.

    Raises:
        InvalidArgument: an unknown enum value, an id that is not well-formed, or a date or time zone that is not one.
    """
    if message.tag_match not in passages_service_pb2.TagMatch.values():
        raise InvalidArgument("filter.tag_match must be ANY or ALL.", field="filter.tag_match")
    dates = date_range(
        _optional(message, "start_date"),
        _optional(message, "end_date"),
        _optional(message, "time_zone"),
        prefix="filter.",
    )
    file_id, folder_id = _optional(message, "file_id"), _optional(message, "folder_id")
    agent_id, archive_id = _optional(message, "agent_id"), _optional(message, "archive_id")
    return PassageFilter(
        agent_id=agent_id_from_proto(agent_id, "filter.agent_id") if agent_id is not None else None,
        archive_id=archive_id_from_proto(archive_id, "filter.archive_id") if archive_id is not None else None,
        tags=tuple(message.tags),
        every_tag=message.tag_match == passages_service_pb2.TAG_MATCH_ALL,
        file_id=require_id(file_id, "file", "filter.file_id") if file_id is not None else None,
        folder_id=require_id(folder_id, "source", "filter.folder_id") if folder_id is not None else None,
        since=dates.start,
        until=dates.end,
        sources=tuple(dict.fromkeys(_source_from_proto(value, "filter.sources") for value in message.sources)),
        archive_ids=tuple(
            dict.fromkeys(
                archive_id_from_proto(value, f"filter.archive_ids[{index}]")
                for index, value in enumerate(message.archive_ids)
            )
        ),
        file_ids=tuple(
            dict.fromkeys(
                require_id(value, "file", f"filter.file_ids[{index}]") for index, value in enumerate(message.file_ids)
            )
        ),
    )


def require_passage_order(order_by: int) -> None:
    """Raises InvalidArgument if the order of passages is unknown. The only order is by creation time."""
    if order_by not in passages_service_pb2.PassageOrderBy.values():
        raise InvalidArgument("order_by is not a known order.", field="order_by")


def _vector_from_proto(message: archives_pb2.Passage, field: str) -> GivenVector | None:
    if not message.embedding and not message.HasField("embedded_by"):
        return None
    if not message.HasField("embedded_by"):
        missing = f"{field}.embedded_by"
        raise InvalidArgument(f"{missing} must name the embedder of {field}.embedding.", field=missing)
    identity = message.embedded_by
    return validated_vector(message.embedding, identity.handle, identity.dimension, field)


def _identity_to_proto(identity: EmbedderIdentity | None) -> archives_pb2.EmbedderIdentity | None:
    if identity is None:
        return None
    return archives_pb2.EmbedderIdentity(handle=identity.handle, dimension=identity.dimension)


def _source_from_proto(value: int, field: str) -> PassageSource:
    try:
        return PassageSource(value)
    except ValueError:
        raise InvalidArgument(f"{field} is not a known source.", field=field) from None


_KINDS = {
    pb.PASSAGE_SEARCH_MODE_UNSPECIFIED: SearchKind.HYBRID,
    pb.PASSAGE_SEARCH_MODE_HYBRID: SearchKind.HYBRID,
    pb.PASSAGE_SEARCH_MODE_TEXT: SearchKind.TEXT,
    pb.PASSAGE_SEARCH_MODE_VECTOR: SearchKind.VECTOR,
}


def passage_search_from_proto(request: pb.SearchPassagesRequest, offset: int) -> PassageSearch:
    """Returns a search. `offset` is the number of hits of earlier pages.

    Raises:
        InvalidArgument: an unknown mode, a time out of range, or an invalid filter.
    """
    return PassageSearch(
        query=request.query,
        further_queries=tuple(request.further_queries),
        kind=search_kind_from_proto(request.mode),
        filter=passage_filter_from_proto(request.filter),
        limit=request.limit,
        offset=offset,
        before=request.passages_before,
        after=request.passages_after,
        zone=zone_from_name(request.filter.time_zone, "filter.time_zone"),
        reference_time=optional_timestamp_from_proto(request, "reference_time", "reference_time"),
        with_embedding=request.include_embedding,
        rerank=request.rerank if request.HasField("rerank") else None,
    )


def search_kind_from_proto(mode: int) -> SearchKind:
    """Returns the kind of a search. Raises InvalidArgument if it is unknown."""
    if mode not in _KINDS:
        raise InvalidArgument("mode is not a known search mode.", field="mode")
    return _KINDS[pb.PassageSearchMode.ValueType(mode)]


def passage_hit_to_proto(hit: PassageHit) -> pb.PassageHit:
    """Returns a hit as a message."""
    return pb.PassageHit(
        passage=passage_to_proto(hit.passage),
        score=hit.score,
        vector_rank=hit.vector_rank,
        text_rank=hit.text_rank,
        text_score=hit.text_score,
        vector_score=hit.vector_score,
        rerank_score=hit.rerank_score,
        before=[passage_to_proto(each) for each in hit.before],
        after=[passage_to_proto(each) for each in hit.after],
    )


def time_range_to_proto(time: TimeRange) -> pb.ResolvedTimeRange:
    """Returns a range of time as a message."""
    return pb.ResolvedTimeRange(
        expression=time.expression,
        start_time=timestamp_to_proto(time.start) if time.start is not None else None,
        end_time=timestamp_to_proto(time.end) if time.end is not None else None,
    )


def embedded_texts_to_proto(embedded: EmbeddedTexts) -> embeddings_pb.EmbedTextsResponse:
    """Returns the vectors of texts as a response."""
    return embeddings_pb.EmbedTextsResponse(
        embedder=embedded.embedder,
        dimension=embedded.dimension,
        embeddings=[embeddings_pb.Embedding(values=vector.tolist()) for vector in embedded.vectors],
        tokens=embedded.tokens,
    )
