"""Response formats and settings of compactions."""

from __future__ import annotations

import re
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2 as pb

from mnemesh_gateway.letta.convert.models import settings_to_json, settings_to_proto
from mnemesh_gateway.letta.convert.values import json_from_text, json_to_text, present, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.models import CompactionSettings

_MODES: Final = {
    "sliding_window": pb.COMPACTION_MODE_SLIDING_WINDOW,
    "all": pb.COMPACTION_MODE_ALL,
    "self_compact_sliding_window": pb.COMPACTION_MODE_SELF_COMPACT_SLIDING_WINDOW,
    "self_compact_all": pb.COMPACTION_MODE_SELF_COMPACT_ALL,
    "episodic": pb.COMPACTION_MODE_EPISODIC,
}
_MODE_NAMES: Final = {mode: name for name, mode in _MODES.items()}


def format_from_proto(agent: pb.Agent) -> dict[str, Any] | None:
    """Returns the response format of an agent."""
    if not agent.HasField("response_format"):
        return None
    match agent.response_format.WhichOneof("format"):
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            given = agent.response_format.json_schema
            schema = {"name": given.name, "schema": json_from_text(given.schema), "strict": present(given, "strict")}
            return {"type": "json_schema", "json_schema": schema}
    return {"type": "text"}


def format_to_proto(given: dict[str, Any], *loc: str) -> pb.ResponseFormat:
    """Returns a response format.

    Raises:
        ValidationFailed: the type is unknown, or a schema has no object.
    """
    match given.get("type"):
        case "text":
            return pb.ResponseFormat(text=pb.TextFormat())
        case "json_object":
            return pb.ResponseFormat(json_object=pb.JsonObjectFormat())
        case "json_schema":
            schema = given.get("json_schema")
            if not isinstance(schema, dict):
                raise invalid_field("Input should be a valid dictionary", *loc, "json_schema")
            inner = schema.get("schema", schema)
            if not isinstance(inner, dict) or not inner:
                raise invalid_field("Input should have a JSON schema", *loc, "json_schema", "schema")
            # The title of a schema may have any characters, the name of a format may not.
            name = schema.get("name") or re.sub(r"[^A-Za-z0-9_-]", "_", str(inner.get("title", "")))[:64]
            message = pb.JsonSchemaFormat(name=str(name or "answer"), schema=json_to_text(inner) or "{}")
            set_present(message, strict=schema.get("strict"))
            return pb.ResponseFormat(json_schema=message)
    raise invalid_field("Input should be 'text', 'json_schema' or 'json_object'", *loc, "type")


def compaction_from_proto(agent: pb.Agent) -> CompactionSettings | None:
    """Returns the settings of an agent's compactions."""
    if not agent.HasField("compaction_settings"):
        return None
    given = agent.compaction_settings
    provider = given.model.partition("/")[0] if given.HasField("model") else ""
    return CompactionSettings(
        mode=_MODE_NAMES.get(given.mode, "sliding_window"),
        model=present(given, "model"),
        model_settings=settings_to_json(provider, given.model_settings) if given.HasField("model_settings") else None,
        prompt=present(given, "prompt"),
        prompt_acknowledgement=present(given, "prompt_acknowledgement") or False,
        clip_chars=given.clip_chars if given.HasField("clip_chars") else 50_000,
        sliding_window_percentage=(
            given.sliding_window_percentage if given.HasField("sliding_window_percentage") else 0.3
        ),
    )


def compaction_to_proto(given: CompactionSettings, *loc: str) -> pb.CompactionSettings:
    """Returns the settings of compactions.

    Raises:
        ValidationFailed: the mode is unknown.
    """
    if given.mode is not None and given.mode not in _MODES:
        raise invalid_field(f"Input should be one of {', '.join(_MODES)}", *loc, "mode")
    message = pb.CompactionSettings(mode=_MODES[given.mode or "sliding_window"])
    set_present(
        message,
        model=given.model,
        prompt=given.prompt,
        prompt_acknowledgement=given.prompt_acknowledgement,
        clip_chars=given.clip_chars,
        sliding_window_percentage=given.sliding_window_percentage,
    )
    if given.model_settings is not None:
        settings_to_proto(given.model_settings, message.model_settings, *loc, "model_settings")
    return message
