"""The servicer of mnemesh.files.v1.FolderService."""

from __future__ import annotations

from typing import Any

from mnemesh.files.v1 import folders_service_pb2 as pb
from mnemesh.files.v1 import folders_service_pb2_grpc as pb_grpc
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_kit.principal import current_principal

from mnemesh_files.rpc.convert.fields import folder_id_from_proto
from mnemesh_files.rpc.convert.folders import (
    folder_draft_from_proto,
    folder_filter_from_proto,
    folder_order_from_proto,
    folder_to_proto,
    require_agent_order,
)
from mnemesh_files.usecases.agent_files import AgentFileService
from mnemesh_files.usecases.folders import FolderService


class FoldersServicer(pb_grpc.FolderServiceServicer):
    """Decodes requests, calls the use cases and encodes responses."""

    def __init__(self, folders: FolderService, agents: AgentFileService) -> None:
        self._folders = folders
        self._agents = agents

    async def CreateFolder(self, request: pb.CreateFolderRequest, context: Any) -> pb.CreateFolderResponse:
        """Creates a folder."""
        draft, key = folder_draft_from_proto(request.folder), request_key(request, "CreateFolder")
        folder = await self._folders.create(current_principal(), draft, key)
        return pb.CreateFolderResponse(folder=folder_to_proto(folder))

    async def GetFolder(self, request: pb.GetFolderRequest, context: Any) -> pb.GetFolderResponse:
        """Returns a folder."""
        folder = await self._folders.get(current_principal(), folder_id_from_proto(request.folder_id))
        return pb.GetFolderResponse(folder=folder_to_proto(folder))

    async def ListFolders(self, request: pb.ListFoldersRequest, context: Any) -> pb.ListFoldersResponse:
        """Returns a page of folders."""
        query, order = page_query(request), folder_order_from_proto(request.order_by)
        filter_ = folder_filter_from_proto(request.filter)
        found = await self._folders.list_page(current_principal(), filter_, query, order)
        page = bounded(query, found.map(folder_to_proto))
        return pb.ListFoldersResponse(folders=page.items, next_page_token=next_page_token(query, page))

    async def CountFolders(self, request: pb.CountFoldersRequest, context: Any) -> pb.CountFoldersResponse:
        """Returns the number of folders."""
        count = await self._folders.count(current_principal(), folder_filter_from_proto(request.filter))
        return pb.CountFoldersResponse(count=count)

    async def UpdateFolder(self, request: pb.UpdateFolderRequest, context: Any) -> pb.UpdateFolderResponse:
        """Updates a folder."""
        folder = await self._folders.update(
            current_principal(),
            folder_id_from_proto(request.folder.id, "folder.id"),
            folder_draft_from_proto(request.folder),
            request.update_mask.paths,
            request_key(request, "UpdateFolder"),
        )
        return pb.UpdateFolderResponse(folder=folder_to_proto(folder))

    async def DeleteFolder(self, request: pb.DeleteFolderRequest, context: Any) -> pb.DeleteFolderResponse:
        """Deletes a folder."""
        folder_id, key = folder_id_from_proto(request.folder_id), request_key(request, "DeleteFolder")
        await self._folders.delete(current_principal(), folder_id, key)
        return pb.DeleteFolderResponse()

    async def ListFolderAgents(self, request: pb.ListFolderAgentsRequest, context: Any) -> pb.ListFolderAgentsResponse:
        """Returns a page of the agents that hold a folder."""
        require_agent_order(request.order_by)
        query = page_query(request)
        found = await self._agents.holders(current_principal(), folder_id_from_proto(request.folder_id), query)
        page = bounded(query, found)
        return pb.ListFolderAgentsResponse(agent_ids=page.items, next_page_token=next_page_token(query, page))
