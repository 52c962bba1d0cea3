"""The arguments of a tool call, checked, and error texts for the model: for arguments, and for refusals of services."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from mnemesh_kit.errors import TEMPORARY, InvalidArgument, MnemeshError
from mnemesh_kit.text import MAX_TEXT_BYTES, require_json_object

from mnemesh_orchestrator.builtin.call import BuiltinCall
from mnemesh_orchestrator.builtin.core_memory import READ_ONLY_TEXT
from mnemesh_orchestrator.builtin.schemas import HEARTBEAT, THINKING
from mnemesh_orchestrator.llm.calls import TOO_LONG
from mnemesh_orchestrator.model.models import ToolSchema

_KINDS: Final[Mapping[str, str]] = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}

_LETTA_NAMES: Final[Mapping[str, str]] = {"old_string": "old_str", "new_string": "new_str"}
"""Arguments of the memory tools in Letta 0.16.7, and their names here and in earlier releases of Letta."""

_INT32: Final = 2**31 - 1
_MAX_QUOTED_CHARACTERS: Final = 2000
_RESERVED_BYTES: Final = 100
"""Space for `request_heartbeat`, which the loop adds when the call is stored."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments that a model gave to a tool, without those that mnemesh added to the tool's schema."""

    values: Mapping[str, Any] = field(default_factory=dict)
    request_heartbeat: bool = False
    thinking: str | None = None


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """Arguments that cannot be read. `text` tells the model why; the tool must not run."""

    text: str


def parse(text: str, schema: ToolSchema) -> Arguments | ParseFailure:
    """Reads the arguments of a call.

    Accepts text that has only one possible meaning: an empty text has no arguments, JSON inside a JSON string is read
    again, the first of several objects is used, and unescaped line breaks are allowed in strings. Any other text that
    is not a JSON object fails. Arguments are never invented.

    Args:
        text: the text of the model.
        schema: the tool's own schema. An argument that mnemesh adds is removed unless the tool has one of that name
            itself.
    """
    try:
        values = _parse_object(text)
    except RecursionError:
        return ParseFailure("Error: the arguments are nested too deeply.")
    except ValueError as problem:
        if text.startswith(TOO_LONG):
            said = text.strip("()").removeprefix("The ")
            return ParseFailure(f"Error: the {said} Call the tool again with shorter ones, in several calls if needed.")
        return ParseFailure(f"Error: the arguments are not a JSON object: {problem}. Call the tool again with one.")
    own = schema.parameters.get("properties", {})
    heartbeat = values.pop(HEARTBEAT, False) if HEARTBEAT not in own else False
    thinking = values.pop(THINKING, None) if THINKING not in own else None
    return Arguments(values, _is_true(heartbeat), thinking if isinstance(thinking, str) and thinking else None)


def check(values: Mapping[str, Any], schema: ToolSchema) -> Mapping[str, Any] | ParseFailure:
    """Returns the values in the types of the schema: every required one is present, and none is unknown.

    A null for an optional argument counts as absent, and a number without a fraction as an integer. A number above the
    maximum becomes the maximum: it asks for more than there is to show. The names of arguments in Letta 0.16.7 are
    replaced.
    """
    values = _with_own_names(schema.name, values)
    properties: Mapping[str, Any] = schema.parameters.get("properties", {})
    required = schema.parameters.get("required", ())
    for name in values:
        if name not in properties:
            known = ", ".join(properties) or "none"
            return ParseFailure(f"Error: {schema.name} has no argument {name} (its arguments: {known})")
    for name in required:
        if values.get(name) is None and not _takes_null(properties.get(name, {})):
            return ParseFailure(f"Error: {name} is required for {schema.name}")
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if value is None and name not in required:
            continue
        value = _within_maximum(_as_integer(value, properties[name]), properties[name])  # noqa: PLW2901
        if (problem := _mismatch(value, properties[name], name)) is not None:
            return ParseFailure(f"Error: {problem}")
        checked[name] = value
    return checked


