"""Structured answers: what an agent's response format demands, and whether an answer keeps to it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from mnemesh_orchestrator.llm.dialects import Api, dialect_of
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, ToolSchema

if TYPE_CHECKING:
    from jsonschema_rs import Validator

_LONGEST_PROBLEM: Final = 300


def is_structured(wanted: ResponseFormat | None) -> bool:
    """Whether an answer has to be JSON."""
    return wanted is not None and wanted.kind != "text"


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Why a schema can hold no answer, or None."""
    try:
        _validator(json.dumps(schema))
    except ValueError as error:
        return _short(error)
    return None


def text_problem(text: str, wanted: ResponseFormat) -> str | None:
    """Why a text is not the answer that the format demands, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    return value_problem(value, wanted)


def value_problem(value: Any, wanted: ResponseFormat) -> str | None:
    """Why a JSON value is not the answer that the format demands, or None."""
    if wanted.kind == "json_object":
        return None if isinstance(value, dict) else "it is no JSON object"
    try:
        error = next(iter(_validator(wanted.schema or "{}").iter_errors(value)), None)
    except UnicodeEncodeError:
        return "a text in it holds half of a surrogate pair"
    if error is None:
        return None
    place = "".join(f"[{step!r}]" for step in error.instance_path)
    return _short(f"{place + ': ' if place else ''}{error.message}")


def demand(wanted: ResponseFormat, model: ModelInfo) -> str | None:
    """What a model is told of the format in words, where its API does not hold it to the format by itself.

    That is so of plain JSON everywhere: OpenAI wants the word in the prompt, and others have no field for it.
    """
    has_schema = wanted.kind == "json_schema"
    if has_schema and dialect_of(model).json_schema and model.api != Api.REHEARSAL:
        return None
    fitting = f" that fits this JSON schema: {wanted.schema}" if has_schema else ""
    return f"When you answer in plain text, answer with one JSON object and nothing else{fitting or '.'}"


def speaking_in(schema: ToolSchema, wanted: ResponseFormat, argument: str) -> ToolSchema:
    """The speaking tool with its message in the format that is wanted."""
    properties = dict(schema.parameters.get("properties") or {})
    said = properties.get(argument)
    if said is None:
        return schema
    shape = json.loads(wanted.schema or "{}") if wanted.kind == "json_schema" else {"type": "object"}
    properties[argument] = {"description": said.get("description", ""), **shape}
    return replace(schema, parameters={**schema.parameters, "properties": properties})


def _short(problem: object) -> str:
    line = str(problem).partition("\n")[0]
    return line if len(line) <= _LONGEST_PROBLEM else f"{line[:_LONGEST_PROBLEM]}…"


@lru_cache(maxsize=64)
def _validator(schema: str) -> "Validator":
    import jsonschema_rs

    return jsonschema_rs.validator_for(json.loads(schema), retriever=_nowhere)


def _nowhere(uri: str) -> Any:
    """A schema is whole by itself: the server fetches nothing for it."""
    raise ValueError(f"it refers to {uri}")
