"""Files: upload, wait, list, read, download, retry and delete."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from mnemesh.files.v1 import files_pb2, files_service_pb2, files_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_client import downloads, processing
from mnemesh_client.errors import FileProcessingFailed
from mnemesh_client.folders import FoldersClient
from mnemesh_client.inputs import is_id, json_text, new_request_id
from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.patience import patiently
from mnemesh_client.transport import Channel
from mnemesh_client.upload_sources import Source, opened
from mnemesh_client.uploads import OnProgress, Upload

FileStatusName = Literal["pending", "fetching", "parsing", "embedding", "completed", "error"]
OnDuplicate = Literal["skip", "error", "suffix", "replace"]

LARGEST_PAGE: Final = 1000
_DELETION_SECONDS: Final = 60.0
_NAMED: Final = 5
"""The number of files of one name that an error lists."""


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

    def wait_all(
        self,
        file_ids: Iterable[str],
        *,
        timeout: float | None = None,
        on_progress: Callable[[files_pb2.File], None] | None = None,
    ) -> AsyncIterator[files_pb2.File]:
        """Yields files as they are processed, also those whose processing failed. Deleted files are left out.

        Raises:
            DeadlineExceeded: the time is over. The processing continues.
        """
        return processing.wait_all(self.list, file_ids, self._patience, timeout, on_progress)

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
        return await downloads.read(self.stub, file_id, self._patience)

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
        return await downloads.download(
            self.stub, file_id, Path(path), self._patience, on_progress, overwrite=overwrite
        )

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
