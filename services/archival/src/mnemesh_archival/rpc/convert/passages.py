"""Conversion of passages, their filters and search results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from google.protobuf.message import Message
from mnemesh.archival.v1 import archives_pb2, passages_service_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import date_range, optional_timestamp_from_proto, timestamp_to_proto

from mnemesh_archival.model.continuity import Continuity
from mnemesh_archival.model.given_vectors import EmbedderIdentity, GivenVector, validated_vector
from mnemesh_archival.model.inserts import InsertOutcome, InsertTarget
from mnemesh_archival.model.passages import Passage, PassageDraft, PassageFilter, PassageSource
from mnemesh_archival.rpc.convert.ids import agent_id_from_proto, archive_id_from_proto


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


def _optional(message: Message, name: str) -> str | None:
    return str(getattr(message, name)) if message.HasField(name) else None
