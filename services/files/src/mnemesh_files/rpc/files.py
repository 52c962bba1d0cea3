"""The servicers of folders and files."""

from collections.abc import AsyncIterator
from typing import Any

from mnemesh.files.v1 import files_service_pb2 as pb
from mnemesh.files.v1 import files_service_pb2_grpc as pb_grpc
from mnemesh.files.v1 import folders_service_pb2 as folders_pb
from mnemesh.files.v1 import folders_service_pb2_grpc as folders_pb_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_types.files import Folder
from mnemesh_types.twin import enum_from_proto, number_of, optional_field

from mnemesh_files.model.files import File, FileOrder, FolderOrder
from mnemesh_files.rpc.convert import (
    file_filter_from_proto,
    file_header_from_proto,
    folder_filter_from_proto,
    text_to_proto,
    upload_from_proto,
    written_data_from_proto,
)
from mnemesh_files.usecases.agent_files import AgentFileService
from mnemesh_files.usecases.files import FileService, FolderService, UploadService


class FoldersServicer(folders_pb_grpc.FolderServiceServicer):
    """Decodes requests, calls the use cases and encodes responses."""

    def __init__(self, folders: FolderService, agents: AgentFileService) -> None:
        self._folders = folders
        self._agents = agents

    async def CreateFolder(
        self, request: folders_pb.CreateFolderRequest, context: Any
    ) -> folders_pb.CreateFolderResponse:
        draft, key = Folder.from_proto(request.folder, "folder"), request_key(request, "CreateFolder")
        folder = await self._folders.create(current_principal(), draft, key)
        return folders_pb.CreateFolderResponse(folder=folder.to_proto())

    async def GetFolder(self, request: folders_pb.GetFolderRequest, context: Any) -> folders_pb.GetFolderResponse:
        folder = await self._folders.get(current_principal(), require_id(request.folder_id, "source", "folder_id"))
        return folders_pb.GetFolderResponse(folder=folder.to_proto())

    async def ListFolders(self, request: folders_pb.ListFoldersRequest, context: Any) -> folders_pb.ListFoldersResponse:
        query, order = page_query(request), enum_from_proto(FolderOrder, request.order_by, "order_by")
        filter_ = folder_filter_from_proto(request.filter)
        found = await self._folders.list_page(current_principal(), filter_, query, order)
        page = bounded(query, found.map(Folder.to_proto))
        return folders_pb.ListFoldersResponse(folders=page.items, next_page_token=next_page_token(query, page))

    async def CountFolders(
        self, request: folders_pb.CountFoldersRequest, context: Any
    ) -> folders_pb.CountFoldersResponse:
        count = await self._folders.count(current_principal(), folder_filter_from_proto(request.filter))
        return folders_pb.CountFoldersResponse(count=count)

    async def UpdateFolder(
        self, request: folders_pb.UpdateFolderRequest, context: Any
    ) -> folders_pb.UpdateFolderResponse:
        folder = await self._folders.update(
            current_principal(),
            require_id(request.folder.id, "source", "folder.id"),
            Folder.from_proto(request.folder, "folder"),
            request.update_mask.paths,
            request_key(request, "UpdateFolder"),
        )
        return folders_pb.UpdateFolderResponse(folder=folder.to_proto())

    async def DeleteFolder(
        self, request: folders_pb.DeleteFolderRequest, context: Any
    ) -> folders_pb.DeleteFolderResponse:
        folder_id, key = require_id(request.folder_id, "source", "folder_id"), request_key(request, "DeleteFolder")
        await self._folders.delete(current_principal(), folder_id, key)
        return folders_pb.DeleteFolderResponse()

    async def ListFolderAgents(
        self, request: folders_pb.ListFolderAgentsRequest, context: Any
    ) -> folders_pb.ListFolderAgentsResponse:
        query = page_query(request)
        found = await self._agents.holders(
            current_principal(), require_id(request.folder_id, "source", "folder_id"), query
        )
        page = bounded(query, found)
        return folders_pb.ListFolderAgentsResponse(agent_ids=page.items, next_page_token=next_page_token(query, page))


