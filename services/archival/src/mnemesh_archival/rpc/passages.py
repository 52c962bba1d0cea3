"""The RPCs: decode, call, encode."""

from __future__ import annotations

from typing import Any

from mnemesh.archival.v1 import archives_service_pb2 as aspb
from mnemesh.archival.v1 import archives_service_pb2_grpc as aspb_grpc
from mnemesh.archival.v1 import passages_service_pb2 as ppb
from mnemesh.archival.v1 import passages_service_pb2_grpc as ppb_grpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.paging import next_page_token, page_query
from mnemesh_kit.principal import current_principal

from mnemesh_archival.rpc.convert import passages as convert
from mnemesh_archival.usecases.archives import ArchiveService
from mnemesh_archival.usecases.passages import PassageService
from mnemesh_archival.usecases.search import PassageSearchService


class ArchivesServicer(aspb_grpc.ArchiveServiceServicer):
    """mnemesh.archival.v1.ArchiveService."""

    def __init__(self, archives: ArchiveService) -> None:
        self._archives = archives

    async def CreateArchive(self, request: aspb.CreateArchiveRequest, context: Any) -> aspb.CreateArchiveResponse:
        archive = await self._archives.create(
            current_principal(),
            convert.archive_draft(request.archive),
            convert.agent_ids(request.agent_ids),
            request_key(request, "CreateArchive"),
        )
        return aspb.CreateArchiveResponse(archive=convert.archive_message(archive))

    async def GetArchive(self, request: aspb.GetArchiveRequest, context: Any) -> aspb.GetArchiveResponse:
        archive = await self._archives.get(current_principal(), convert.archive_id(request.archive_id))
        return aspb.GetArchiveResponse(archive=convert.archive_message(archive))

    async def ListArchives(self, request: aspb.ListArchivesRequest, context: Any) -> aspb.ListArchivesResponse:
        query = page_query(request, default_ascending=False)
        page = await self._archives.list_page(
            current_principal(),
            convert.archive_filter(request.filter),
            query,
            by_name=convert.by_name(request.order_by),
        )
        return aspb.ListArchivesResponse(
            archives=[convert.archive_message(archive) for archive in page.items],
            next_page_token=next_page_token(query, page),
        )

    async def CountArchives(self, request: aspb.CountArchivesRequest, context: Any) -> aspb.CountArchivesResponse:
        count = await self._archives.count(current_principal(), convert.archive_filter(request.filter))
        return aspb.CountArchivesResponse(count=count)

    async def UpdateArchive(self, request: aspb.UpdateArchiveRequest, context: Any) -> aspb.UpdateArchiveResponse:
        archive = await self._archives.update(
            current_principal(),
            convert.archive_id(request.archive.id, "archive.id"),
            convert.archive_draft(request.archive),
            request.update_mask.paths,
            request_key(request, "UpdateArchive"),
        )
        return aspb.UpdateArchiveResponse(archive=convert.archive_message(archive))

    async def DeleteArchive(self, request: aspb.DeleteArchiveRequest, context: Any) -> aspb.DeleteArchiveResponse:
        archive_id = convert.archive_id(request.archive_id)
        await self._archives.delete(current_principal(), archive_id, request_key(request, "DeleteArchive"))
        return aspb.DeleteArchiveResponse()

    async def AttachArchive(self, request: aspb.AttachArchiveRequest, context: Any) -> aspb.AttachArchiveResponse:
        await self._archives.attach(
            current_principal(),
            convert.agent_id(request.agent_id),
            convert.archive_id(request.archive_id),
            request_key(request, "AttachArchive"),
        )
        return aspb.AttachArchiveResponse()

    async def DetachArchive(self, request: aspb.DetachArchiveRequest, context: Any) -> aspb.DetachArchiveResponse:
        await self._archives.detach(
            current_principal(),
            convert.agent_id(request.agent_id),
            convert.archive_id(request.archive_id),
            request_key(request, "DetachArchive"),
        )
        return aspb.DetachArchiveResponse()

    async def ListArchiveAgents(
        self, request: aspb.ListArchiveAgentsRequest, context: Any
    ) -> aspb.ListArchiveAgentsResponse:
        if request.order_by not in aspb.ArchiveAgentOrderBy.values():
            raise InvalidArgument("order_by is no known order.", field="order_by")
        query = page_query(request)
        page = await self._archives.list_agents(current_principal(), convert.archive_id(request.archive_id), query)
        return aspb.ListArchiveAgentsResponse(agent_ids=page.items, next_page_token=next_page_token(query, page))


