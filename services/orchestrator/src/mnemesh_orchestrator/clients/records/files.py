"""Folders, and the descriptions of their files."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import grpc
from mnemesh.files.v1 import agent_files_service_pb2 as agent_rpc
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh.files.v1 import folders_service_pb2 as folders_rpc
from mnemesh.files.v1.agent_files_service_pb2_grpc import AgentFileServiceStub
from mnemesh.files.v1.files_service_pb2_grpc import FileServiceStub
from mnemesh.files.v1.folders_service_pb2_grpc import FolderServiceStub
from mnemesh.types.v1 import paging_pb2

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.records.messages import record_of
from mnemesh_orchestrator.model.transfers import ExportScope, ImportTarget, Outcome, Record, RecordType

_PAGE: Final = 200
_UPLOAD: Final = "An import has no contents of files. Upload the file into the folder."


class FileRecords:
    """RecordPart of the files service."""

    types = (RecordType.FOLDER, RecordType.FILE)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._agents = AgentFileServiceStub(channel)
        self._folders = FolderServiceStub(channel)
        self._files = FileServiceStub(channel)

    async def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        """See RecordPart."""
        async for folder in self._held(scope.agent_id):
            if kind is RecordType.FOLDER:
                for name in ("archive_id", "file_count", "size_bytes"):
                    folder.ClearField(name)
                yield record_of(kind, folder.id, folder)
                continue
            async for file in self._list_files(folder.id):
                yield record_of(kind, file.id, file)

    async def _held(self, agent_id: str) -> AsyncIterator[pb.Folder]:
        request = agent_rpc.ListAgentFoldersRequest(
            page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING, agent_id=agent_id
        )
        while True:
            page = await self._agents.ListAgentFolders(request, timeout=deadlines.IMPORT)
            for folder in page.folders:
                yield folder
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def _list_files(self, folder_id: str) -> AsyncIterator[pb.File]:
        request = rpc.ListFilesRequest(
            page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING, filter=rpc.FileFilter(folder_id=folder_id)
        )
        while True:
            page = await self._files.ListFiles(request, timeout=deadlines.IMPORT)
            for file in page.files:
                yield file
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:  # noqa: ARG002
        """See RecordPart."""
        found: dict[str, str] = {}
        for record in records:
            filter_ = folders_rpc.FolderFilter(name=record.body.name)
            request = folders_rpc.ListFoldersRequest(page_size=1, filter=filter_)
            page = await self._folders.ListFolders(request, timeout=deadlines.IMPORT)
            if page.folders:
                found[record.id] = page.folders[0].id
        return found

    async def restore(
        self, request_id: str, target: ImportTarget, records: Sequence[Record], existing: Mapping[str, str]
    ) -> Outcome:
        """See RecordPart. Also maps the ids of folders, and of files that their folder has."""
        if records[0].type is RecordType.FILE:
            return await self._match_files(target, records)
        for number, record in enumerate(records):
            folder_id = existing.get(record.id)
            if folder_id is None:
                folder_id = await self._create(f"{request_id}/{number}", target, record.body)
            target.ids.known[record.id] = folder_id
            attach = agent_rpc.AttachFolderRequest(
                request_id=f"{request_id}/{number}/attach", agent_id=target.agent_id, folder_id=folder_id
            )
            await self._agents.AttachFolder(attach, timeout=deadlines.IMPORT)
        return Outcome(existing=len(existing))

    async def _create(self, request_id: str, target: ImportTarget, given: pb.Folder) -> str:
        folder = pb.Folder(
            name=given.name,
            description=given.description if given.HasField("description") else None,
            instructions=given.instructions if given.HasField("instructions") else None,
            metadata=given.metadata if given.HasField("metadata") else None,
            embedder=target.options.embedder or given.embedder,
            chunk_size=given.chunk_size,
        )
        request = folders_rpc.CreateFolderRequest(request_id=request_id, folder=folder)
        return (await self._folders.CreateFolder(request, timeout=deadlines.IMPORT)).folder.id

    async def _match_files(self, target: ImportTarget, records: Sequence[Record]) -> Outcome:
        skipped: list[tuple[Record, str]] = []
        for record in records:
            folder_id = target.ids.known.get(record.body.folder_id)
            filter_ = rpc.FileFilter(folder_id=folder_id, name=record.body.name)
            request = rpc.ListFilesRequest(page_size=1, filter=filter_)
            page = await self._files.ListFiles(request, timeout=deadlines.IMPORT) if folder_id else None
            if page is None or not page.files:
                skipped.append((record, _UPLOAD))
            else:
                target.ids.known[record.id] = page.files[0].id
        return Outcome(len(records) - len(skipped), tuple(skipped))
