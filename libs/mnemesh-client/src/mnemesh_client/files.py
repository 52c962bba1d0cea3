"""Files: upload, wait, list, read, download, retry and delete."""

import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from mnemesh.files.v1 import (
    files_pb2,
    files_service_pb2,
    files_service_pb2_grpc,
    folders_service_pb2,
    folders_service_pb2_grpc,
)
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument, MnemeshError, NotFound
from mnemesh_kit.retries import Backoff
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_client import uploads
from mnemesh_client.errors import FileProcessingFailed
from mnemesh_client.inputs import is_id, json_text, new_request_id, update_request
from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.patience import Patience, patiently
from mnemesh_client.transport import Channel, sleep
from mnemesh_client.uploads import OnProgress, Source, Upload, opened

FileStatusName = Literal["pending", "fetching", "parsing", "embedding", "completed", "error"]
OnDuplicate = Literal["skip", "error", "suffix", "replace"]

_ENDED: Final = (files_pb2.FILE_STATUS_COMPLETED, files_pb2.FILE_STATUS_ERROR)
_POLLS: Final = Backoff(first=0.1, maximum=2.0, jitter=0.0)
_FOLDER_PREFIX: Final = "source-"
LARGEST_PAGE: Final = 1000
_DELETION_SECONDS: Final = 60.0
_NAMED: Final = 5
"""The number of files of one name that an error lists."""


