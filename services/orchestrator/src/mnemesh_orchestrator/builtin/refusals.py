"""Error texts for the model when a service refuses a built-in tool's call, by the reason of the error."""

from collections.abc import Callable, Mapping
from typing import Final

import grpc
from mnemesh_kit.errors import TEMPORARY, MnemeshError

from mnemesh_orchestrator.builtin.call import BuiltinCall
from mnemesh_orchestrator.builtin.core_memory import READ_ONLY_TEXT

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
