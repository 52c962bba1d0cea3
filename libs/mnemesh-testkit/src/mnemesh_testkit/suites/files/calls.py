"""Short ways to call the files service."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as files_rpc
from mnemesh.files.v1 import folders_service_pb2 as folders_rpc
from mnemesh.files.v1.agent_files_service_pb2_grpc import AgentFileServiceStub
from mnemesh.files.v1.files_service_pb2_grpc import FileServiceStub
from mnemesh.files.v1.folders_service_pb2_grpc import FolderServiceStub
from mnemesh_kit.ids import new_id

from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.suites.service_suite import ServiceSuite
from mnemesh_testkit.timeouts import scaled

_ENDS = (pb.FILE_STATUS_COMPLETED, pb.FILE_STATUS_ERROR)
SKIP = files_rpc.DUPLICATE_HANDLING_SKIP
ERROR = files_rpc.DUPLICATE_HANDLING_ERROR
SUFFIX = files_rpc.DUPLICATE_HANDLING_SUFFIX
REPLACE = files_rpc.DUPLICATE_HANDLING_REPLACE
ABSENT_FOLDER = new_id("source")
ABSENT_FILE = new_id("file")


class Files:
    """The stubs of the files service over one channel, with the calls that tests repeat."""

    def __init__(self, channel: Any) -> None:
        self.folders: Any = FolderServiceStub(channel)
        self.files: Any = FileServiceStub(channel)
        self.agents: Any = AgentFileServiceStub(channel)

    async def folder(self, name: str = "reports", request_id: str = "", **fields: Any) -> pb.Folder:
        draft = pb.Folder(name=name, **fields)
        request = folders_rpc.CreateFolderRequest(request_id=request_id, folder=draft)
        return (await self.folders.CreateFolder(request)).folder  # type: ignore[no-any-return]

    async def upload(
        self,
        folder_id: str,
        original_name: str = "notes.txt",
        content: bytes | Sequence[bytes] = b"one\ntwo\n",
        *,
        request_id: str = "",
        **header: Any,
    ) -> files_rpc.UploadFileResponse:
        """Uploads a file, in one message per piece of content."""
        pieces = [content] if isinstance(content, bytes) else content
        described = files_rpc.UploadFileHeader(folder_id=folder_id, original_name=original_name, **header)

        async def requests() -> AsyncIterator[files_rpc.UploadFileRequest]:
            yield files_rpc.UploadFileRequest(request_id=request_id, header=described)
            for piece in pieces:
                yield files_rpc.UploadFileRequest(data=piece)

        return await self.files.UploadFile(requests())  # type: ignore[no-any-return]

    async def file(self, file_id: str) -> pb.File:
        return (await self.files.GetFile(files_rpc.GetFileRequest(file_id=file_id))).file  # type: ignore[no-any-return]

    async def wait_until_processed(self, file_id: str) -> pb.File:
        """A file after its processing, which runs in the background of the service."""
        async with asyncio.timeout(scaled(30)):
            # No event tells, because the service may be another process.
            while (file := await self.file(file_id)).status not in _ENDS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return file

    async def names(self, **request: Any) -> list[str]:
        listed = await self.files.ListFiles(files_rpc.ListFilesRequest(**request))
        return [file.name for file in listed.files]

    async def content(self, file_id: str, offset: int = 0) -> bytes:
        request = files_rpc.GetFileContentRequest(file_id=file_id, offset=offset)
        return b"".join([response.data async for response in self.files.GetFileContent(request)])

    async def delete(self, file_id: str, request_id: str = "") -> None:
        await self.files.DeleteFile(files_rpc.DeleteFileRequest(request_id=request_id, file_id=file_id))

    async def delete_folder(self, folder_id: str) -> None:
        await self.folders.DeleteFolder(folders_rpc.DeleteFolderRequest(folder_id=folder_id))

    async def get_folder(self, folder_id: str) -> pb.Folder:
        request = folders_rpc.GetFolderRequest(folder_id=folder_id)
        return (await self.folders.GetFolder(request)).folder  # type: ignore[no-any-return]


class FilesCases(ServiceSuite):
    @pytest_asyncio.fixture(loop_scope="class")
    async def client(self, channel: Any) -> Files:
        """The stubs of the service."""
        return Files(channel)

    @pytest_asyncio.fixture(loop_scope="class")
    async def folder(self, client: Files) -> pb.Folder:
        return await client.folder()


async def reason(call: Coroutine[Any, Any, Any]) -> str:
    """Returns the reason with which a call is refused."""
    return (await catch_refusal(call)).reason


Parsed = Callable[..., Awaitable[None]]
"""Gives a file a parsed text: `await parsed(file_id, text, kind="data", page_starts=(), status="completed")`."""


class AgentFiles:
    """One agent with the calls that tests repeat."""

    def __init__(self, client: Files, parsed: Parsed) -> None:
        self.id = new_id("agent")
        self.client = client
        self.stub = client.agents
        self._parsed = parsed

    async def attach(
        self, folder_id: str, request_id: str = "", *, open_files: bool = False
    ) -> rpc.AttachFolderResponse:
        request = rpc.AttachFolderRequest(
            request_id=request_id, agent_id=self.id, folder_id=folder_id, open_files=open_files
        )
        return await self.stub.AttachFolder(request)  # type: ignore[no-any-return]

    async def detach(self, folder_id: str, request_id: str = "") -> rpc.DetachFolderResponse:
        request = rpc.DetachFolderRequest(request_id=request_id, agent_id=self.id, folder_id=folder_id)
        return await self.stub.DetachFolder(request)  # type: ignore[no-any-return]

    async def file(self, folder_id: str, name: str, text: str = "one\ntwo\nthree", **parsed: Any) -> str:
        """The id of a new file with a parsed text."""
        uploaded = await self.client.upload(folder_id, name, text.encode())
        await self._parsed(uploaded.file.id, text, **parsed)
        return uploaded.file.id

    async def parse(self, file_id: str, text: str, **parsed: Any) -> None:
        await self._parsed(file_id, text, **parsed)

    async def directories(self, if_revision: int | None = None) -> rpc.GetDirectoriesResponse:
        """The files section of the prompt."""
        request = rpc.GetDirectoriesRequest(agent_id=self.id, if_revision=if_revision)
        return await self.stub.GetDirectories(request)  # type: ignore[no-any-return]

    async def read_shown(self) -> dict[str, str]:
        """The texts of the open files by name."""
        found = (await self.directories()).directories
        return {file.name: file.value for each in found.directories for file in each.files if file.is_open}

    async def revision(self) -> int:
        """The revision of the directories."""
        return (await self.directories()).directories.revision

    async def open(
        self, *names: str, offset: int | None = None, length: int | None = None, request_id: str = "", **options: Any
    ) -> rpc.OpenFilesResponse:
        """Opens files by name, each with the same window."""
        files = [rpc.FileRequest(file=rpc.FileReference(name=name), offset=offset, length=length) for name in names]
        request = rpc.OpenFilesRequest(request_id=request_id, agent_id=self.id, files=files, **options)
        return await self.stub.OpenFiles(request)  # type: ignore[no-any-return]

    async def close(self, *names: str, **options: Any) -> rpc.CloseFilesResponse:
        """Closes files by name."""
        files = [rpc.FileReference(name=name) for name in names]
        request = rpc.CloseFilesRequest(agent_id=self.id, files=files, **options)
        return await self.stub.CloseFiles(request)  # type: ignore[no-any-return]

    async def limit(self, files: int, characters: int = 50_000, **options: Any) -> rpc.SetFileLimitsResponse:
        limits = pb.FileLimits(max_files_open=files, per_file_view_window_char_limit=characters)
        request = rpc.SetFileLimitsRequest(agent_id=self.id, limits=limits, **options)
        return await self.stub.SetFileLimits(request)  # type: ignore[no-any-return]

    async def grep(self, pattern: str, **options: Any) -> rpc.GrepFilesResponse:
        """Searches by pattern."""
        request = rpc.GrepFilesRequest(agent_id=self.id, pattern=pattern, **options)
        return await self.stub.GrepFiles(request)  # type: ignore[no-any-return]

    async def files(self, **options: Any) -> list[pb.AgentFile]:
        listed = await self.stub.ListAgentFiles(rpc.ListAgentFilesRequest(agent_id=self.id, **options))
        return list(listed.files)


class AgentFilesCases(FilesCases):
    """Cases of agents. A subclass brings the fixture `parsed` (see `Parsed`)."""

    @pytest_asyncio.fixture(loop_scope="class")
    async def agent(self, client: Files, parsed: Parsed) -> AgentFiles:
        """A new agent, without folders."""
        return AgentFiles(client, parsed)

    @pytest.fixture
    def new_agent(self, client: Files, parsed: Parsed) -> Callable[[], AgentFiles]:
        """Returns another new agent."""
        return lambda: AgentFiles(client, parsed)
