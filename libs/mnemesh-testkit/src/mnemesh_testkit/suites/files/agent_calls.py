"""Short ways to call the agent files of the files service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.files.calls import Files, FilesCases

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
        """Attaches a folder."""
        request = rpc.AttachFolderRequest(
            request_id=request_id, agent_id=self.id, folder_id=folder_id, open_files=open_files
        )
        return await self.stub.AttachFolder(request)  # type: ignore[no-any-return]

    async def detach(self, folder_id: str, request_id: str = "") -> rpc.DetachFolderResponse:
        """Detaches a folder."""
        request = rpc.DetachFolderRequest(request_id=request_id, agent_id=self.id, folder_id=folder_id)
        return await self.stub.DetachFolder(request)  # type: ignore[no-any-return]

    async def file(self, folder_id: str, name: str, text: str = "one\ntwo\nthree", **parsed: Any) -> str:
        """The id of a new file with a parsed text."""
        uploaded = await self.client.upload(folder_id, name, text.encode())
        await self._parsed(uploaded.file.id, text, **parsed)
        return uploaded.file.id

    async def parse(self, file_id: str, text: str, **parsed: Any) -> None:
        """Gives a file a parsed text."""
        await self._parsed(file_id, text, **parsed)

    async def directories(self, if_revision: int | None = None) -> rpc.GetDirectoriesResponse:
        """The files section of the prompt."""
        request = rpc.GetDirectoriesRequest(agent_id=self.id, if_revision=if_revision)
        return await self.stub.GetDirectories(request)  # type: ignore[no-any-return]

    async def shown(self) -> dict[str, str]:
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
        """Sets the limits."""
        limits = pb.FileLimits(max_files_open=files, per_file_view_window_char_limit=characters)
        request = rpc.SetFileLimitsRequest(agent_id=self.id, limits=limits, **options)
        return await self.stub.SetFileLimits(request)  # type: ignore[no-any-return]

    async def grep(self, pattern: str, **options: Any) -> rpc.GrepFilesResponse:
        """Searches by pattern."""
        request = rpc.GrepFilesRequest(agent_id=self.id, pattern=pattern, **options)
        return await self.stub.GrepFiles(request)  # type: ignore[no-any-return]

    async def files(self, **options: Any) -> list[pb.AgentFile]:
        """The files of the agent."""
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
