"""The files service over gRPC."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import grpc
from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as files_rpc
from mnemesh.files.v1 import folders_service_pb2 as folders_rpc
from mnemesh.files.v1.agent_files_service_pb2_grpc import AgentFileServiceStub
from mnemesh.files.v1.files_service_pb2_grpc import FileServiceStub
from mnemesh.files.v1.folders_service_pb2_grpc import FolderServiceStub
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.paging import whole_answer
from mnemesh_types.twin import Conversion

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.records import items_of, record_of
from mnemesh_orchestrator.model.files import (
    MAX_PAGE,
    Directories,
    Directory,
    DirectoryFile,
    FileHit,
    FileHits,
    FileLimits,
    FileMatch,
    FileMatches,
    FileView,
    ImageFile,
    OpenedFile,
    Opening,
    WindowRequest,
    refused_image,
)
from mnemesh_orchestrator.model.transfers import ExportScope, ImportTarget, Outcome, Record, RecordType

GREP_SECONDS: Final = 35.0
"""The service ends a search after 30 seconds, and returns what it has found."""

_PAGE: Final = 200
_UPLOAD: Final = "An import has no contents of files. Upload the file into the folder."

_DIRECTORIES: Final = Conversion(pb.Directories, Directories)
_LIMITS: Final = Conversion(pb.FileLimits, FileLimits, per_file_view_window_char_limit="per_file_characters")
_VIEW: Final = Conversion(pb.FileView, FileView)
_MATCH: Final = Conversion(rpc.GrepMatch, FileMatch, lines_before="before", lines_after="after")
_HIT: Final = Conversion(rpc.FileHit, FileHit)
Conversion(pb.Directory, Directory)
Conversion(pb.DirectoryFile, DirectoryFile)


class FilesClient:
    """The folders of agents and the windows into their files."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._agents = AgentFileServiceStub(channel)
        self._folders = FolderServiceStub(channel)
        self._contents = FileServiceStub(channel)

    async def directories(self, agent_id: str, if_revision: int | None = None) -> Directories | None:
        """Returns the folders and files of an agent, or None if `if_revision` is the current revision."""
        request = rpc.GetDirectoriesRequest(agent_id=agent_id, if_revision=if_revision)
        response = await self._agents.GetDirectories(request, timeout=deadlines.READ)
        return None if response.not_modified else _DIRECTORIES.from_proto(response.directories)

    async def create_folder(self, request_id: str, name: str, embedder: str | None = None) -> str:
        """Creates a folder, and returns its id. None is the default embedder of archival."""
        folder = pb.Folder(name=name, embedder=embedder or "")
        request = folders_rpc.CreateFolderRequest(request_id=request_id, folder=folder)
        return (await self._folders.CreateFolder(request, timeout=deadlines.WRITE)).folder.id

    async def attach(self, request_id: str, agent_id: str, folder_id: str, *, opens_files: bool = False) -> int:
        """Attaches a folder, which opens its files if `opens_files`. Returns the revision of the directories."""
        request = rpc.AttachFolderRequest(
            request_id=request_id, agent_id=agent_id, folder_id=folder_id, open_files=opens_files
        )
        return (await self._agents.AttachFolder(request, timeout=deadlines.WRITE)).directories_revision

    async def open(
        self, request_id: str, agent_id: str, windows: Sequence[WindowRequest], *, close_others: bool = False
    ) -> Opening:
        """Opens windows, all or none. The least recently used files beyond the limit are closed."""
        request = rpc.OpenFilesRequest(
            request_id=request_id,
            agent_id=agent_id,
            files=[
                rpc.FileRequest(file=rpc.FileReference(name=each.name), offset=each.offset, length=each.length)
                for each in windows
            ],
            close_all_others=close_others,
        )
        response = await self._agents.OpenFiles(request, timeout=deadlines.WRITE)
        opened = tuple(
            OpenedFile(
                each.file.file_id,
                each.file.name,
                _VIEW.from_proto(each.file.view),
                _VIEW.from_proto(each.previous_view) if each.HasField("previous_view") else None,
                each.file.visible_content,
                each.file.media_type,
                each.file.size_bytes,
            )
            for each in response.opened
        )
        return Opening(opened, tuple(response.closed_others), tuple(response.evicted))

    async def image(self, file_id: str) -> ImageFile | None:
        """Returns the content of an image, or None if models cannot be shown it, by its type or size.

        Raises:
            NotFound: the file was deleted, or replaced by one that is not an image.
        """
        request = files_rpc.GetFileContentRequest(file_id=file_id)
        file, pieces = pb.File(), list[bytes]()
        async for response in self._contents.GetFileContent(request, timeout=deadlines.SEARCH_FILES):
            if response.HasField("file"):
                file = response.file
                if refused_image(file.media_type, file.size_bytes) is not None:
                    return None
            pieces.append(response.data)
        return ImageFile(file.media_type, b"".join(pieces))

    async def grep(
        self, agent_id: str, pattern: str, include: str | None = None, *, context_lines: int = 1, offset: int = 0
    ) -> FileMatches:
        """Returns a page of the lines that match a regular expression in all files of the agent, ignoring case."""
        request = rpc.GrepFilesRequest(
            agent_id=agent_id,
            pattern=pattern,
            include=include,
            context_lines=context_lines,
            offset=offset,
            limit=MAX_PAGE,
        )
        response = await self._agents.GrepFiles(request, timeout=GREP_SECONDS)
        causes = (rpc.SkipCause.Name(file.cause).removeprefix("SKIP_CAUSE_").lower() for file in response.skipped)
        return FileMatches(
            tuple(_MATCH.from_proto(match) for match in response.matches),
            response.total_matches,
            tuple((file.file_name, file.count) for file in response.files),
            response.files_searched,
            Counter(causes),
            response.capped,
            response.next_offset if response.HasField("next_offset") else None,
        )

    async def search(self, agent_id: str, query: str, limit: int) -> FileHits:
        """Searches all files of the agent by meaning and words."""
        request = rpc.SearchFilesRequest(agent_id=agent_id, query=query, limit=limit)
        response = await whole_answer(self._agents.SearchFiles, request, seconds=deadlines.SEARCH_FILES)
        return FileHits(tuple(map(_HIT.from_proto, response.hits)), len(response.skipped), response.degraded)

    async def set_limits(self, request_id: str, agent_id: str, limits: FileLimits) -> None:
        """Sets the limits of an agent. The least recently used files beyond them are closed."""
        request = rpc.SetFileLimitsRequest(request_id=request_id, agent_id=agent_id, limits=_LIMITS.to_proto(limits))
        await self._agents.SetFileLimits(request, timeout=deadlines.WRITE)

    async def erase_agent(self, request_id: str, agent_id: str) -> None:
        """Erases the agent: detaches its folders, and refuses later writes for it."""
        request = rpc.EraseAgentRequest(request_id=request_id, agent_id=agent_id)
        await self._agents.EraseAgent(request, timeout=deadlines.WRITE)


