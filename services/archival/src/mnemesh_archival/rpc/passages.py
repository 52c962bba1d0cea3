"""The servicers of PassageService and EmbeddingService."""

import asyncio
from dataclasses import replace
from typing import Any, Final

from mnemesh.archival.v1 import archives_service_pb2 as archives_pb
from mnemesh.archival.v1 import archives_service_pb2_grpc as archives_grpc
from mnemesh.archival.v1 import embeddings_service_pb2 as embeddings_pb
from mnemesh.archival.v1 import embeddings_service_pb2_grpc as embeddings_grpc
from mnemesh.archival.v1 import passages_service_pb2 as pb
from mnemesh.archival.v1 import passages_service_pb2_grpc as pb_grpc
from mnemesh_kit.access import service_only
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import bounded, bounded_hits, next_page_token, offset_from_token, page_query
from mnemesh_types.archival import Archive

from mnemesh_archival.model.archives import Erasure
from mnemesh_archival.model.passages import Passage, VectorUse
from mnemesh_archival.rpc.convert import (
    TIME_RANGE,
    archive_filter_from_proto,
    continuity_from_proto,
    embedded_texts_to_proto,
    insert_outcome_to_proto,
    insert_target_from_proto,
    passage_drafts_from_proto,
    passage_filter_from_proto,
    passage_search_from_proto,
)
from mnemesh_archival.usecases.archives import ArchiveService, EmbeddingService
from mnemesh_archival.usecases.passages import PassageService
from mnemesh_archival.usecases.search import PassageSearchService


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
