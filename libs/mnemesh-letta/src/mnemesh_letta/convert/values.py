"""Values of Letta's JSON, and the fields of resources as Letta and the contracts name them.

A field has the same name in both, or one of `NAMES`. `shown`, `fill` and `from_row` copy fields for the REST API,
agent files and databases alike.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_type_hints
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.agents.v1 import agents_pb2, identities_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.ids import derive_id, is_id
from mnemesh_kit.time import timestamp_from_proto
from mnemesh_kit.unicode import well_formed

Row = Mapping[str, Any]
"""A row of a table of Letta, or an object of an agent file, by the names of its columns."""
T = TypeVar("T")
MessageT = TypeVar("MessageT", bound=Message)


def named(module: object, prefix: str, *names: str) -> dict[str, Any]:
    """Returns values of an enum of the contracts by Letta's names, which are those of the contracts in lower case."""
    return {name: getattr(module, f"{prefix}_{name.upper()}") for name in names}


AGENT_TYPES: Final = {
    f"{name}_agent": value
    for name, value in named(
        agents_pb2,
        "AGENT_TYPE",
        *("memgpt", "memgpt_v2", "letta_v1", "react", "workflow", "split_thread", "sleeptime", "voice_convo"),
        "voice_sleeptime",
    ).items()
}
AGENT_TYPE_NAMES: Final = {value: name for name, value in AGENT_TYPES.items()}
STOP_REASONS: Final = named(
    agents_pb2,
    "STOP_REASON",
    *("end_turn", "error", "llm_api_error", "invalid_llm_response", "invalid_tool_call", "max_steps"),
    *("max_tokens_exceeded", "no_tool_call", "tool_rule", "cancelled", "requires_approval"),
    *("context_window_overflow_in_system_prompt", "insufficient_credits"),
)
STOP_REASON_NAMES: Final = {value: name for name, value in STOP_REASONS.items()} | {
    # Letta has no names of their own for these.
    agents_pb2.STOP_REASON_CONTEXT_WINDOW_OVERFLOW: "error",
    agents_pb2.STOP_REASON_CONTENT_FILTER: "llm_api_error",
    agents_pb2.STOP_REASON_BUDGET_EXCEEDED: "insufficient_credits",
    agents_pb2.STOP_REASON_UNSPECIFIED: "error",
}
RUN_STATUSES: Final = named(runs_pb2, "RUN_STATUS", "created", "running", "completed", "failed", "cancelled")
RUN_STATUS_NAMES: Final = {value: name for name, value in RUN_STATUSES.items()}
STEP_STATUSES: Final = named(runs_pb2, "STEP_STATUS", "pending", "success", "failed", "cancelled")
STEP_STATUS_NAMES: Final = {value: name for name, value in STEP_STATUSES.items()}
IDENTITY_TYPES: Final = named(identities_pb2, "IDENTITY_TYPE", "org", "user", "other")
IDENTITY_TYPE_NAMES: Final = {value: name for name, value in IDENTITY_TYPES.items()}
ROLES: Final = named(message_pb2, "ROLE", "system", "user", "assistant", "tool", "approval", "summary")
ROLE_NAMES: Final = {value: name for name, value in ROLES.items()}
NAMES: Final = {
    "callback_sent_at": "callback_sent_time",
    "callback_status_code": "callback_status",
    "completed_at": "completion_time",
    "created_at": "create_time",
    "embedding_chunk_size": "chunk_size",
    "file_name": "name",
    "file_size": "size_bytes",
    "file_path": "path",
    "file_type": "media_type",
    "last_accessed_at": "last_access_time",
    "last_message_at": "last_message_time",
    "last_run_completion": "last_run_completion_time",
    "last_run_duration_ms": "last_run_duration",
    "last_synced": "last_refresh_time",
    "context_window_limit": "context_window",
    "max_tokens": "max_output_tokens",
    "metadata_": "metadata",
    "model_endpoint": "endpoint",
    "model_handle": "model",
    "original_file_name": "original_name",
    "provider_name": "provider",
    "put_inner_thoughts_in_kwargs": "inner_thoughts_in_kwargs",
    "source_id": "folder_id",
    "source_name": "name",
    "strict": "strict_tool_schemas",
    "timezone": "time_zone",
    "total_duration_ns": "total_duration",
    "total_size": "size_bytes",
    "ttft_ns": "time_to_first_token",
    "updated_at": "update_time",
}
"""The names of fields in the contracts, by those in Letta."""
ORIGIN: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
"""The fields of a resource that say where it comes from. The contracts have them in its provenance."""
_PROVENANCE: Final = frozenset({*ORIGIN, "created_by_id", "last_updated_by_id"})
_CARRIED: Final = frozenset({"metadata", "json_schema", "args_json_schema", "output_schema", "annotations"})
"""The fields of the contracts that carry JSON as text."""
_ENUMS: Final[Mapping[str, Mapping[Any, str]]] = {
    "mnemesh.agents.v1.StopReason": STOP_REASON_NAMES,
    "mnemesh.agents.v1.RunStatus": RUN_STATUS_NAMES,
    "mnemesh.agents.v1.StepStatus": STEP_STATUS_NAMES,
}
_plans: Final[dict[tuple[object, object], list[tuple[str, Callable[[Any], Any]]]]] = {}
"""What reads the fields of a class of objects, by it and by the class of the message."""


