"""The servicers of archives, passages and embeddings, with the conversion of their messages."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from mnemesh.archival.v1 import archives_pb2
from mnemesh.archival.v1 import archives_service_pb2 as archives_pb
from mnemesh.archival.v1 import archives_service_pb2_grpc as archives_grpc
from mnemesh.archival.v1 import embeddings_service_pb2 as embeddings_pb
from mnemesh.archival.v1 import embeddings_service_pb2_grpc as embeddings_grpc
from mnemesh.archival.v1 import passages_service_pb2 as pb
from mnemesh.archival.v1 import passages_service_pb2_grpc as pb_grpc
from mnemesh_kit.access import service_only
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_kit.paging import bounded, bounded_hits, next_page_token, offset_from_token, page_query
from mnemesh_kit.time import (
    date_range,
    optional_timestamp_from_proto,
    zone_from_name,
)
from mnemesh_retrieval.index import SearchMode
from mnemesh_retrieval.time_expressions.resolver import TimeRange
from mnemesh_types.archival import Archive, ArchiveFilter, PassageSource
from mnemesh_types.twin import EPOCH, Conversion, enum_from_proto, optional_field

from mnemesh_archival.model.archives import Erasure
from mnemesh_archival.model.inserts import InsertOutcome, InsertTarget
from mnemesh_archival.model.passages import Continuity, GivenVector, Passage, PassageFilter, VectorUse, validated_vector
from mnemesh_archival.model.ranking import PassageSearch
from mnemesh_archival.usecases.archives import ArchiveService, EmbeddedTexts, EmbeddingService
from mnemesh_archival.usecases.passages import PassageService
from mnemesh_archival.usecases.search import PassageSearchService


def archive_filter_from_proto(message: archives_pb.ArchiveFilter) -> ArchiveFilter:
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


def insert_target_from_proto(request: pb.InsertPassagesRequest) -> InsertTarget:
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
    if value not in pb.PassageContinuity.values():
        raise InvalidArgument("continuity must be UNSPECIFIED, CONTINUOUS or SEPARATE.", field="continuity")
    return Continuity(value)


def insert_outcome_to_proto(outcome: InsertOutcome) -> pb.InsertResult:
    """Returns the result for one passage of a batch as a message."""
    if outcome.failure is not None:
        failure = pb.InsertFailure(reason=outcome.failure.reason, message=outcome.failure.message)
        return pb.InsertResult(failure=failure)
    if outcome.passage is not None:
        passage = outcome.passage.to_proto()
        use = pb.VectorUse.ValueType(outcome.vector_use.value)
        return pb.InsertResult(passage=passage, duplicate=outcome.duplicate, vector_use=use)
    deleted = archives_pb2.Passage(id=outcome.deleted_id or "", archive_id=outcome.archive_id)
    return pb.InsertResult(passage=deleted, duplicate=outcome.duplicate, deleted=True)


def passage_filter_from_proto(message: pb.PassageFilter) -> PassageFilter:
    """Returns a filter of passages.

    Raises:
        InvalidArgument: an unknown enum value, an id that is not well-formed, or a date or time zone that is not one.
    """
    if message.tag_match not in pb.TagMatch.values():
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
        every_tag=message.tag_match == pb.TAG_MATCH_ALL,
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


class ArchivesServicer(archives_grpc.ArchiveServiceServicer):
    """Decodes requests, calls the use cases and encodes responses."""

    def __init__(self, archives: ArchiveService) -> None:
        self._archives = archives

    async def CreateArchive(
        self, request: archives_pb.CreateArchiveRequest, context: Any
    ) -> archives_pb.CreateArchiveResponse:
        restores = service_only(request.restore, "restore")
        if restores:
            require_id(request.archive.id, "archive", "archive.id")
        archive = await self._archives.create(
            current_principal(),
            replace(
                Archive.from_proto(request.archive, "archive"),
                created_for_agent_id=request.created_for_agent_id if request.HasField("created_for_agent_id") else None,
            ),
            [require_id(each, "agent", "agent_ids") for each in request.agent_ids],
            request_key(request, "CreateArchive"),
            restores=restores,
        )
        return archives_pb.CreateArchiveResponse(archive=archive.to_proto())

    async def GetArchive(self, request: archives_pb.GetArchiveRequest, context: Any) -> archives_pb.GetArchiveResponse:
        archive = await self._archives.get(current_principal(), require_id(request.archive_id, "archive", "archive_id"))
        return archives_pb.GetArchiveResponse(archive=archive.to_proto())

    async def ListArchives(
        self, request: archives_pb.ListArchivesRequest, context: Any
    ) -> archives_pb.ListArchivesResponse:
        query = page_query(request, default_ascending=False)
        found = await self._archives.list_page(
            current_principal(),
            archive_filter_from_proto(request.filter),
            query,
            by_name=request.order_by == archives_pb.ARCHIVE_ORDER_BY_NAME,
        )
        page = bounded(query, found.map(Archive.to_proto))
        return archives_pb.ListArchivesResponse(archives=page.items, next_page_token=next_page_token(query, page))

    async def CountArchives(
        self, request: archives_pb.CountArchivesRequest, context: Any
    ) -> archives_pb.CountArchivesResponse:
        count = await self._archives.count(current_principal(), archive_filter_from_proto(request.filter))
        return archives_pb.CountArchivesResponse(count=count)

    async def UpdateArchive(
        self, request: archives_pb.UpdateArchiveRequest, context: Any
    ) -> archives_pb.UpdateArchiveResponse:
        archive = await self._archives.update(
            current_principal(),
            require_id(request.archive.id, "archive", "archive.id"),
            Archive.from_proto(request.archive, "archive"),
            request.update_mask.paths,
            request_key(request, "UpdateArchive"),
        )
        return archives_pb.UpdateArchiveResponse(archive=archive.to_proto())

    async def DeleteArchive(
        self, request: archives_pb.DeleteArchiveRequest, context: Any
    ) -> archives_pb.DeleteArchiveResponse:
        archive_id = require_id(request.archive_id, "archive", "archive_id")
        await self._archives.delete(current_principal(), archive_id, request_key(request, "DeleteArchive"))
        return archives_pb.DeleteArchiveResponse()

    async def AttachArchive(
        self, request: archives_pb.AttachArchiveRequest, context: Any
    ) -> archives_pb.AttachArchiveResponse:
        await self._archives.attach(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            require_id(request.archive_id, "archive", "archive_id"),
            request_key(request, "AttachArchive"),
        )
        return archives_pb.AttachArchiveResponse()

    async def DetachArchive(
        self, request: archives_pb.DetachArchiveRequest, context: Any
    ) -> archives_pb.DetachArchiveResponse:
        await self._archives.detach(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            require_id(request.archive_id, "archive", "archive_id"),
            request_key(request, "DetachArchive"),
        )
        return archives_pb.DetachArchiveResponse()

    async def ListArchiveAgents(
        self, request: archives_pb.ListArchiveAgentsRequest, context: Any
    ) -> archives_pb.ListArchiveAgentsResponse:
        query = page_query(request)
        found = await self._archives.list_agents(
            current_principal(), require_id(request.archive_id, "archive", "archive_id"), query
        )
        page = bounded(query, found)
        return archives_pb.ListArchiveAgentsResponse(agent_ids=page.items, next_page_token=next_page_token(query, page))


_INLINE_NUMBERS: Final = 50_000
"""Larger responses are built in a thread, so that they do not delay other calls."""


class EmbeddingsServicer(embeddings_grpc.EmbeddingServiceServicer):
    """Decodes requests, calls the use case and encodes responses."""

    def __init__(self, embeddings: EmbeddingService) -> None:
        self._embeddings = embeddings

    async def EmbedTexts(
        self, request: embeddings_pb.EmbedTextsRequest, context: Any
    ) -> embeddings_pb.EmbedTextsResponse:
        embedded = await self._embeddings.embed(current_principal(), request.embedder, request.texts)
        if embedded.dimension * len(embedded.vectors) > _INLINE_NUMBERS:
            return await asyncio.to_thread(embedded_texts_to_proto, embedded)
        return embedded_texts_to_proto(embedded)


class PassagesServicer(pb_grpc.PassageServiceServicer):
    """Decodes requests, calls the use cases and encodes responses."""

    def __init__(self, archives: ArchiveService, passages: PassageService, search: PassageSearchService) -> None:
        self._archives = archives
        self._passages = passages
        self._search = search

    async def InsertPassages(self, request: pb.InsertPassagesRequest, context: Any) -> pb.InsertPassagesResponse:
        restores = service_only(request.restore, "restore")
        outcomes = await self._passages.insert(
            current_principal(),
            insert_target_from_proto(request),
            passage_drafts_from_proto(request.passages, restores=restores),
            request_key(request, "InsertPassages"),
            default_embedder=request.default_embedder,
            continuity=continuity_from_proto(request.continuity),
            restores=restores,
        )
        kept = sum(outcome.vector_use is VectorUse.KEPT for outcome in outcomes)
        results = [insert_outcome_to_proto(outcome) for outcome in outcomes]
        return pb.InsertPassagesResponse(results=results, kept_vectors=kept)

    async def GetPassage(self, request: pb.GetPassageRequest, context: Any) -> pb.GetPassageResponse:
        passage = await self._passages.get(
            current_principal(),
            require_id(request.passage_id, "passage", "passage_id"),
            with_embedding=request.include_embedding,
        )
        return pb.GetPassageResponse(passage=passage.to_proto())

    async def ListPassages(self, request: pb.ListPassagesRequest, context: Any) -> pb.ListPassagesResponse:
        query = page_query(request, default_ascending=False)
        found = await self._search.list_page(
            current_principal(),
            passage_filter_from_proto(request.filter),
            query,
            text_search=request.text_search,
            text_contains=request.text_contains,
            with_embedding=request.include_embedding,
        )
        page = bounded(query, found.map(Passage.to_proto))
        return pb.ListPassagesResponse(passages=page.items, next_page_token=next_page_token(query, page))

    async def UpdatePassage(self, request: pb.UpdatePassageRequest, context: Any) -> pb.UpdatePassageResponse:
        passage = await self._passages.update(
            current_principal(),
            require_id(request.passage.id, "passage", "passage.id"),
            Passage.from_proto(request.passage, "passage"),
            request.update_mask.paths,
            request_key(request, "UpdatePassage"),
        )
        return pb.UpdatePassageResponse(passage=passage.to_proto())

    async def DeletePassage(self, request: pb.DeletePassageRequest, context: Any) -> pb.DeletePassageResponse:
        passage_id = require_id(request.passage_id, "passage", "passage_id")
        await self._passages.delete(current_principal(), passage_id, request_key(request, "DeletePassage"))
        return pb.DeletePassageResponse()

    async def DeletePassages(self, request: pb.DeletePassagesRequest, context: Any) -> pb.DeletePassagesResponse:
        count, has_more = await self._passages.delete_many(
            current_principal(),
            require_id(request.archive_id, "archive", "archive_id"),
            [require_id(passage_id, "passage", "passage_ids") for passage_id in request.passage_ids],
            request.file_id if request.HasField("file_id") else None,
            request_key(request, "DeletePassages"),
        )
        return pb.DeletePassagesResponse(deleted_passages=count, has_more=has_more)

    async def SearchPassages(self, request: pb.SearchPassagesRequest, context: Any) -> pb.SearchPassagesResponse:
        result = await self._search.search(
            current_principal(), passage_search_from_proto(request, offset_from_token(request))
        )
        hits, token = bounded_hits(request, [hit.to_proto() for hit in result.hits])
        return pb.SearchPassagesResponse(
            hits=hits,
            degraded=result.degraded,
            next_page_token=token,
            time_ranges=[TIME_RANGE.to_proto(each) for each in result.time_ranges],
            reranked=result.reranked,
        )

    async def GetArchivalSummary(
        self, request: pb.GetArchivalSummaryRequest, context: Any
    ) -> pb.GetArchivalSummaryResponse:
        summary = await self._archives.summary(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            request.if_revision if request.HasField("if_revision") else None,
        )
        return summary.to_proto()

    async def EraseAgent(self, request: pb.EraseAgentRequest, context: Any) -> pb.EraseAgentResponse:
        passages, archives = await self._archives.erase_agent(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            Erasure(
                shared_passages=request.delete_shared_passages,
                unshared_archives=request.delete_unshared_archives,
                together_with=tuple(
                    require_id(each, "agent", "together_with_agent_ids") for each in request.together_with_agent_ids
                ),
            ),
            request_key(request, "EraseAgent"),
        )
        return pb.EraseAgentResponse(deleted_passages=passages, deleted_archives=archives)
