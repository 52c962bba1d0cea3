"""The files of one agent: its folders, windows, searches and citations."""

from collections.abc import AsyncIterator, Sequence
from typing import Literal

from mnemesh.files.v1 import agent_files_service_pb2, agent_files_service_pb2_grpc, files_pb2

from mnemesh_client.inputs import is_id
from mnemesh_client.paging import Order, paginate, sort_order, whole_answer

AgentFileOrderByName = Literal["create_time", "last_access_time", "name"]
FileWindow = str | agent_files_service_pb2.FileRequest
"""A file of the agent, by id or name, or a window into it that `window` made."""

_GREP_SECONDS = 45.0


class AgentFiles:
    """The files of an agent, as `agent.files` or `client.agent_files(agent_id)`.

    A file is named as the agent knows it: folder name, "/", file name. Its id, or the file name alone if only one file
    has it, is sufficient. Errors: NotFound for a file that the agent does not hold.
    """

    def __init__(self, stub: "agent_files_service_pb2_grpc.AgentFileServiceAsyncStub", agent_id: str) -> None:
        self.stub = stub
        self._agent_id = agent_id

    async def attach(self, folder_id: str, *, open_files: bool = False, request_id: str = "") -> None:
        """Attaches a folder, with its present and future files. With `open_files`, ready files are opened."""
        request = agent_files_service_pb2.AttachFolderRequest(
            request_id=request_id, agent_id=self._agent_id, folder_id=folder_id, open_files=open_files
        )
        await self.stub.AttachFolder(request)

    async def detach(self, folder_id: str, *, request_id: str = "") -> None:
        """Detaches a folder. The folder is kept."""
        request = agent_files_service_pb2.DetachFolderRequest(
            request_id=request_id, agent_id=self._agent_id, folder_id=folder_id
        )
        await self.stub.DetachFolder(request)

    def folders(self, *, order: Order | None = None, limit: int | None = None) -> AsyncIterator[files_pb2.Folder]:
        """Yields the folders of the agent, in the order of attachment unless `order` is "desc"."""
        request = agent_files_service_pb2.ListAgentFoldersRequest(agent_id=self._agent_id, order=sort_order(order))
        return paginate(self.stub.ListAgentFolders, request, "folders", limit)

    def list(
        self,
        *,
        folder_id: str | None = None,
        is_open: bool | None = None,
        include_content: bool = False,
        order_by: AgentFileOrderByName = "create_time",
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[files_pb2.AgentFile]:
        """Yields the files of the agent that match all arguments.

        Args:
            folder_id: only files of this folder.
            is_open: only files that are open, or that are closed.
            include_content: whether `visible_content` of open files is filled.
            order_by: "create_time" (of the attachment), "last_access_time" or "name".
            order: "asc" (the default) or "desc".
            limit: the maximum number of files; None yields all.
        """
        request = agent_files_service_pb2.ListAgentFilesRequest(
            agent_id=self._agent_id,
            folder_id=folder_id,
            is_open=is_open,
            include_content=include_content,
            order_by=agent_files_service_pb2.AgentFileOrderBy.Value(f"AGENT_FILE_ORDER_BY_{order_by.upper()}"),
            order=sort_order(order),
        )
        return paginate(self.stub.ListAgentFiles, request, "files", limit)

    async def open(
        self, *files: FileWindow, close_all_others: bool = False, request_id: str = ""
    ) -> agent_files_service_pb2.OpenFilesResponse:
        """Opens files, all or none. If the agent may not have so many open, the least recently used ones are closed.

        Args:
            files: files by id or name, or windows that `window` made.
            close_all_others: close every file that is not named.
            request_id: the idempotency key; empty creates a new one.

        Raises:
            NotFound: the agent does not hold a file. The metadata list the names of its files.
            FailedPrecondition: a file is not parsed yet.
            InvalidArgument: more files than the agent may have open.
        """
        request = agent_files_service_pb2.OpenFilesRequest(
            request_id=request_id,
            agent_id=self._agent_id,
            files=[window(file) if isinstance(file, str) else file for file in files],
            close_all_others=close_all_others,
        )
        return await self.stub.OpenFiles(request)

    async def close(self, *files: str, request_id: str = "") -> Sequence[str]:
        """Closes files by id or name; without an argument, all. Returns the names of those that were open."""
        request = agent_files_service_pb2.CloseFilesRequest(
            request_id=request_id,
            agent_id=self._agent_id,
            files=[_reference(file) for file in files],
            all=not files,
        )
        return list((await self.stub.CloseFiles(request)).closed)

    async def grep(
        self,
        pattern: str,
        *,
        include: str | None = None,
        context_lines: int | None = None,
        offset: int = 0,
        limit: int = 0,
    ) -> agent_files_service_pb2.GrepFilesResponse:
        """Finds the lines that match a regular expression, in any case.

        Args:
            pattern: the expression, without lookaround and backreferences.
            include: only files whose name matches this glob, such as "*.py", or regular expression.
            context_lines: the number of lines before and after each match; None is 1.
            offset: the number of matches to skip. `next_offset` of the response is that of the next page.
            limit: the maximum number of matches, at most 100; 0 is 20.
        """
        request = agent_files_service_pb2.GrepFilesRequest(
            agent_id=self._agent_id,
            pattern=pattern,
            include=include,
            context_lines=context_lines,
            offset=offset,
            limit=limit,
        )
        return await self.stub.GrepFiles(request, timeout=_GREP_SECONDS)

    async def search(
        self, query: str, *, file_ids: Sequence[str] = (), limit: int = 0
    ) -> agent_files_service_pb2.SearchFilesResponse:
        """Finds passages by words and meaning, best first. A `limit` of 0 is 5.

        `degraded` of the response is set if only words were used; `skipped` are files that cannot be searched yet.
        """
        request = agent_files_service_pb2.SearchFilesRequest(
            agent_id=self._agent_id, query=query, file_ids=file_ids, limit=limit
        )
        found: agent_files_service_pb2.SearchFilesResponse = await whole_answer(self.stub.SearchFiles, request)
        return found

    async def citations(self, text: str) -> Sequence[agent_files_service_pb2.Citation]:
        """Returns the citations in a text of the agent, such as "[reports/annual.pdf:120-134]", in order.

        Each has the file, lines, pages and the cited lines. One without a `file_id` names no file or no line of it.
        """
        request = agent_files_service_pb2.ResolveCitationsRequest(agent_id=self._agent_id, text=text)
        return list((await self.stub.ResolveCitations(request)).citations)

    async def directories(self) -> files_pb2.Directories:
        """Returns the files section of the agent's prompt: its folders, and the visible text of open files."""
        request = agent_files_service_pb2.GetDirectoriesRequest(agent_id=self._agent_id)
        return (await self.stub.GetDirectories(request)).directories

    async def directories_since(self, revision: int) -> files_pb2.Directories | None:
        """Returns the files section of the agent's prompt, or None if it is still at `revision`."""
        request = agent_files_service_pb2.GetDirectoriesRequest(agent_id=self._agent_id, if_revision=revision)
        response = await self.stub.GetDirectories(request)
        return None if response.not_modified else response.directories

    async def set_limits(
        self, max_files_open: int, chars_per_file: int, *, request_id: str = ""
    ) -> agent_files_service_pb2.SetFileLimitsResponse:
        """Sets how many files the agent may have open, and how many characters of each it sees."""
        limits = files_pb2.FileLimits(max_files_open=max_files_open, per_file_view_window_char_limit=chars_per_file)
        request = agent_files_service_pb2.SetFileLimitsRequest(
            request_id=request_id, agent_id=self._agent_id, limits=limits
        )
        return await self.stub.SetFileLimits(request)


def window(file: str, offset: int | None = None, length: int | None = None) -> agent_files_service_pb2.FileRequest:
    """Returns a window into a file for `AgentFiles.open`.

    Args:
        file: the file by id or name.
        offset: the number of lines to skip; None is none.
        length: the number of lines to show; None is all to the end.
    """
    return agent_files_service_pb2.FileRequest(file=_reference(file), offset=offset, length=length)


def _reference(file: str) -> agent_files_service_pb2.FileReference:
    if is_id(file, "file"):
        return agent_files_service_pb2.FileReference(file_id=file)
    return agent_files_service_pb2.FileReference(name=file)
