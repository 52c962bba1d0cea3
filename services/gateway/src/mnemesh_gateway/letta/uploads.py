"""Files that clients upload as forms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_client.file_names import folder_name_of
from mnemesh_kit.errors import DeadlineExceeded
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from mnemesh_gateway.errors import BodyTooLarge, InvalidRequest
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh

MAX_BYTES: Final = 256 << 20
"""The largest form. Larger files are uploaded over gRPC, which can continue an interrupted upload."""
_PIECE: Final = 1 << 19
_RECEIVE_SECONDS: Final = 600
_STORE_SECONDS: Final = 300.0


@asynccontextmanager
async def form_with_file(request: Request) -> AsyncIterator[tuple[FormData, UploadFile]]:
    """Reads a form, and yields it with its file, which is removed afterwards.

    Raises:
        ValidationFailed: the form has no field "file".
        BodyTooLarge: the form is larger than `MAX_BYTES`.
        InvalidRequest: the body is no form, or the client ended the connection.
        DeadlineExceeded: the form did not arrive in time.
    """
    try:
        async with asyncio.timeout(_RECEIVE_SECONDS):
            form = await Request(request.scope, _Bounded(request)).form(max_files=1)
    except TimeoutError as error:
        raise DeadlineExceeded(f"The file did not arrive within {_RECEIVE_SECONDS} s.") from error
    except (ClientDisconnect, HTTPException) as error:
        raise InvalidRequest("The form of the upload is not complete.") from error
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise invalid_field("Field required", "body", "file")
        yield form, file
    finally:
        await form.close()


async def store_file(
    mesh: Mesh, request: Request, request_id: str, header: rpc.UploadFileHeader
) -> rpc.UploadFileResponse:
    """Stores the file of a form under its name, unless the header has one. Raises what `form_with_file` raises."""
    async with form_with_file(request) as (_, file):
        # As on the Letta server, a given name replaces that of the file altogether.
        given = header.name or file.filename or "upload"
        header.original_name = given
        if "/" in header.name:
            header.name, header.path = folder_name_of(given), given
        return await mesh.files.UploadFile(_parts(file, request_id, header), timeout=_STORE_SECONDS)


async def _parts(
    file: UploadFile, request_id: str, header: rpc.UploadFileHeader
) -> AsyncIterator[rpc.UploadFileRequest]:
    yield rpc.UploadFileRequest(request_id=request_id, header=header)
    while piece := await file.read(_PIECE):
        yield rpc.UploadFileRequest(data=piece)


class _Bounded:
    """Receives the body of a request up to `MAX_BYTES`."""

    def __init__(self, request: Request) -> None:
        self._receive = request.receive
        self._size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > MAX_BYTES:
            raise BodyTooLarge(f"A form must have at most {MAX_BYTES >> 20} MB. Upload larger files over gRPC.")
        return message