def _with_own_names(tool: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the arguments of a built-in tool with those renamed that Letta's memory tools name otherwise."""
    if tool not in ("memory", "memory_insert", "memory_replace"):
        return values
    return {own if (own := _LETTA_NAMES.get(name, name)) not in values else name: values[name] for name in values}


def storage_problem(values: Mapping[str, Any]) -> str | None:
    """Returns why a message cannot hold the arguments of a call; None if it can. A tool runs only if it can."""
    try:
        text = json.dumps(values, ensure_ascii=False)
        require_json_object(text, "arguments", max_bytes=MAX_TEXT_BYTES - _RESERVED_BYTES)
    except InvalidArgument as error:
        return error.message.removeprefix("arguments ").removesuffix(".")
    except UnicodeEncodeError:
        return "they hold half of a character (a lone surrogate)"
    return None


def storable_arguments(text: str) -> str:
    """Returns the arguments of a call as a message can store them: a JSON object as text.

    Arguments that `parse` can read are written again in full. Of other text the beginning is quoted, so that the model
    sees what it wrote.
    """
    try:
        return json.dumps(_parse_object(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        quoted = text[:_MAX_QUOTED_CHARACTERS].encode(errors="replace").decode()
        return json.dumps({"unreadable_arguments": quoted}, ensure_ascii=False)


def _parse_object(text: str) -> dict[str, Any]:
    value = _first_value(text)
    if isinstance(value, str):
        value = _first_value(value)
    if not isinstance(value, dict):
        raise ValueError(f"they are {_kind(value)}")
    if (problem := storage_problem(value)) is not None:
        raise ValueError(problem)
    return value


def _first_value(text: str) -> Any:
    text = text.strip()
    if not text:
        return {}
    # A split at "}{" would be wrong: those characters may occur inside a string.
    value, end = _DECODER.raw_decode(text)
    rest = text[end:].lstrip()
    if rest and not (isinstance(value, dict) and rest.startswith("{")):
        raise ValueError(f"extra text at character {end}")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, parse_float=_float)


def _is_true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() == "true")


def _as_integer(value: Any, schema: Mapping[str, Any]) -> Any:
    return int(value) if schema.get("type") == "integer" and isinstance(value, float) and value.is_integer() else value


def _within_maximum(value: Any, schema: Mapping[str, Any]) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return min(value, schema["maximum"]) if is_number and "maximum" in schema else value


def _takes_null(schema: Mapping[str, Any]) -> bool:
    return _mismatch(None, schema, "") is None


def _mismatch(value: Any, schema: Mapping[str, Any], name: str) -> str | None:
    """Returns why the value does not match its schema, naming the argument; None if it matches."""
    for choice in ("anyOf", "oneOf"):
        if (options := schema.get(choice)) and all(_mismatch(value, option, name) for option in options):
            return f"{name} fits none of the forms that it may have"
    types = schema.get("type", ())
    types = (types,) if isinstance(types, str) else types
    if types and not any(_is_of(value, kind) for kind in types):
        return f"{name} must be {' or '.join(_KINDS.get(kind, kind) for kind in types)}, not {_kind(value)}"
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if allowed is not None and value not in allowed:
        argument, of_list, _ = name.partition("[")
        plural = argument if of_list else f"{argument}s"
        return f"Unknown {argument} '{value}'. Supported {plural}: {', '.join(map(str, allowed))}"
    if isinstance(value, int | float) and (bounds := _out_of_bounds(value, schema)) is not None:
        return f"{name} must be {bounds}, not {value}"
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, Mapping):
        problems = (_mismatch(item, items, f"{name}[{index}]") for index, item in enumerate(value))
        return next((problem for problem in problems if problem is not None), None)
    return _fields_mismatch(value, schema, name) if isinstance(value, dict) else None


def _fields_mismatch(value: Mapping[str, Any], schema: Mapping[str, Any], name: str) -> str | None:
    if missing := [field for field in schema.get("required", ()) if field not in value]:
        return f"{name} has no {missing[0]}"
    fields = schema.get("properties", {})
    problems = (_mismatch(item, fields[field], f"{name}.{field}") for field, item in value.items() if field in fields)
    return next((problem for problem in problems if problem is not None), None)


def _out_of_bounds(value: float, schema: Mapping[str, Any]) -> str | None:
    # An integer must fit the contracts between services, which use 32 bits, whatever the schema says.
    bound = _INT32 if schema.get("type") == "integer" else math.inf
    minimum, maximum = schema.get("minimum", -bound), schema.get("maximum", bound)
    if value < minimum:
        return f"at least {minimum}"
    return f"at most {maximum}" if value > maximum else None


def _is_of(value: Any, kind: str) -> bool:
    match kind:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return _kind(value) == _KINDS.get(kind, kind)


def _kind(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return _KINDS[names.get(type(value), "null")]


# These codes concern the call, and the same call would fail again. The others, and the errors of the infrastructure
# that share a code with them, concern the mesh: the loop waits for the service and repeats the call.
_CODES: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

# The service has exhausted its retries of a third party, so the error goes to the model.
_REASONS: Final = frozenset({"EMBEDDER_UNAVAILABLE"})

# The names of the tools' arguments for the fields of requests.
_REPLACE: Final = {"old_text": "old_str", "new_text": "new_str"}
_SEARCH: Final = {
    "further_queries": "queries",
    **dict.fromkeys(("messages_before", "messages_after", "passages_before", "passages_after"), "surrounding"),
}
_ARGUMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "core_memory_append": {"text": "content"},
    "core_memory_replace": {"old_text": "old_content", "new_text": "new_content"},
    "memory_replace": _REPLACE,
    "memory_insert": {"text": "new_str"},
    "memory_rethink": {"value": "new_memory"},
    "rethink_memory": {"value": "new_memory", "label": "target_block_label"},
    "memory": {**_REPLACE, "text": "insert_text", "value": "file_text"},
    "archival_memory_insert": {"text": "content"},
    "conversation_search": _SEARCH,
    "archival_memory_search": {**_SEARCH, "start_date": "start_datetime", "end_date": "end_datetime", "limit": "top_k"},
}


