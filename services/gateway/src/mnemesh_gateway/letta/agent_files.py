"""Agent files: export and import; the files of multipart uploads."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from mnemesh.agents.v1.agents_service_pb2 import ImportOptions
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_client.uploads import folder_name_of
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument
from mnemesh_kit.heavy_work import ByteBudget
from mnemesh_kit.json_bounds import NestedTooDeeply
from mnemesh_letta.convert.values import set_present
from mnemesh_letta.files.transfer import LettaImport, export_letta
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message

from mnemesh_gateway.errors import BodyTooLarge, InvalidRequest
from mnemesh_gateway.http.errors import invalid_field, invalid_json, invalid_value
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations

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


class ExportOptions(msgspec.Struct):
    """What an agent file has."""

    scrub_messages: bool = False
    use_legacy_format: bool = False
    conversation_id: str | None = None


class ExportBody(msgspec.Struct):
    """The options of an export. Skills are JSON objects; the file contains them unchanged."""

    skills: list[dict[str, Any]] = []
    scrub_messages: bool = False
    conversation_id: str | None = None


class ImportForm(msgspec.Struct):
    """The text fields of the form of an import."""

    name: str | None = None
    override_name: str | None = None
    model: str | None = None
    override_model_handle: str | None = None
    embedding: str | None = None
    override_embedding_handle: str | None = None
    secrets: str | None = None
    env_vars_json: str | None = None
    append_copy_suffix: bool = False
    override_existing_tools: bool = False
    strip_messages: bool = False


class ImportedAgents(msgspec.Struct):
    """The agents that an import created, and a sentence about each part of the file that it did not take."""

    agent_ids: list[str]
    left_out: list[str] = []


operations = Operations()


@operations.get("/agents/{agent_id}/export", result=dict[str, Any])
async def export_agent(call: Call[ExportOptions, None]) -> Response:
    """Returns an agent file with the agent."""
    if call.query.use_legacy_format:
        raise InvalidArgument("Legacy format is not supported", field="use_legacy_format")
    return await _export(call.mesh, call.path["agent_id"], call.query.conversation_id, scrub=call.query.scrub_messages)


@operations.post("/agents/{agent_id}/export", optional_body=True, result=dict[str, Any])
async def export_agent_with_skills(call: Call[NoQuery, ExportBody]) -> Response:
    """Returns an agent file with the agent, and with the skills of the body."""
    body = call.body
    return await _export(
        call.mesh, call.path["agent_id"], body.conversation_id, scrub=body.scrub_messages, skills=body.skills
    )


@operations.post("/agents/import")
async def import_agents(call: Call[NoQuery, None]) -> ImportedAgents:
    """Creates the agents of an agent file, which is the file of a form."""
    bodies, caller = call.bodies, current_principal().organization_id
    async with form_with_file(call.request, bodies.uploads, bodies.max_bytes) as (form, file):
        fields = _fields(form)
        async with bodies.imports.hold(caller):
            restored = await _read(call, file, _options(fields))
            agents = await restored.run()
    return ImportedAgents(agent_ids=[agent.id for agent in agents], left_out=restored.notes)


async def _read(call: Call[NoQuery, None], file: UploadFile, options: ImportOptions) -> LettaImport:
    bodies, caller, size = call.bodies, current_principal().organization_id, file.size or 0
    with bodies.budget.reservation(caller) as reserve:
        reserve(size)
        content = await file.read()
        try:
            return await bodies.work.run(
                caller, size, LettaImport, call.mesh.client, content, call.request_id, options=options
            )
        except InvalidArgument as error:
            if isinstance(error, NestedTooDeeply) or error.field == "file":
                raise invalid_json(error.message, "body", "file") from error
            raise


async def _export(
    mesh: Mesh,
    agent_id: str,
    conversation_id: str | None,
    *,
    scrub: bool,
    skills: Sequence[dict[str, Any]] = (),
) -> Response:
    data = await export_letta(mesh.client, [agent_id], conversation_id=conversation_id)
    data["skills"] = list(skills)
    if scrub:
        for agent in data["agents"]:
            agent.update(messages=[], in_context_message_ids=[])
    return Response(json.dumps(data, ensure_ascii=False, indent=2), media_type="application/json")


def _fields(form: FormData) -> ImportForm:
    given = {name: value for name, value in form.items() if isinstance(value, str) and value}
    try:
        return msgspec.convert(given, ImportForm, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_value("body", error) from error


def _options(fields: ImportForm) -> ImportOptions:
    options = ImportOptions(
        append_copy_suffix=fields.append_copy_suffix,
        override_existing_tools=fields.override_existing_tools,
        strip_messages=fields.strip_messages,
    )
    set_present(
        options,
        name=fields.name or fields.override_name,
        model=fields.model or fields.override_model_handle,
        embedder=fields.embedding or fields.override_embedding_handle,
    )
    for name in ("secrets", "env_vars_json"):
        text = getattr(fields, name)
        if text is not None:
            options.secrets.update(_secrets(name, text))
    return options


def _secrets(name: str, text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{name} must be a JSON object of strings: {error}", field=name) from error
