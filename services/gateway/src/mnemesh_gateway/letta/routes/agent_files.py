"""Agent files: export and import."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from mnemesh.agents.v1.agents_service_pb2 import ImportOptions
from mnemesh_client.letta_files.transfer import LettaImport, export_letta
from mnemesh_kit.errors import InvalidArgument, Unimplemented
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from mnemesh_gateway.letta.convert.values import set_present
from mnemesh_gateway.letta.errors import invalid_field, invalid_value
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.schemas.agent_files import ExportOptions, ImportedAgents, ImportForm
from mnemesh_gateway.letta.uploads import form_with_file

operations = Operations()


@operations.get("/agents/{agent_id}/export", query=ExportOptions, result=dict[str, Any])
async def export_agent(call: Call[ExportOptions, None]) -> Response:
    """Returns an agent file with the agent."""
    if call.query.use_legacy_format:
        raise Unimplemented("Agent files have the format of Letta 0.16. Leave use_legacy_format out.")
    if call.query.conversation_id is not None:
        raise Unimplemented("An agent file has the agent's default conversation. Leave conversation_id out.")
    data = await export_letta(call.mesh.client, [call.path["agent_id"]])
    if call.query.scrub_messages:
        for agent in data["agents"]:
            agent.update(messages=[], in_context_message_ids=[])
    return Response(json.dumps(data, ensure_ascii=False, indent=2), media_type="application/json")


@operations.post("/agents/import", result=ImportedAgents)
async def import_agents(call: Call[NoQuery, None]) -> ImportedAgents:
    """Creates the agents of an agent file, which is the file of a form."""
    async with form_with_file(call.request) as (form, file):
        fields = _fields(form)
        data = await _json(file)
    restored = LettaImport(call.mesh.client, data, call.request_id, options=_options(fields))
    return ImportedAgents(agent_ids=[agent.id for agent in await restored.run()])


def _fields(form: FormData) -> ImportForm:
    given = {name: value for name, value in form.items() if isinstance(value, str) and value}
    try:
        return msgspec.convert(given, ImportForm, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_value("body", error) from error


async def _json(file: UploadFile) -> object:
    try:
        return msgspec.json.decode(await file.read())
    except msgspec.DecodeError as error:
        raise invalid_field(f"The file is no JSON: {error}", "body", "file") from error


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