def is_for_model(error: MnemeshError) -> bool:
    """Returns whether the error is an answer for the model, and not a failure of the mesh."""
    if error.reason in _REASONS:
        return True
    return error.code in _CODES and not isinstance(error, TEMPORARY)


def refusal_text(error: MnemeshError, call: BuiltinCall) -> str:
    """Returns the error text for the model."""
    render = _TEXTS.get(error.reason)
    return render(error, call) if render is not None else error.message


def _field(error: MnemeshError, call: BuiltinCall) -> str:
    """Returns the tool's argument for the refused field of a request."""
    field = (error.field or "").rpartition(".")[2].partition("[")[0]
    return _ARGUMENTS.get(call.name, {}).get(field, field)


def _argument(call: BuiltinCall, field: str) -> str:
    name = _ARGUMENTS.get(call.name, {}).get(field, field)
    return str(call.arguments.get(name, ""))


def _label(error: MnemeshError) -> str:
    return error.metadata.get("label", "")


def _line_number_prefix(error: MnemeshError, call: BuiltinCall) -> str:
    field = _field(error, call)
    return (
        f"{'Patch' if field == 'patch' else field} contains a line number prefix, which is not allowed. Do not include "
        "line numbers when calling memory tools (line numbers are for display purposes only)."
    )


def _text_not_found(error: MnemeshError, call: BuiltinCall) -> str:
    old, label = _argument(call, "old_text"), _label(error)
    if call.name == "core_memory_replace":
        return f"Old content '{old}' not found in memory block '{label}'"
    return (
        f"No replacement was performed, old_str `{old}` did not appear verbatim in memory block with label `{label}`."
    )


def _text_ambiguous(error: MnemeshError, call: BuiltinCall) -> str:
    lines = ", ".join(line.strip() for line in error.metadata.get("lines", "").split(","))
    return (
        f"No replacement was performed. Multiple occurrences of old_str `{_argument(call, 'old_text')}` in lines "
        f"[{lines}]. Please ensure it is unique."
    )


def _line_out_of_range(error: MnemeshError, _: BuiltinCall) -> str:
    line, lines = error.metadata.get("line", ""), error.metadata.get("lines", "")
    return (
        f"Invalid `insert_line` parameter: {line}. It should be within the range of lines of the memory block: "
        f"[0, {lines}], or -1 to append to the end of the memory block."
    )


def _limit_exceeded(error: MnemeshError, _: BuiltinCall) -> str:
    return (
        f"Edit failed: Exceeds {error.metadata.get('limit')} character limit (requested {error.metadata.get('size')})"
    )


def _label_not_found(error: MnemeshError, _: BuiltinCall) -> str:
    available = ", ".join(filter(None, error.metadata.get("labels", "").split(",")))
    return f"Block field {_label(error)} does not exist (available sections = {available})"


def _embedder_unavailable(_error: MnemeshError, call: BuiltinCall) -> str:
    undone = " Nothing was stored." if call.name == "archival_memory_insert" else ""
    return (
        f"Archival memory cannot be used at the moment: its embedding service does not answer.{undone} Try again later."
    )


def _invalid_argument(error: MnemeshError, call: BuiltinCall) -> str:
    name = _field(error, call)
    if name in ("start_date", "end_date", "start_datetime", "end_datetime"):
        value = call.arguments.get(name, "")
        return f"Invalid {name} format: {value}. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)"
    if name not in call.arguments:
        return error.message
    field = (error.field or "").partition("[")[0]
    # A text that begins with the field needs no other name.
    is_named = bool(field) and field != name and error.message.startswith(field)
    return f"{name}{error.message.removeprefix(field)}" if is_named else f"{name}: {error.message}"


_TEXTS: Final[Mapping[str, Callable[[MnemeshError, BuiltinCall], str]]] = {
    "BLOCK_READ_ONLY": lambda _error, _call: READ_ONLY_TEXT,
    "BLOCK_LABEL_TAKEN": lambda error, _: f"There is already a memory block with label `{_label(error)}`.",
    "BLOCK_LINE_NUMBER_PREFIX": _line_number_prefix,
    "BLOCK_TEXT_NOT_FOUND": _text_not_found,
    "BLOCK_TEXT_AMBIGUOUS": _text_ambiguous,
    "BLOCK_LINE_OUT_OF_RANGE": _line_out_of_range,
    "BLOCK_LIMIT_EXCEEDED": _limit_exceeded,
    "BLOCK_LABEL_NOT_FOUND": _label_not_found,
    "INVALID_ARGUMENT": _invalid_argument,
    "EMBEDDER_UNAVAILABLE": _embedder_unavailable,
}
