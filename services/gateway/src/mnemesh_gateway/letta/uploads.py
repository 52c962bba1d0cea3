"""Files that clients upload as forms."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_client.uploads import folder_name_of
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import DeadlineExceeded
from mnemesh_kit.heavy_work import ByteBudget
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from mnemesh_gateway.errors import BodyTooLarge, InvalidRequest
from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.operations import Call

MAX_BYTES: Final = 256 << 20
"""The largest form. Larger files are uploaded over gRPC, which can continue an interrupted upload."""
_FIELDS: Final = 100
_PIECE: Final = 1 << 19
_RECEIVE_SECONDS: Final = 600
_STORE_SECONDS: Final = 300.0


@asynccontextmanager
async def form_with_file(
    request: Request, budget: ByteBudget, max_bytes: int | None = None
) -> AsyncIterator[tuple[FormData, UploadFile]]:
    """Reads a form, and yields it with its file, which is removed afterwards.

    Raises:
        ValidationFailed: the form has no field "file".
        BodyTooLarge: the form is larger than `max_bytes`, which is `MAX_BYTES` if it is None.
        InvalidRequest: the body is not a form, or the client ended the connection.
        DeadlineExceeded: the form did not arrive in time.
        ResourceExhausted: too many large forms are open.
    """
    with budget.reservation(current_principal().organization_id) as reserve:
        form = await _receive(request, _Bounded(request, max_bytes or MAX_BYTES, reserve))
        try:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise invalid_field("Field required", "body", "file")
            yield form, file
        finally:
            await form.close()


async def _receive(request: Request, receive: "_Bounded") -> FormData:
    try:
        async with asyncio.timeout(_RECEIVE_SECONDS):
            return await Request(request.scope, receive).form(max_files=1, max_fields=_FIELDS)
    except TimeoutError as error:
        raise DeadlineExceeded(f"The file did not arrive within {_RECEIVE_SECONDS} s.") from error
    except (ClientDisconnect, HTTPException) as error:
        raise InvalidRequest("The form of the upload is not complete.") from error


async def store_file(call: Call[Any, Any], header: rpc.UploadFileHeader) -> rpc.UploadFileResponse:
    """Stores the file of a form under its name, unless the header has one. Raises what `form_with_file` raises."""
    async with form_with_file(call.request, call.bodies.uploads) as (_, file):
        # As on the Letta server, a given name replaces that of the file altogether.
        given = header.name or file.filename or "upload"
        header.original_name = given
        if "/" in header.name:
            header.name, header.path = folder_name_of(given), given
        return await call.mesh.files.UploadFile(_parts(file, call.request_id, header), timeout=_STORE_SECONDS)


async def _parts(
    file: UploadFile, request_id: str, header: rpc.UploadFileHeader
) -> AsyncIterator[rpc.UploadFileRequest]:
    yield rpc.UploadFileRequest(request_id=request_id, header=header)
    while piece := await file.read(_PIECE):
        yield rpc.UploadFileRequest(data=piece)


class _Bounded:
    """Receives the body of a request up to `max_bytes`."""

    def __init__(self, request: Request, max_bytes: int, reserve: Callable[[int], None]) -> None:
        self._receive = request.receive
        self._max_bytes = max_bytes
        self._reserve = reserve
        self._size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self._reserve(size)
        self._size += size
        if self._size > self._max_bytes:
            raise BodyTooLarge(f"This form must have at most {self._max_bytes >> 20} MB. Send more over gRPC.")
        return message
