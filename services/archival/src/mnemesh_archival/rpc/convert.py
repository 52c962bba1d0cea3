"""Conversion between proto messages and the types of the model: ids, archives, passages, searches, vectors of texts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mnemesh.archival.v1 import archives_pb2, archives_service_pb2, passages_service_pb2
from mnemesh.archival.v1 import embeddings_service_pb2 as embeddings_pb
from mnemesh.archival.v1 import passages_service_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_kit.time import (
    date_range,
    optional_timestamp_from_proto,
    zone_from_name,
)
from mnemesh_retrieval.index import SearchMode
from mnemesh_retrieval.time_expressions.resolver import TimeRange
from mnemesh_types.archival import ArchiveFilter, PassageSource
from mnemesh_types.twin import EPOCH, Conversion, enum_from_proto, optional_field

from mnemesh_archival.model.inserts import InsertOutcome, InsertTarget
from mnemesh_archival.model.passages import Continuity, GivenVector, Passage, PassageFilter, validated_vector
from mnemesh_archival.model.ranking import PassageSearch
from mnemesh_archival.usecases.archives import EmbeddedTexts


def archive_filter_from_proto(message: archives_service_pb2.ArchiveFilter) -> ArchiveFilter:
    """Returns a filter of archives. Raises InvalidArgument for an id that is not well-formed."""
    require_ids(message, "filter", agent_id="agent", archive_ids="archive")
    return ArchiveFilter.from_proto(message, "filter")


def passage_drafts_from_proto(
    messages: Sequence[archives_pb2.Passage], *, restores: bool = False
) -> list[Passage | InvalidArgument]:
    """Returns the passages of a batch, with the error in place of each that cannot be converted.

    Raises:
        InvalidArgument: a vector is bad. A caller that has such vectors has stored or read them wrongly.
    """
    drafts: list[Passage | InvalidArgument] = []
    for index, message in enumerate(messages):
        field = f"passages[{index}]"
        vector = _vector_from_proto(message, field)
        try:
            draft = replace(Passage.from_proto(message, field), given_vector=vector)
            drafts.append(draft if restores else replace(draft, updated_at=EPOCH))
        except InvalidArgument as error:
            drafts.append(error)
    return drafts


def insert_target_from_proto(request: passages_service_pb2.InsertPassagesRequest) -> InsertTarget:
    """Returns the target of an insert. Raises InvalidArgument if it is missing or not well-formed."""
    match request.WhichOneof("target"):
        case "archive_id":
            return InsertTarget(archive_id=require_id(request.archive_id, "archive", "archive_id"))
        case "agent_id":
            return InsertTarget(agent_id=require_id(request.agent_id, "agent", "agent_id"))
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
        passage = outcome.passage.to_proto()
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
        optional_field(message, "start_date"),
        optional_field(message, "end_date"),
        optional_field(message, "time_zone"),
        prefix="filter.",
    )
    require_ids(message, "filter", agent_id="agent", archive_id="archive", file_id="file", folder_id="source")
    return _FILTER.from_proto(
        message,
        "filter",
        every_tag=message.tag_match == passages_service_pb2.TAG_MATCH_ALL,
        since=dates.start,
        until=dates.end,
        sources=tuple(
            dict.fromkeys(enum_from_proto(PassageSource, value, "filter.sources") for value in message.sources)
        ),
        archive_ids=tuple(
            dict.fromkeys(
                require_id(value, "archive", f"filter.archive_ids[{index}]")
                for index, value in enumerate(message.archive_ids)
            )
        ),
        file_ids=tuple(
            dict.fromkeys(
                require_id(value, "file", f"filter.file_ids[{index}]") for index, value in enumerate(message.file_ids)
            )
        ),
    )


def _vector_from_proto(message: archives_pb2.Passage, field: str) -> GivenVector | None:
    if not message.embedding and not message.HasField("embedded_by"):
        return None
    if not message.HasField("embedded_by"):
        missing = f"{field}.embedded_by"
        raise InvalidArgument(f"{missing} must name the embedder of {field}.embedding.", field=missing)
    identity = message.embedded_by
    return validated_vector(message.embedding, identity.handle, identity.dimension, field)


_FILTER: Final = Conversion(pb.PassageFilter, PassageFilter, sources=None, archive_ids=None, file_ids=None)
TIME_RANGE: Final = Conversion(pb.ResolvedTimeRange, TimeRange, start_time="start", end_time="end")
_KINDS = {
    pb.PASSAGE_SEARCH_MODE_UNSPECIFIED: SearchMode.HYBRID,
    pb.PASSAGE_SEARCH_MODE_HYBRID: SearchMode.HYBRID,
    pb.PASSAGE_SEARCH_MODE_TEXT: SearchMode.TEXT,
    pb.PASSAGE_SEARCH_MODE_VECTOR: SearchMode.VECTOR,
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


def search_kind_from_proto(mode: int) -> SearchMode:
    """Returns the kind of a search. Raises InvalidArgument if it is unknown."""
    if mode not in _KINDS:
        raise InvalidArgument("mode is not a known search mode.", field="mode")
    return _KINDS[pb.PassageSearchMode.ValueType(mode)]


def embedded_texts_to_proto(embedded: EmbeddedTexts) -> embeddings_pb.EmbedTextsResponse:
    """Returns the vectors of texts as a response."""
    return embeddings_pb.EmbedTextsResponse(
        embedder=embedded.embedder,
        dimension=embedded.dimension,
        embeddings=[embeddings_pb.Embedding(values=vector.tolist()) for vector in embedded.vectors],
        tokens=embedded.tokens,
    )
