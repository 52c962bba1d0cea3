"""The rules of a tool's definition: what may be written, and where its name and schema come from."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument

from mnemesh_tools.errors import ToolSourceInvalid
from mnemesh_tools.model import tools as model
from mnemesh_tools.model.tools import Requirement, SourceType, ToolSpec, ToolType
from mnemesh_tools.schema import check_name, from_source
from mnemesh_tools.schema.source import function_name

_PACKAGE: Final = re.compile(r"[A-Za-z0-9@][A-Za-z0-9._/@-]{0,199}")
_VERSION: Final = re.compile(r"[A-Za-z0-9.*+!_^~<>=-]{1,100}")


def settled(spec: ToolSpec) -> ToolSpec:
    """`spec` with its bounds checked, its defaults filled in, and its name and schema settled.

    Raises:
        InvalidArgument: naming the field.
        ToolSourceInvalid: the source yields no schema.
    """
    _check_texts(spec)
    _check_numbers(spec)
    _check_requirements(spec.pip_requirements, "tool.pip_requirements")
    _check_requirements(spec.npm_requirements, "tool.npm_requirements")
    if spec.metadata is not None:
        parsed_object(spec.metadata, "tool.metadata")
    schema = _schema(spec)
    return replace(
        spec,
        name=schema["name"],
        json_schema=json.dumps(schema, ensure_ascii=False),
        tags=tuple(dict.fromkeys(spec.tags)),
        return_char_limit=spec.return_char_limit or model.DEFAULT_RETURN_CHARS,
        timeout_seconds=spec.timeout_seconds or model.DEFAULT_TIMEOUT_SECONDS,
    )


def parsed_object(text: str, field: str) -> dict[str, Any]:
    """The JSON object that `text` is.

    Raises:
        InvalidArgument: it is none.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{field} is not valid JSON.", field=field) from error
    if not isinstance(value, dict):
        raise InvalidArgument(f"{field} must be a JSON object.", field=field)
    return value


def parsed_parameters(text: str, field: str) -> dict[str, Any]:
    """The schema of arguments that `text` is: a JSON schema of type object."""
    return _checked_parameters(parsed_object(text, field), field)


def _schema(spec: ToolSpec) -> dict[str, Any]:
    from_author = spec.type is ToolType.CUSTOM
    if from_author and not spec.source_code:
        raise InvalidArgument("tool.source_code is required of a custom tool.", field="tool.source_code")
    if spec.type is ToolType.MCP and not spec.mcp_server_id:
        raise InvalidArgument("tool.mcp_server_id is required of an MCP tool.", field="tool.mcp_server_id")
    if from_author and spec.source_code and spec.source_type is SourceType.PYTHON:
        return _of_python(spec, spec.source_code)
    return _given(spec)


def _of_python(spec: ToolSpec, source: str) -> dict[str, Any]:
    name = function_name(source, "tool.source_code")
    check_name(name, "tool.source_code")
    if spec.name not in ("", name):
        raise InvalidArgument(
            f"tool.name is '{spec.name}', but the source's last function is '{name}'.", field="tool.name"
        )
    if spec.json_schema:
        return _checked(parsed_object(spec.json_schema, "tool.json_schema"), name)
    if spec.args_json_schema is None:
        return from_source(source, "tool.source_code").to_dict()
    parameters = parsed_parameters(spec.args_json_schema, "tool.args_json_schema")
    return {"name": name, "description": spec.description or _description(source), "parameters": parameters}


def _description(source: str) -> str:
    """What the docstring says, where the arguments need none of it."""
    try:
        return from_source(source, "tool.source_code").description
    except ToolSourceInvalid:
        return ""


def _given(spec: ToolSpec) -> dict[str, Any]:
    if not spec.json_schema:
        what = (
            f"a {spec.source_type.value} tool" if spec.type is ToolType.CUSTOM else f"a tool of type {spec.type.value}"
        )
        raise InvalidArgument(f"tool.json_schema is required: none can be made for {what}.", field="tool.json_schema")
    schema = parsed_object(spec.json_schema, "tool.json_schema")
    name = schema.get("name")
    if not isinstance(name, str):
        raise InvalidArgument("tool.json_schema has no name.", field="tool.json_schema")
    check_name(name, "tool.json_schema")
    if spec.name not in ("", name):
        raise InvalidArgument(f"tool.name is '{spec.name}', but the schema's is '{name}'.", field="tool.name")
    return _checked(schema, name)


def _checked(schema: dict[str, Any], name: str) -> dict[str, Any]:
    field = "tool.json_schema"
    if schema.get("name") != name:
        raise InvalidArgument(
            f"The schema's name is not '{name}', the name of the source's last function.", field=field
        )
    description = schema.get("description", "")
    if not isinstance(description, str):
        raise InvalidArgument("The schema's description must be text.", field=field)
    parameters = schema.get("parameters", {"type": "object", "properties": {}, "required": []})
    return {"name": name, "description": description, "parameters": _checked_parameters(parameters, field)}


def _checked_parameters(parameters: Any, field: str) -> dict[str, Any]:
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise InvalidArgument(f"{field}: the parameters must be a JSON schema of type object.", field=field)
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise InvalidArgument(f"{field}: properties must be an object, and required a list.", field=field)
    for name in required:
        if name not in properties:
            raise InvalidArgument(f"{field}: required names {json.dumps(name)}, which is no property.", field=field)
    return parameters


def _check_texts(spec: ToolSpec) -> None:
    bounds = {"source_code": None, "json_schema": model.MAX_SCHEMA_CHARS, "args_json_schema": model.MAX_SCHEMA_CHARS}
    for item in fields(spec):
        value = getattr(spec, item.name)
        if isinstance(value, str):
            check_text(value, f"tool.{item.name}", bounds.get(item.name, model.MAX_TEXT_CHARS))
    if len(spec.tags) > model.MAX_TAGS:
        raise InvalidArgument(f"tool.tags holds more than {model.MAX_TAGS}.", field="tool.tags")
    for tag in spec.tags:
        if not tag:
            raise InvalidArgument("tool.tags holds an empty tag.", field="tool.tags")
        check_text(tag, "tool.tags", model.MAX_TAG_CHARS)


def check_text(text: str, field: str, limit: int | None) -> None:
    """Raises `InvalidArgument` for NUL characters and for more than `limit` characters."""
    if "\0" in text:
        raise InvalidArgument(f"{field} holds a NUL character.", field=field)
    if limit is not None and len(text) > limit:
        raise InvalidArgument(f"{field} is longer than {limit} characters.", field=field)


def _check_numbers(spec: ToolSpec) -> None:
    for name, most in (
        ("return_char_limit", model.MAX_RETURN_CHARS),
        ("timeout_seconds", model.MAX_TIMEOUT_SECONDS),
    ):
        if not 0 <= getattr(spec, name) <= most:
            raise InvalidArgument(f"tool.{name} must be between 0 and {most}.", field=f"tool.{name}")


def _check_requirements(requirements: tuple[Requirement, ...], field: str) -> None:
    if len(requirements) > model.MAX_REQUIREMENTS:
        raise InvalidArgument(f"{field} holds more than {model.MAX_REQUIREMENTS}.", field=field)
    for requirement in requirements:
        if not _PACKAGE.fullmatch(requirement.name):
            raise InvalidArgument(f"{field}: '{requirement.name[:100]}' is not a package's name.", field=field)
        if requirement.version is not None and not _VERSION.fullmatch(requirement.version):
            raise InvalidArgument(f"{field}: '{requirement.version[:100]}' is not a version.", field=field)
