"""Agent files: export and import."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from mnemesh.agents.v1.agents_service_pb2 import ImportOptions
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.json_bounds import NestedTooDeeply
from mnemesh_letta.convert.values import set_present
from mnemesh_letta.files.transfer import LettaImport, export_letta
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from mnemesh_gateway.http.errors import invalid_json, invalid_value
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.uploads import form_with_file


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


@operations.get("/agents/{agent_id}/export", query=ExportOptions, result=dict[str, Any])
async def export_agent(call: Call[ExportOptions, None]) -> Response:
    if call.query.use_legacy_format:
        raise InvalidArgument("Legacy format is not supported", field="use_legacy_format")
    return await _export(call.mesh, call.path["agent_id"], call.query.conversation_id, scrub=call.query.scrub_messages)


@operations.post("/agents/{agent_id}/export", body=ExportBody, optional_body=True, result=dict[str, Any])
async def export_agent_with_skills(call: Call[NoQuery, ExportBody]) -> Response:
    """Returns an agent file with the agent, and with the skills of the body."""
    body = call.body
    return await _export(
        call.mesh, call.path["agent_id"], body.conversation_id, scrub=body.scrub_messages, skills=body.skills
    )


@operations.post("/agents/import", result=ImportedAgents)
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