def shown(kind: type[T], message: Message, **given: Any) -> T:
    """Returns a message as an object of Letta's JSON.

    Args:
        kind: the class of the object. Each of its fields that the message has by its name, and that is neither a
            message nor an enum without names above, is read from it. An absent value is None.
        message: of the contracts.
        given: the other fields, and those that are read in another way.
    """
    readers = _plans.get((kind, type(message)))
    if readers is None:
        readers = _plans[kind, type(message)] = _readers(kind, type(message))
    return kind(**{name: read(message) for name, read in readers if name not in given}, **given)


def fields_of(message: Message, *names: str) -> dict[str, Any]:
    """Returns fields of a message by their names in Letta. An absent value is None."""
    fields = message.DESCRIPTOR.fields_by_name
    found = {name: _reader(fields.get(name) or fields[NAMES[name]], name, optional=False) for name in names}
    return {name: read(message) for name, read in found.items() if read is not None}


def _readers(kind: type, message: type[Message]) -> list[tuple[str, Callable[[Any], Any]]]:
    fields = message.DESCRIPTOR.fields_by_name
    hints = get_type_hints(kind)
    found = []
    for name in kind.__struct_fields__:  # type: ignore[attr-defined]
        field = fields.get(name) or fields.get(NAMES.get(name, ""))
        if field is None and name in _PROVENANCE and "provenance" in fields:
            found.append((name, _of_provenance(name)))
        elif field is not None and (read := _reader(field, name, optional=NoneType in get_args(hints[name]))):
            found.append((name, read))
    return found


def _of_provenance(name: str) -> Callable[[Any], Any]:
    return lambda message: getattr(message.provenance, name) or None


def _reader(field: Any, name: str, *, optional: bool) -> Callable[[Any], Any] | None:
    """Returns what reads a field; None for one that only its resource knows how to show."""
    if field.is_repeated:
        return None if field.message_type else lambda message: list(getattr(message, field.name))
    if field.message_type is not None:
        match field.message_type.full_name:
            case "google.protobuf.Timestamp":
                return lambda message: moment_of(message, field.name)
            case "google.protobuf.Duration":
                return lambda message: duration_of(message, field.name, nanoseconds=name.endswith("_ns"))
        return None
    if field.enum_type is not None:
        names = _ENUMS.get(field.enum_type.full_name)
        if names is None:
            return None
        read = present if field.has_presence else getattr
        return lambda message: names.get(read(message, field.name))
    if field.name in _CARRIED:
        return lambda message: json_value(getattr(message, field.name))
    if field.has_presence:
        return lambda message: present(message, field.name)
    if optional and field.type == FieldDescriptor.TYPE_STRING:
        return lambda message: getattr(message, field.name) or None
    return lambda message: getattr(message, field.name)


def fill(message: Any, given: object) -> list[str]:
    """Sets the fields of a message that an object of Letta's JSON has, and returns their paths in the message.

    Args:
        message: of the contracts.
        given: an object of the REST API, or a part of a row. What is None, what the message does not have by its name,
            and what is itself a message or an enum there, is not set.

    Raises:
        TypeError, ValueError: a value has another type, or is out of range.
    """
    names: Mapping[str, Any] = given if isinstance(given, Mapping) else _fields_of_object(given)
    fields, paths = message.DESCRIPTOR.fields_by_name, []
    for name, value in names.items():
        if value is None:
            continue
        field = fields.get(name) or fields.get(NAMES.get(name, ""))
        if field is not None and _set(message, field, value):
            paths.append(field.name)
        elif field is None and value and name in _PROVENANCE and "provenance" in fields:
            setattr(message.provenance, name, value)
            paths.append(f"provenance.{name}")
    return paths