class FoldersClient:
    """Calls of FolderService, as `client.folders`. Agents hold folders: see `Agent.files`.

    Errors: NotFound; AlreadyExists for a name in use.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = folders_service_pb2_grpc.FolderServiceStub(channel)

    async def create(
        self,
        name: str,
        *,
        description: str | None = None,
        instructions: str | None = None,
        embedder: str = "",
        chunk_size: int = 0,
        metadata: Mapping[str, Any] | str | None = None,
        request_id: str = "",
    ) -> files_pb2.Folder:
        """Creates a folder.

        Args:
            name: the name, unique in the organization, without "/".
            description: what the folder contains; part of the prompt of its agents.
            instructions: how agents should use it; part of their prompt.
            embedder: the embedder of its passages; empty is the server's default.
            chunk_size: the maximum number of tokens of a passage; 0 is the server's default.
            metadata: any JSON object; it is stored unchanged.
            request_id: the idempotency key, to get the same folder again; empty creates a new one.

        Raises:
            AlreadyExists: the name is in use.
            InvalidArgument: a field is invalid; EMBEDDER_UNKNOWN.
        """
        folder = files_pb2.Folder(
            name=name,
            description=description,
            instructions=instructions,
            embedder=embedder,
            chunk_size=chunk_size,
            metadata=json_text(metadata),
        )
        request = folders_service_pb2.CreateFolderRequest(request_id=request_id, folder=folder)
        return (await self.stub.CreateFolder(request)).folder

    async def get(self, folder_id: str) -> files_pb2.Folder:
        """Returns the folder with an id."""
        return (await self.stub.GetFolder(folders_service_pb2.GetFolderRequest(folder_id=folder_id))).folder

    async def find(self, key: str) -> files_pb2.Folder:
        """Returns the folder with an id or a name.

        Raises:
            NotFound: there is no such folder.
        """
        if key.startswith(_FOLDER_PREFIX):
            return await self.get(key)
        async for folder in self.list(name=key, limit=1):
            return folder
        raise NotFound(
            f"There is no folder {key!r}. Create it with `mnemesh folders create`, or use another name.",
            resource_id=key,
        )

    def list(
        self,
        *,
        name: str | None = None,
        name_search: str | None = None,
        agent_id: str | None = None,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[files_pb2.Folder]:
        """Yields the folders that match all arguments, oldest first unless `order` is "desc".

        Args:
            name: only the folder with this name.
            name_search: only folders whose name contains this text, in any case.
            agent_id: only folders of this agent.
            order: "asc" or "desc", by the time of creation.
            limit: the maximum number of folders; None yields all.
        """
        criteria = folders_service_pb2.FolderFilter(name=name, name_search=name_search, agent_id=agent_id)
        request = folders_service_pb2.ListFoldersRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListFolders, request, "folders", limit)

    async def count(self) -> int:
        """Returns the number of folders."""
        return (await self.stub.CountFolders(folders_service_pb2.CountFoldersRequest())).count

    async def update(self, folder_id: str, *, request_id: str = "", **fields: Any) -> files_pb2.Folder:
        """Updates fields of a folder (name, description, instructions, metadata). None clears a field."""
        kind = folders_service_pb2.UpdateFolderRequest
        request = update_request(kind, "folder", folder_id, fields, request_id=request_id)
        return (await self.stub.UpdateFolder(request)).folder

    async def delete(self, folder_id: str, *, request_id: str = "") -> None:
        """Deletes a folder with its files, and detaches it from all agents."""
        request = folders_service_pb2.DeleteFolderRequest(request_id=request_id, folder_id=folder_id)
        await self.stub.DeleteFolder(request, timeout=_DELETION_SECONDS)

    async def agents(self, folder_id: str, *, limit: int | None = None) -> AsyncIterator[str]:
        """Yields the ids of the agents that hold a folder."""
        request = folders_service_pb2.ListFolderAgentsRequest(folder_id=folder_id)
        async for agent_id in paginate(self.stub.ListFolderAgents, request, "agent_ids", limit):
            yield agent_id


class FilesClient:
    """Calls of FileService, as `client.files`.

    Errors: NotFound; AlreadyExists; ResourceExhausted for the size limit; FailedPrecondition for the text of a file
    that is not parsed yet.
    """

    def __init__(self, channel: Channel, folders: FoldersClient, patience: float) -> None:
        self.stub = files_service_pb2_grpc.FileServiceStub(channel)
        self._folders = folders
        self._patience = patience

    async def upload(
        self,
        folder_id: str,
        source: Source,
        *,
        name: str | None = None,
        on_duplicate: OnDuplicate | None = None,
        media_type: str | None = None,
        path: str | None = None,
        metadata: Mapping[str, Any] | str | None = None,
        on_progress: OnProgress | None = None,
        request_id: str | None = None,
    ) -> files_service_pb2.UploadFileResponse:
        """Stores a file in a folder, and returns it with the outcome. The server processes it in the background.

        The upload continues after a broken connection and a restart of the server, as long as they take less than the
        client's patience. The server verifies its size and its hash.

        Args:
            folder_id: the folder.
            source: the path of a file, the content, a file object, or a URL as text, which the server downloads.
            name: the name of the file, without "/"; None is that of the source. Content without a name needs one.
            on_duplicate: what to do if the folder has a file of that name: "skip" it, raise an "error", add a "suffix"
                to the new name, or "replace" the content; None is "suffix".
            media_type: such as "text/markdown"; None is detected.
            path: the path of the file on the client, for people.
            metadata: any JSON object; it is stored unchanged.
            on_progress: receives the number of bytes sent, and the size.
            request_id: the idempotency key, to get the same file again; None creates a new one.

        Raises:
            InvalidArgument: the source cannot be read, or a field is invalid.
            AlreadyExists: the name is in use, and `on_duplicate` is "error".
            FailedPrecondition: the source changed during the upload.
            ResourceExhausted: the file is larger than the server allows.
        """
        header = files_service_pb2.UploadFileHeader(
            folder_id=folder_id,
            name=name,
            media_type=media_type,
            duplicate_handling=_duplicate_handling(on_duplicate),
            path=path,
            metadata=json_text(metadata),
        )
        request_id = request_id or new_request_id()
        if isinstance(source, str) and source.startswith(("https://", "http://")):
            request = files_service_pb2.ImportFileRequest(request_id=request_id, url=source, header=header)
            imported = await patiently(lambda: self.stub.ImportFile(request), self._patience)
            return files_service_pb2.UploadFileResponse(file=imported.file, outcome=imported.outcome)
        async with opened(source) as content:
            header.original_name = content.name or name or ""
            header.size_bytes, header.sha256 = content.size, content.sha256
            if content.modified_at is not None:
                header.original_update_time.CopyFrom(timestamp_to_proto(content.modified_at))
            return await Upload(self.stub, header, content, self._patience, on_progress).run(request_id)

    async def wait(
        self,
        file_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  (seconds of the whole wait, as in `asyncio.wait_for`)
        on_progress: Callable[[files_pb2.File], None] | None = None,
    ) -> files_pb2.File:
        """Waits until a file is processed, and returns it.

        Args:
            file_id: the file.
            timeout: the maximum number of seconds; None waits without a limit.
            on_progress: receives the file after each request. `chunks_embedded` and `total_chunks` are its progress.

        Raises:
            FileProcessingFailed: the file cannot be processed. The message states the cause.
            DeadlineExceeded: the time is over. The processing continues.
        """
        async for file in self.wait_all((file_id,), timeout=timeout, on_progress=on_progress):
            if file.status == files_pb2.FILE_STATUS_ERROR:
                raise FileProcessingFailed(file)
            return file
        raise NotFound(f"File {file_id} does not exist.", resource_id=file_id)

    async def wait_all(
        self,
        file_ids: Iterable[str],
        *,
        timeout: float | None = None,  # noqa: ASYNC109  (seconds of the whole wait, as in `asyncio.wait_for`)
        on_progress: Callable[[files_pb2.File], None] | None = None,
    ) -> AsyncIterator[files_pb2.File]:
        """Yields files as they are processed, also those whose processing failed. Deleted files are left out.

        Raises:
            DeadlineExceeded: the time is over. The processing continues.
        """
        waiting, left = dict.fromkeys(file_ids), Patience(self._patience)
        end = None if timeout is None else time.monotonic() + timeout
        for delay in _POLLS.delays():
            ids = list(waiting)
            for start in range(0, len(ids), LARGEST_PAGE):
                batch = ids[start : start + LARGEST_PAGE]
                try:
                    known = {file.id: file async for file in self.list(file_ids=batch)}
                except MnemeshError as error:
                    await left.wait(error)
                    break
                left.progressed()
                for file_id in batch:
                    file = known.get(file_id)
                    if file is not None and on_progress is not None:
                        on_progress(file)
                    if file is None or file.status in _ENDED:
                        del waiting[file_id]
                    if file is not None and file.status in _ENDED:
                        yield file
            if not waiting:
                return
            if end is not None and time.monotonic() + delay > end:
                raise DeadlineExceeded(f"{len(waiting)} files are still being processed. Wait longer.")
            await sleep(delay)

    async def get(self, file_id: str) -> files_pb2.File:
        """Returns the file with an id."""
        return (await self.stub.GetFile(files_service_pb2.GetFileRequest(file_id=file_id))).file

    async def find(self, key: str) -> files_pb2.File:
        """Returns the file with an id, with a name as "folder/name", or with a name that only one file has.

        Raises:
            NotFound: there is no such file.
            InvalidArgument: several files have that name. The message lists them.
        """
        if is_id(key, "file"):
            return await self.get(key)
        folder, separator, name = key.partition("/")
        folder_id = (await self._folders.find(folder)).id if separator else None
        named = [file async for file in self.list(folder_id=folder_id, name=name or folder, limit=_NAMED + 1)]
        if not named:
            raise NotFound(f"There is no file {key!r}. List the names with `mnemesh files list`.", resource_id=key)
        if len(named) > 1:
            ids = [file.id for file in named[:_NAMED]] + ["…"] * (len(named) > _NAMED)
            raise InvalidArgument(
                f"Several files are named {key!r}: {', '.join(ids)}. Use folder/name, or the id of one.", field="file"
            )
        return named[0]

    def list(
        self,
        *,
        file_ids: Sequence[str] = (),
        folder_id: str | None = None,
        name: str | None = None,
        name_search: str | None = None,
        statuses: Sequence[FileStatusName] = (),
        agent_id: str | None = None,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[files_pb2.File]:
        """Yields the files that match all arguments, oldest first unless `order` is "desc".

        Args:
            file_ids: only files with these ids.
            folder_id: only files of this folder.
            name: only files with this name.
            name_search: only files whose name contains this text, in any case.
            statuses: only files with one of these statuses.
            agent_id: only files of this agent.
            order: "asc" or "desc", by the time of creation.
            limit: the maximum number of files; None yields all.
        """
        request = files_service_pb2.ListFilesRequest(
            page_size=LARGEST_PAGE,
            order=sort_order(order),
            filter=files_service_pb2.FileFilter(
                file_ids=file_ids,
                folder_id=folder_id,
                name=name,
                name_search=name_search,
                statuses=_statuses(statuses),
                agent_id=agent_id,
            ),
        )
        return paginate(self.stub.ListFiles, request, "files", limit)

    async def count(self, *, folder_id: str | None = None, statuses: Sequence[FileStatusName] = ()) -> int:
        """Returns the number of files that match all arguments; see `list`."""
        criteria = files_service_pb2.FileFilter(folder_id=folder_id, statuses=_statuses(statuses))
        return (await self.stub.CountFiles(files_service_pb2.CountFilesRequest(filter=criteria))).count

    async def text(self, file_id: str, *, offset: int | None = None, length: int | None = None) -> str:
        """Returns the parsed text of a file: all of it, or `length` lines after the first `offset`."""
        parts: list[str] = []
        end = None if length is None else (offset or 0) + length
        while True:
            request = files_service_pb2.GetFileTextRequest(file_id=file_id, offset=offset, length=length)
            response = await self.stub.GetFileText(request)
            parts.append(response.text)
            if not response.HasField("next_offset") or (end is not None and response.next_offset >= end):
                return "\n".join(parts)
            offset = response.next_offset
            length = None if end is None else end - offset

    async def read(self, file_id: str) -> bytes:
        """Returns the content of a file as it was uploaded, after verifying its hash."""
        return await uploads.read(self.stub, file_id, self._patience)

    async def download(
        self,
        file_id: str,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        on_progress: OnProgress | None = None,
    ) -> files_pb2.File:
        """Writes the content of a file to a path, after verifying its hash. Returns the file.

        The download continues after a broken connection. The path has the whole content or none of it.

        Raises:
            FailedPrecondition: the path exists, and `overwrite` is not set.
            InvalidArgument: the path cannot be written.
        """
        return await uploads.download(self.stub, file_id, Path(path), self._patience, on_progress, overwrite=overwrite)

    async def retry(self, file_id: str, *, request_id: str = "") -> files_pb2.File:
        """Processes a file again from its stored content, and returns it."""
        request = files_service_pb2.RetryFileRequest(request_id=request_id, file_id=file_id)
        return (await self.stub.RetryFile(request)).file

    async def delete(self, file_id: str, *, request_id: str = "") -> None:
        """Deletes a file. Its agents no longer have it."""
        request = files_service_pb2.DeleteFileRequest(request_id=request_id, file_id=file_id)
        await self.stub.DeleteFile(request, timeout=_DELETION_SECONDS)


def _statuses(names: Sequence[FileStatusName]) -> Sequence[files_pb2.FileStatus.ValueType]:
    return [files_pb2.FileStatus.Value(f"FILE_STATUS_{name.upper()}") for name in names]


def _duplicate_handling(on_duplicate: str | None) -> files_service_pb2.DuplicateHandling.ValueType:
    if on_duplicate is None:
        return files_service_pb2.DUPLICATE_HANDLING_UNSPECIFIED
    try:
        return files_service_pb2.DuplicateHandling.Value(f"DUPLICATE_HANDLING_{on_duplicate.upper()}")
    except ValueError as error:
        raise InvalidArgument(
            f"on_duplicate cannot be {on_duplicate!r}. Use skip, error, suffix or replace.", field="on_duplicate"
        ) from error