class FileRecords:
    """RecordPart of the files service."""

    types = (RecordType.FOLDER, RecordType.FILE)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._agents = AgentFileServiceStub(channel)
        self._folders = FolderServiceStub(channel)
        self._files = FileServiceStub(channel)

    async def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        async for folder in self._list_held(scope.agent_id):
            if kind is RecordType.FOLDER:
                for name in ("archive_id", "file_count", "size_bytes"):
                    folder.ClearField(name)
                yield record_of(kind, folder.id, folder)
                continue
            async for file in self._list_files(folder.id):
                yield record_of(kind, file.id, file)

    def _list_held(self, agent_id: str) -> AsyncIterator[pb.Folder]:
        request = rpc.ListAgentFoldersRequest(page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING, agent_id=agent_id)
        return items_of(self._agents.ListAgentFolders, request, "folders")

    def _list_files(self, folder_id: str) -> AsyncIterator[pb.File]:
        request = files_rpc.ListFilesRequest(
            page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING, filter=files_rpc.FileFilter(folder_id=folder_id)
        )
        return items_of(self._files.ListFiles, request, "files")

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:  # noqa: ARG002
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
            attach = rpc.AttachFolderRequest(
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
            filter_ = files_rpc.FileFilter(folder_id=folder_id, name=record.body.name)
            request = files_rpc.ListFilesRequest(page_size=1, filter=filter_)
            page = await self._files.ListFiles(request, timeout=deadlines.IMPORT) if folder_id else None
            if page is None or not page.files:
                skipped.append((record, _UPLOAD))
            else:
                target.ids.known[record.id] = page.files[0].id
        return Outcome(len(records) - len(skipped), tuple(skipped))