def _fields_of_object(given: Any) -> dict[str, Any]:
    return {name: getattr(given, name) for name in given.__struct_fields__}


def _set(message: Any, field: Any, value: Any) -> bool:
    """Sets a field; False for a kind of field that only its resource knows how to read."""
    if field.enum_type is not None:
        return False
    if field.message_type is not None:
        if field.message_type.full_name != "google.protobuf.Timestamp" or field.is_repeated:
            return False
        if (time := timestamp(value)) is None:
            return False
        getattr(message, field.name).CopyFrom(time)
    elif field.is_repeated:
        getattr(message, field.name).extend(value)
    elif field.name in _CARRIED:
        setattr(message, field.name, json_text(value))
    elif field.type == FieldDescriptor.TYPE_STRING and isinstance(value, int | float):
        setattr(message, field.name, str(value))
    else:
        is_flag = field.type == FieldDescriptor.TYPE_BOOL and isinstance(value, int)
        setattr(message, field.name, bool(value) if is_flag else value)
    return True


def from_row(kind: type[MessageT], row: Row, names: Iterable[str], **given: Any) -> MessageT:
    """Returns a message with the given fields, and those of a row that `names` lists. Empty JSON objects are absent.

    The times `created_at` and `updated_at` are always read. A row that was never updated has one time.
    """
    message = kind(**given)
    times = {"created_at": row.get("created_at"), "updated_at": row.get("updated_at") or row.get("created_at")}
    fill(message, {name: value for name in names if (value := row.get(name)) not in ({}, [])} | times)
    return message


def present(message: Message, name: str) -> Any:
    """Returns a field of a message; None if it is absent."""
    return getattr(message, name) if message.HasField(name) else None


def moment_of(message: Message, name: str) -> datetime | None:
    """Returns a time of a message; None if it is absent."""
    return timestamp_from_proto(getattr(message, name), name) if message.HasField(name) else None


def duration_of(message: Message, name: str, *, nanoseconds: bool) -> int | None:
    """Returns a duration of a message, in milliseconds or nanoseconds; None if it is absent."""
    if not message.HasField(name):
        return None
    duration: Duration = getattr(message, name)
    return duration.ToNanoseconds() if nanoseconds else duration.ToMilliseconds()


def set_present(message: Message, **values: Any) -> None:
    """Sets the fields whose value is not None."""
    for name, value in values.items():
        if value is not None:
            setattr(message, name, value)


def id_of(value: str, prefix: str, *, namespace: str = "letta") -> str:
    """Returns an id of Letta as it is if it has our form, and otherwise one that is derived from it."""
    return value if is_id(value, prefix) else derive_id(prefix, namespace, value)


def optional_text(row: Row, key: str) -> str | None:
    """Returns a text of a row, or None if it is absent."""
    value = row.get(key)
    return None if value is None else well_formed(str(value))


def json_text(value: object) -> str | None:
    """Returns a JSON value as text; None for None."""
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_value(text: str) -> Any:
    """Returns the JSON value of a text; None for an empty one."""
    return json.loads(text) if text else None


def time_zone(row: Row) -> str:
    """Returns the time zone of an agent; UTC if it has none, or an unknown one. Letta does not check it."""
    name = row.get("timezone") or "UTC"
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "UTC"
    return str(name)


def moment(value: object) -> datetime | None:
    """Returns a time of Letta: a datetime, or text in ISO form. Times without a zone are UTC.

    Raises:
        ValueError: the text is not a time.
    """
    if value is None or value == "":
        return None
    parsed = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def timestamp(value: object) -> Timestamp | None:
    """Returns a time of Letta as a timestamp; None if it is absent."""
    parsed = moment(value)
    if parsed is None:
        return None
    result = Timestamp()
    result.FromDatetime(parsed)
    return result


def iso_time(value: Timestamp) -> str:
    """Returns a timestamp in Letta's form."""
    return value.ToDatetime(UTC).isoformat()
