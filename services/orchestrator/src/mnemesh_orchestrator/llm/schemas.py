"""Tool schemas in the strict form that providers enforce, and the conversion of arguments back."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mnemesh_orchestrator.llm.errors import ProviderOptionsInvalid
from mnemesh_orchestrator.llm.port import AnsweredCall, LlmRequest
from mnemesh_orchestrator.llm.tool_schemas import renamed_arguments
from mnemesh_orchestrator.model.models import ResponseFormat

_UNSUPPORTED = ("oneOf", "allOf", "not", "if", "patternProperties", "dependentSchemas")


def strict_schema(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the schema with every property required, optional ones nullable, and no other properties.

    Returns None if the schema has no such form (free-form objects, combinators that strict mode refuses).
    """
    try:
        return _strict(parameters, is_root=True)
    except _NotStrictable:
        return None


def response_schema(response_format: ResponseFormat) -> dict[str, Any]:
    """Returns the schema of a response format as an object.

    Raises:
        ProviderOptionsInvalid: it is not a JSON object.
    """
    try:
        schema = json.loads(response_format.schema or "{}")
    except ValueError as error:
        raise ProviderOptionsInvalid(f"The schema of the response format is not JSON: {error}.") from error
    if not isinstance(schema, dict):
        raise ProviderOptionsInvalid("The schema of the response format is not a JSON object.")
    return _closed(schema) if response_format.strict else schema


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema without other properties, as strict mode requires; unchanged if that would change more."""
    closed = strict_schema(schema)
    changes_more = closed is None or json.dumps(closed).count('"null"') != json.dumps(schema).count('"null"')
    return schema if closed is None or changes_more else closed


def with_own_arguments(calls: tuple[AnsweredCall, ...], request: LlmRequest) -> tuple[AnsweredCall, ...]:
    """Converts calls, made under the schemas that were sent, to the tools' own schemas.

    The arguments get their own names back, and lose the nulls that strict schemas demand for optional ones.
    """
    schemas = {tool.name: tool.parameters for tool in request.tools}
    return tuple(
        replace(call, arguments=_own_arguments(call.arguments, schemas[call.name], request))
        if call.name in schemas
        else call
        for call in calls
    )


def _own_arguments(arguments: str, parameters: Mapping[str, Any], request: LlmRequest) -> str:
    if request.settings.strict_tool_schemas:
        arguments = _without_added_nulls(arguments, parameters)
    names = renamed_arguments(parameters)
    if not names:
        return arguments
    try:
        decoded = json.loads(arguments)
    except ValueError:
        return arguments
    if not isinstance(decoded, dict):
        return arguments
    return json.dumps({names.get(name, name): value for name, value in decoded.items()}, ensure_ascii=False)


def _without_added_nulls(arguments: str, parameters: Mapping[str, Any]) -> str:
    if "null" not in arguments:
        return arguments
    try:
        decoded = json.loads(arguments)
    except ValueError:
        return arguments
    if not isinstance(decoded, dict):
        return arguments
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or ()
    remaining = {
        name: value
        for name, value in decoded.items()
        if value is not None or name in required or name not in properties or _is_nullable(properties[name])
    }
    return arguments if len(remaining) == len(decoded) else json.dumps(remaining, ensure_ascii=False)


class _NotStrictable(Exception):
    pass


def _strict(schema: Mapping[str, Any], *, is_root: bool = False) -> dict[str, Any]:
    if any(keyword in schema for keyword in _UNSUPPORTED):
        raise _NotStrictable
    strict = {key: value for key, value in schema.items() if key != "default"}
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        is_free_form = not properties and not is_root
        if is_free_form or schema.get("additionalProperties") not in (None, False):
            raise _NotStrictable
        required = schema.get("required") or ()
        strict["type"] = "object"
        strict["properties"] = {
            name: _strict(inner) if name in required else _nullable(_strict(inner))
            for name, inner in properties.items()
        }
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
    if "items" in schema:
        strict["items"] = _strict(schema["items"])
    if "anyOf" in schema:
        strict["anyOf"] = [_strict(inner) for inner in schema["anyOf"]]
    if "$defs" in schema:
        strict["$defs"] = {name: _strict(inner) for name, inner in schema["$defs"].items()}
    if not any(key in strict for key in ("type", "anyOf", "$ref", "enum", "const")):
        raise _NotStrictable
    return strict


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if _is_nullable(schema):
        return schema
    kind = schema.get("type")
    if "enum" in schema or kind is None:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [*(kind if isinstance(kind, list) else [kind]), "null"]}


def _is_nullable(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    return any(_is_nullable(inner) for inner in schema.get("anyOf") or ())