class FilesServicer(pb_grpc.FileServiceServicer):
    """Decodes requests, calls the use cases and encodes responses."""

    def __init__(self, files: FileService, uploads: UploadService) -> None:
        self._files = files
        self._uploads = uploads

    async def UploadFile(
        self, request_iterator: AsyncIterator[pb.UploadFileRequest], context: Any
    ) -> pb.UploadFileResponse:
        header, key, data = await upload_from_proto(request_iterator)
        file, outcome = await self._files.upload(current_principal(), header, data, key)
        return pb.UploadFileResponse(file=file.to_proto(), outcome=number_of(outcome))

    async def StartUpload(self, request: pb.StartUploadRequest, context: Any) -> pb.StartUploadResponse:
        header, key = file_header_from_proto(request.header), request_key(request, "StartUpload")
        upload = await self._uploads.start(current_principal(), header, key)
        return pb.StartUploadResponse(upload=upload.to_proto())

    async def WriteUpload(
        self, request_iterator: AsyncIterator[pb.WriteUploadRequest], context: Any
    ) -> pb.WriteUploadResponse:
        upload_id, offset, data = await written_data_from_proto(request_iterator)
        upload = await self._uploads.write(current_principal(), upload_id, offset, data)
        return pb.WriteUploadResponse(upload=upload.to_proto())

    async def GetUpload(self, request: pb.GetUploadRequest, context: Any) -> pb.GetUploadResponse:
        upload = await self._uploads.get(current_principal(), require_id(request.upload_id, "upload", "upload_id"))
        return pb.GetUploadResponse(upload=upload.to_proto())

    async def FinishUpload(self, request: pb.FinishUploadRequest, context: Any) -> pb.FinishUploadResponse:
        upload_id, key = require_id(request.upload_id, "upload", "upload_id"), request_key(request, "FinishUpload")
        file, outcome = await self._uploads.finish(current_principal(), upload_id, key)
        return pb.FinishUploadResponse(file=file.to_proto(), outcome=number_of(outcome))

    async def CancelUpload(self, request: pb.CancelUploadRequest, context: Any) -> pb.CancelUploadResponse:
        upload_id, key = require_id(request.upload_id, "upload", "upload_id"), request_key(request, "CancelUpload")
        await self._uploads.cancel(current_principal(), upload_id, key)
        return pb.CancelUploadResponse()

    async def ImportFile(self, request: pb.ImportFileRequest, context: Any) -> pb.ImportFileResponse:
        header, key = file_header_from_proto(request.header), request_key(request, "ImportFile")
        file, outcome = await self._files.import_url(current_principal(), request.url, header, key)
        return pb.ImportFileResponse(file=file.to_proto(), outcome=number_of(outcome))

    async def GetFileText(self, request: pb.GetFileTextRequest, context: Any) -> pb.GetFileTextResponse:
        length = optional_field(request, "length")
        file_id, offset = require_id(request.file_id, "file", "file_id"), optional_field(request, "offset")
        part = await self._files.text(current_principal(), file_id, offset, length)
        return text_to_proto(part, None if length is None else part.first + length - 1)

    async def RetryFile(self, request: pb.RetryFileRequest, context: Any) -> pb.RetryFileResponse:
        file_id, key = require_id(request.file_id, "file", "file_id"), request_key(request, "RetryFile")
        return pb.RetryFileResponse(file=(await self._files.retry(current_principal(), file_id, key)).to_proto())

    async def GetFile(self, request: pb.GetFileRequest, context: Any) -> pb.GetFileResponse:
        file = await self._files.get(current_principal(), require_id(request.file_id, "file", "file_id"))
        return pb.GetFileResponse(file=file.to_proto())

    async def ListFiles(self, request: pb.ListFilesRequest, context: Any) -> pb.ListFilesResponse:
        query, order = page_query(request), enum_from_proto(FileOrder, request.order_by, "order_by")
        filter_ = file_filter_from_proto(request.filter)
        found = await self._files.list_page(current_principal(), filter_, query, order)
        page = bounded(query, found.map(File.to_proto))
        return pb.ListFilesResponse(files=page.items, next_page_token=next_page_token(query, page))

    async def CountFiles(self, request: pb.CountFilesRequest, context: Any) -> pb.CountFilesResponse:
        count = await self._files.count(current_principal(), file_filter_from_proto(request.filter))
        return pb.CountFilesResponse(count=count)

    async def DeleteFile(self, request: pb.DeleteFileRequest, context: Any) -> pb.DeleteFileResponse:
        file_id, key = require_id(request.file_id, "file", "file_id"), request_key(request, "DeleteFile")
        await self._files.delete(current_principal(), file_id, key)
        return pb.DeleteFileResponse()

    async def GetFileContent(
        self, request: pb.GetFileContentRequest, context: Any
    ) -> AsyncIterator[pb.GetFileContentResponse]:
        file_id = require_id(request.file_id, "file", "file_id")
        file, pieces = await self._files.content(current_principal(), file_id, request.offset)
        yield pb.GetFileContentResponse(file=file.to_proto())
        async for piece in pieces:
            yield pb.GetFileContentResponse(data=piece)
