"""The servicer of mnemesh.files.v1.AgentFileService."""

from typing import Any

from mnemesh.files.v1 import agent_files_service_pb2 as pb
from mnemesh.files.v1 import agent_files_service_pb2_grpc as pb_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import bounded, bounded_hits, next_page_token, offset_from_token, page_query
from mnemesh_types.files import Folder
from mnemesh_types.twin import enum_from_proto

from mnemesh_files.model.agent_files import AgentFileOrder, view_of
from mnemesh_files.rpc.convert import (
    GREP_RESULT,
    agent_file_to_proto,
    directories_to_proto,
    file_request_from_proto,
    filter_from_proto,
    grep_query_from_proto,
    limits_from_proto,
    reference_from_proto,
)
from mnemesh_files.usecases.agent_files import AgentFileService
from mnemesh_files.usecases.file_search import FileSearchService, GrepService


class AgentFilesServicer(pb_grpc.AgentFileServiceServicer):
    """Decodes requests, calls the use cases and encodes responses."""

    def __init__(self, agents: AgentFileService, grep: GrepService, search: FileSearchService) -> None:
        self._agents = agents
        self._grep = grep
        self._search = search

    async def AttachFolder(self, request: pb.AttachFolderRequest, context: Any) -> pb.AttachFolderResponse:
        done = await self._agents.attach(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            require_id(request.folder_id, "source", "folder_id"),
            request_key(request, "AttachFolder"),
            opens_files=request.open_files,
        )
        return pb.AttachFolderResponse(
            folder=None if done.folder is None else done.folder.to_proto(),
            folder_count=done.folder_count,
            directories_revision=done.revision,
        )

    async def DetachFolder(self, request: pb.DetachFolderRequest, context: Any) -> pb.DetachFolderResponse:
        done = await self._agents.detach(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            require_id(request.folder_id, "source", "folder_id"),
            request_key(request, "DetachFolder"),
        )
        return pb.DetachFolderResponse(folder_count=done.folder_count, directories_revision=done.revision)

    async def ListAgentFolders(self, request: pb.ListAgentFoldersRequest, context: Any) -> pb.ListAgentFoldersResponse:
        query = page_query(request)
        found = await self._agents.list_folders(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            query,
            by_name=request.order_by == pb.AGENT_FOLDER_ORDER_BY_NAME,
        )
        page = bounded(query, found.map(Folder.to_proto))
        return pb.ListAgentFoldersResponse(folders=page.items, next_page_token=next_page_token(query, page))

    async def ListAgentFiles(self, request: pb.ListAgentFilesRequest, context: Any) -> pb.ListAgentFilesResponse:
        query = page_query(request)
        found = await self._agents.list_files(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            filter_from_proto(request),
            query,
            enum_from_proto(AgentFileOrder, request.order_by, "order_by"),
            with_text=request.include_content,
        )
        page = bounded(query, found.map(lambda shown: agent_file_to_proto(shown, with_text=request.include_content)))
        return pb.ListAgentFilesResponse(files=page.items, next_page_token=next_page_token(query, page))

    async def OpenFiles(self, request: pb.OpenFilesRequest, context: Any) -> pb.OpenFilesResponse:
        opening, shown = await self._agents.open_files(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            [file_request_from_proto(each, f"files[{index}]") for index, each in enumerate(request.files)],
            request_key(request, "OpenFiles"),
            close_others=request.close_all_others,
        )
        previous = {each.file_id: each.previous for each in opening.opened}
        return pb.OpenFilesResponse(
            opened=[
                pb.OpenedFile(
                    file=agent_file_to_proto(each, with_text=True),
                    previous_view=None
                    if (window := previous[each.file.file_id]) is None
                    else view_of(window, each.file.total_lines, each.file.page_starts).to_proto(),
                )
                for each in shown
            ],
            closed_others=opening.closed_others,
            evicted=opening.evicted,
            directories_revision=opening.revision,
        )

    async def CloseFiles(self, request: pb.CloseFilesRequest, context: Any) -> pb.CloseFilesResponse:
        if request.all and request.files:
            raise InvalidArgument("files must be empty if all is set.", field="files")
        files = [reference_from_proto(each, f"files[{index}]") for index, each in enumerate(request.files)]
        closed, revision = await self._agents.close_files(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            None if request.all else files,
            request_key(request, "CloseFiles"),
        )
        return pb.CloseFilesResponse(closed=closed, directories_revision=revision)

    async def GrepFiles(self, request: pb.GrepFilesRequest, context: Any) -> pb.GrepFilesResponse:
        agent_id = require_id(request.agent_id, "agent", "agent_id")
        found = await self._grep.grep(current_principal(), agent_id, grep_query_from_proto(request))
        return GREP_RESULT.to_proto(found)

    async def SearchFiles(self, request: pb.SearchFilesRequest, context: Any) -> pb.SearchFilesResponse:
        offset = offset_from_token(request)
        found = await self._search.search(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            request.query,
            request.limit,
            [require_id(each, "file", f"file_ids[{index}]") for index, each in enumerate(request.file_ids)],
        )
        hits, token = bounded_hits(request, [hit.to_proto() for hit in found.hits[offset:]])
        return pb.SearchFilesResponse(
            hits=hits,
            skipped=[file.to_proto() for file in found.skipped],
            degraded=found.degraded,
            next_page_token=token,
        )

    async def ResolveCitations(self, request: pb.ResolveCitationsRequest, context: Any) -> pb.ResolveCitationsResponse:
        agent_id = require_id(request.agent_id, "agent", "agent_id")
        found = await self._search.resolve_citations(current_principal(), agent_id, request.text)
        return pb.ResolveCitationsResponse(citations=[each.to_proto() for each in found])

    async def GetDirectories(self, request: pb.GetDirectoriesRequest, context: Any) -> pb.GetDirectoriesResponse:
        found = await self._agents.directories(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            request.if_revision if request.HasField("if_revision") else None,
        )
        if found is None:
            return pb.GetDirectoriesResponse(not_modified=True)
        return pb.GetDirectoriesResponse(directories=directories_to_proto(*found))

    async def BatchGetDirectories(
        self, request: pb.BatchGetDirectoriesRequest, context: Any
    ) -> pb.BatchGetDirectoriesResponse:
        ids = [require_id(each, "agent", f"agent_ids[{index}]") for index, each in enumerate(request.agent_ids)]
        found = await self._agents.batch_directories(current_principal(), ids[offset_from_token(request) :])
        shown, token = bounded_hits(request, [directories_to_proto(*each) for each in found])
        return pb.BatchGetDirectoriesResponse(directories=shown, next_page_token=token)

    async def SetFileLimits(self, request: pb.SetFileLimitsRequest, context: Any) -> pb.SetFileLimitsResponse:
        limits, evicted, revision = await self._agents.set_limits(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            limits_from_proto(request),
            request_key(request, "SetFileLimits"),
        )
        return pb.SetFileLimitsResponse(limits=limits.to_proto(), evicted=evicted, directories_revision=revision)

    async def EraseAgent(self, request: pb.EraseAgentRequest, context: Any) -> pb.EraseAgentResponse:
        folders, files = await self._agents.erase_agent(
            current_principal(), require_id(request.agent_id, "agent", "agent_id"), request_key(request, "EraseAgent")
        )
        return pb.EraseAgentResponse(detached_folders=folders, detached_files=files)
