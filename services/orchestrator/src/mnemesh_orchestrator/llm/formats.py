"""Structured answers: the requirements of a response format, and their check."""

import json
from dataclasses import replace
from typing import Any

from mnemesh_orchestrator.llm.dialects import Api, dialect_of
from mnemesh_orchestrator.model.json_schemas import first_line, validator
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, ToolSchema


def is_structured(response_format: ResponseFormat | None) -> bool:
    """Returns whether an answer must be JSON."""
    return response_format is not None and response_format.kind != "text"


def text_problem(text: str, response_format: ResponseFormat) -> str | None:
    """Returns why a text does not match the format, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    return value_problem(value, response_format)


def value_problem(value: Any, response_format: ResponseFormat) -> str | None:
    """Returns why a JSON value does not match the format, or None."""
    if response_format.kind == "json_object":
        return None if isinstance(value, dict) else "it is no JSON object"
    try:
        error = next(iter(validator(response_format.schema or "{}").iter_errors(value)), None)
    except UnicodeEncodeError:
        return "a text in it holds half of a surrogate pair"
    if error is None:
        return None
    path = "".join(f"[{step!r}]" for step in error.instance_path)
    return first_line(f"{path + ': ' if path else ''}{error.message}")


def format_instruction(response_format: ResponseFormat, model: ModelInfo) -> str | None:
    """Returns the instruction for the model if its API does not enforce the format.

    Plain JSON always needs one: OpenAI requires the word in the prompt, and other APIs have no field for it.
    """
    has_schema = response_format.kind == "json_schema"
    if has_schema and dialect_of(model).json_schema and model.api != Api.REHEARSAL:
        return None
    suffix = f" that fits this JSON schema: {response_format.schema}" if has_schema else ""
    return f"When you answer in plain text, answer with one JSON object and nothing else{suffix or '.'}"


def with_message_format(schema: ToolSchema, response_format: ResponseFormat, argument: str) -> ToolSchema:
    """Returns the tool that speaks to the user, with its message argument in the required format."""
    properties = dict(schema.parameters.get("properties") or {})
    message = properties.get(argument)
    if message is None:
        return schema
    message_schema = (
        json.loads(response_format.schema or "{}") if response_format.kind == "json_schema" else {"type": "object"}
    )
    properties[argument] = {"description": message.get("description", ""), **message_schema}
    return replace(schema, parameters={**schema.parameters, "properties": properties})