class PassagesServicer(ppb_grpc.PassageServiceServicer):
    """mnemesh.archival.v1.PassageService."""

    def __init__(self, archives: ArchiveService, writer: PassageService, finder: PassageSearchService) -> None:
        self._archives = archives
        self._writer = writer
        self._finder = finder

    async def InsertPassages(self, request: ppb.InsertPassagesRequest, context: Any) -> ppb.InsertPassagesResponse:
        outcomes = await self._writer.insert(
            current_principal(),
            convert.target(request),
            convert.drafts(request.passages),
            request_key(request, "InsertPassages"),
        )
        return ppb.InsertPassagesResponse(results=[convert.insert_result(outcome) for outcome in outcomes])

    async def GetPassage(self, request: ppb.GetPassageRequest, context: Any) -> ppb.GetPassageResponse:
        passage = await self._writer.get(
            current_principal(), convert.passage_id(request.passage_id), with_embedding=request.include_embedding
        )
        return ppb.GetPassageResponse(passage=convert.passage_message(passage))

    async def ListPassages(self, request: ppb.ListPassagesRequest, context: Any) -> ppb.ListPassagesResponse:
        convert.passage_order(request.order_by)
        query = page_query(request, default_ascending=False)
        page = await self._finder.list_page(
            current_principal(),
            convert.passage_filter(request.filter),
            query,
            words=convert.query_text(request.text_search, "text_search").strip() or None,
            with_embedding=request.include_embedding,
        )
        return ppb.ListPassagesResponse(
            passages=[convert.passage_message(passage) for passage in page.items],
            next_page_token=next_page_token(query, page),
        )

    async def UpdatePassage(self, request: ppb.UpdatePassageRequest, context: Any) -> ppb.UpdatePassageResponse:
        passage = await self._writer.update(
            current_principal(),
            convert.passage_id(request.passage.id, "passage.id"),
            convert.draft(request.passage, "passage"),
            request.update_mask.paths,
            request_key(request, "UpdatePassage"),
        )
        return ppb.UpdatePassageResponse(passage=convert.passage_message(passage))

    async def DeletePassage(self, request: ppb.DeletePassageRequest, context: Any) -> ppb.DeletePassageResponse:
        passage_id = convert.passage_id(request.passage_id)
        await self._writer.delete(current_principal(), passage_id, request_key(request, "DeletePassage"))
        return ppb.DeletePassageResponse()

    async def SearchPassages(self, request: ppb.SearchPassagesRequest, context: Any) -> ppb.SearchPassagesResponse:
        found = await self._finder.search(
            current_principal(),
            convert.query_text(request.query, "query"),
            convert.search_kind(request.mode),
            convert.passage_filter(request.filter),
            limit=convert.search_limit(request.limit),
            with_embedding=request.include_embedding,
        )
        return ppb.SearchPassagesResponse(
            hits=[convert.hit_message(hit) for hit in found.hits], degraded=found.degraded
        )

    async def GetArchivalSummary(
        self, request: ppb.GetArchivalSummaryRequest, context: Any
    ) -> ppb.GetArchivalSummaryResponse:
        known = request.if_revision if request.HasField("if_revision") else None
        summary = await self._archives.summary(current_principal(), convert.agent_id(request.agent_id), known)
        return convert.summary_message(summary)

    async def EraseAgent(self, request: ppb.EraseAgentRequest, context: Any) -> ppb.EraseAgentResponse:
        passages, archives = await self._archives.erase_agent(
            current_principal(),
            convert.agent_id(request.agent_id),
            delete_shared=request.delete_shared_passages,
            key=request_key(request, "EraseAgent"),
        )
        return ppb.EraseAgentResponse(deleted_passages=passages, deleted_archives=archives)
