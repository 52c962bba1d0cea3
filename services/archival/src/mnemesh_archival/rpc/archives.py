"""The servicer of mnemesh.archival.v1.ArchiveService."""

from dataclasses import replace
from typing import Any

from mnemesh.archival.v1 import archives_service_pb2 as pb
from mnemesh.archival.v1 import archives_service_pb2_grpc as pb_grpc
from mnemesh_kit.access import service_only
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_types.archival import Archive

from mnemesh_archival.rpc.convert import (
    archive_filter_from_proto,
)
from mnemesh_archival.usecases.archives import ArchiveService


class ArchivesServicer(pb_grpc.ArchiveServiceServicer):
    """Decodes requests, calls the use cases and encodes responses."""

    def __init__(self, archives: ArchiveService) -> None:
        self._archives = archives

    async def CreateArchive(self, request: pb.CreateArchiveRequest, context: Any) -> pb.CreateArchiveResponse:
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
        return pb.CreateArchiveResponse(archive=archive.to_proto())

    async def GetArchive(self, request: pb.GetArchiveRequest, context: Any) -> pb.GetArchiveResponse:
        archive = await self._archives.get(current_principal(), require_id(request.archive_id, "archive", "archive_id"))
        return pb.GetArchiveResponse(archive=archive.to_proto())

    async def ListArchives(self, request: pb.ListArchivesRequest, context: Any) -> pb.ListArchivesResponse:
        query = page_query(request, default_ascending=False)
        found = await self._archives.list_page(
            current_principal(),
            archive_filter_from_proto(request.filter),
            query,
            by_name=request.order_by == pb.ARCHIVE_ORDER_BY_NAME,
        )
        page = bounded(query, found.map(Archive.to_proto))
        return pb.ListArchivesResponse(archives=page.items, next_page_token=next_page_token(query, page))

    async def CountArchives(self, request: pb.CountArchivesRequest, context: Any) -> pb.CountArchivesResponse:
        count = await self._archives.count(current_principal(), archive_filter_from_proto(request.filter))
        return pb.CountArchivesResponse(count=count)

    async def UpdateArchive(self, request: pb.UpdateArchiveRequest, context: Any) -> pb.UpdateArchiveResponse:
        archive = await self._archives.update(
            current_principal(),
            require_id(request.archive.id, "archive", "archive.id"),
            Archive.from_proto(request.archive, "archive"),
            request.update_mask.paths,
            request_key(request, "UpdateArchive"),
        )
        return pb.UpdateArchiveResponse(archive=archive.to_proto())

    async def DeleteArchive(self, request: pb.DeleteArchiveRequest, context: Any) -> pb.DeleteArchiveResponse:
        archive_id = require_id(request.archive_id, "archive", "archive_id")
        await self._archives.delete(current_principal(), archive_id, request_key(request, "DeleteArchive"))
        return pb.DeleteArchiveResponse()

    async def AttachArchive(self, request: pb.AttachArchiveRequest, context: Any) -> pb.AttachArchiveResponse:
        await self._archives.attach(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            require_id(request.archive_id, "archive", "archive_id"),
            request_key(request, "AttachArchive"),
        )
        return pb.AttachArchiveResponse()

    async def DetachArchive(self, request: pb.DetachArchiveRequest, context: Any) -> pb.DetachArchiveResponse:
        await self._archives.detach(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            require_id(request.archive_id, "archive", "archive_id"),
            request_key(request, "DetachArchive"),
        )
        return pb.DetachArchiveResponse()

    async def ListArchiveAgents(
        self, request: pb.ListArchiveAgentsRequest, context: Any
    ) -> pb.ListArchiveAgentsResponse:
        query = page_query(request)
        found = await self._archives.list_agents(
            current_principal(), require_id(request.archive_id, "archive", "archive_id"), query
        )
        page = bounded(query, found)
        return pb.ListArchiveAgentsResponse(agent_ids=page.items, next_page_token=next_page_token(query, page))
