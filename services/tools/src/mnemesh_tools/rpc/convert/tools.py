"""Tools, and the requests that list and update them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from mnemesh.tools.v1 import tools_pb2
from mnemesh.tools.v1 import tools_service_pb2 as pb
from mnemesh.types.v1 import audit_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import timestamp_from_proto, timestamp_to_proto

from mnemesh_tools.model.packages import PackagesState, PackagesStatus
from mnemesh_tools.model.tools import (
    Requirement,
    RestoredTool,
    SourceType,
    Tool,
    ToolFilter,
    ToolOrder,
    ToolSecret,
    ToolSpec,
    ToolType,
)
from mnemesh_tools.usecases.tool_search import ToolHit

T = TypeVar("T")

_SOURCE_TYPES: Final = {
    tools_pb2.SOURCE_TYPE_UNSPECIFIED: SourceType.PYTHON,
    tools_pb2.SOURCE_TYPE_PYTHON: SourceType.PYTHON,
    tools_pb2.SOURCE_TYPE_TYPESCRIPT: SourceType.TYPESCRIPT,
}
_SOURCE_TYPE_NUMBERS: Final = {
    SourceType.PYTHON: tools_pb2.SOURCE_TYPE_PYTHON,
    SourceType.TYPESCRIPT: tools_pb2.SOURCE_TYPE_TYPESCRIPT,
}


def optional_field(message: Message, name: str) -> Any:
    """Returns the value of a field with presence, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def enum_from_proto(values: Mapping[Any, T], number: int, field: str) -> T:
    """Returns the domain value of an enum's number.

    Raises:
        InvalidArgument: The number is unknown.
    """
    if number not in values:
        raise InvalidArgument(f"{field} has the unknown value {number}.", field=field)
    return values[number]


def source_type_from_proto(number: int, field: str) -> SourceType:
    """Returns the language of a source; the default is Python.

    Raises:
        InvalidArgument: The number is unknown.
    """
    return enum_from_proto(_SOURCE_TYPES, number, field)


def source_type_to_proto(source_type: SourceType) -> tools_pb2.SourceType.ValueType:
    """Returns the enum value of a language."""
    return _SOURCE_TYPE_NUMBERS[source_type]


def requirements_from_proto(messages: Iterable[tools_pb2.PackageRequirement]) -> tuple[Requirement, ...]:
    """Returns the packages of a repeated field."""
    return tuple(Requirement(message.name, optional_field(message, "version")) for message in messages)


def requirements_to_proto(requirements: Iterable[Requirement]) -> list[tools_pb2.PackageRequirement]:
    """Returns the messages of packages."""
    return [tools_pb2.PackageRequirement(name=item.name, version=item.version) for item in requirements]


R = TypeVar("R", pb.CreateToolRequest, pb.UpsertToolRequest, pb.UpdateToolRequest)

_TYPES: Final = {
    tools_pb2.TOOL_TYPE_CUSTOM: ToolType.CUSTOM,
    tools_pb2.TOOL_TYPE_BUILTIN: ToolType.BUILTIN,
    tools_pb2.TOOL_TYPE_MCP: ToolType.MCP,
    tools_pb2.TOOL_TYPE_CLIENT: ToolType.CLIENT,
}
_TYPES_WITH_DEFAULT: Final = {tools_pb2.TOOL_TYPE_UNSPECIFIED: ToolType.CUSTOM, **_TYPES}
_TYPE_NUMBERS: Final = {value: number for number, value in _TYPES.items()}
_STATES: Final = {
    PackagesState.PENDING: tools_pb2.PACKAGES_STATE_PENDING,
    PackagesState.RESOLVING: tools_pb2.PACKAGES_STATE_RESOLVING,
    PackagesState.INSTALLING: tools_pb2.PACKAGES_STATE_INSTALLING,
    PackagesState.READY: tools_pb2.PACKAGES_STATE_READY,
    PackagesState.FAILED: tools_pb2.PACKAGES_STATE_FAILED,
}
_ORDERS: Final = {
    pb.TOOL_ORDER_BY_UNSPECIFIED: ToolOrder.CREATE_TIME,
    pb.TOOL_ORDER_BY_CREATE_TIME: ToolOrder.CREATE_TIME,
    pb.TOOL_ORDER_BY_UPDATE_TIME: ToolOrder.UPDATE_TIME,
    pb.TOOL_ORDER_BY_NAME: ToolOrder.NAME,
}
_OPTIONAL: Final = (
    *("description", "source_code", "args_json_schema", "default_requires_approval", "metadata"),
    *("mcp_server_id", "mcp_tool_name"),
)
_PLAIN: Final = (
    *("name", "json_schema", "return_char_limit", "enable_parallel_execution", "idempotent"),
    *("timeout_seconds", "allow_network"),
)
_PROVENANCE_IDS: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
# The type of a tool is set at its creation and cannot be written.
_WRITABLE: Final = frozenset(
    {*_OPTIONAL, *_PLAIN, "pip_requirements", "npm_requirements", "network_hosts", "secrets", "tags", "source_type"}
)


def tool_spec_from_proto(message: tools_pb2.Tool) -> ToolSpec:
    """Returns the definition in a message, without id, times, revision and authors.

    Raises:
        InvalidArgument: An enum has an unknown value.
    """
    values: dict[str, Any] = {
        **{name: getattr(message, name) for name in _PLAIN},
        **{name: optional_field(message, name) for name in _OPTIONAL},
        **{name: optional_field(message.provenance, name) for name in _PROVENANCE_IDS},
    }
    return ToolSpec(
        type=enum_from_proto(_TYPES_WITH_DEFAULT, message.type, "tool.type"),
        source_type=source_type_from_proto(message.source_type, "tool.source_type"),
        pip_requirements=requirements_from_proto(message.pip_requirements),
        npm_requirements=requirements_from_proto(message.npm_requirements),
        network_hosts=tuple(message.network_hosts),
        secrets=tuple(ToolSecret(secret.name, optional_field(secret, "value")) for secret in message.secrets),
        tags=tuple(message.tags),
        **values,
    )


def restored_from_proto(message: tools_pb2.Tool) -> RestoredTool:
    """Returns the values of a tool that was created elsewhere. Raises InvalidArgument for a bad id or time."""
    return RestoredTool(
        id=require_id(message.id, "tool", "tool.id"),
        created_at=timestamp_from_proto(message.create_time, "tool.create_time"),
        updated_at=timestamp_from_proto(message.update_time, "tool.update_time"),
        created_by_id=message.provenance.created_by_id,
        last_updated_by_id=message.provenance.last_updated_by_id,
        revision=message.revision,
    )


def tool_to_proto(tool: Tool, packages: PackagesStatus | None = None) -> tools_pb2.Tool:
    """Returns the message of a tool, with the state of its packages on this server."""
    spec = tool.spec
    return tools_pb2.Tool(
        id=tool.id,
        type=_TYPE_NUMBERS[spec.type],
        source_type=source_type_to_proto(spec.source_type),
        pip_requirements=requirements_to_proto(spec.pip_requirements),
        npm_requirements=requirements_to_proto(spec.npm_requirements),
        network_hosts=spec.network_hosts,
        packages=None if packages is None else packages_to_proto(packages),
        secrets=[_secret_to_proto(secret) for secret in spec.secrets],
        tags=spec.tags,
        revision=tool.revision,
        create_time=timestamp_to_proto(tool.created_at),
        update_time=timestamp_to_proto(tool.updated_at),
        provenance=audit_pb2.Provenance(
            created_by_id=tool.created_by_id,
            last_updated_by_id=tool.last_updated_by_id,
            **{name: getattr(spec, name) for name in _PROVENANCE_IDS},
        ),
        **{name: getattr(spec, name) for name in (*_PLAIN, *_OPTIONAL)},
    )


def _secret_to_proto(secret: ToolSecret) -> tools_pb2.ToolSecret:
    variable = secret.stored
    return tools_pb2.ToolSecret(
        name=secret.name, update_time=None if variable is None else timestamp_to_proto(variable.updated_at)
    )


def request_without_secrets(request: R, fingerprint: Callable[[str], str]) -> R:
    """Returns a copy of a request with a fingerprint in place of each value, to compare repeated requests by."""
    if not request.tool.secrets:
        return request
    copy = type(request)()
    copy.CopyFrom(request)
    for secret in copy.tool.secrets:
        if secret.HasField("value"):
            secret.value = fingerprint(secret.value)
    return copy


def packages_to_proto(status: PackagesStatus) -> tools_pb2.ToolPackages:
    """Returns the message of the packages of a tool."""
    return tools_pb2.ToolPackages(
        state=_STATES[status.state],
        locked=requirements_to_proto(status.locked),
        error=status.error,
        size_bytes=status.size_bytes,
        start_time=None if status.started_at is None else timestamp_to_proto(status.started_at),
    )


def written_fields_from_proto(mask: FieldMask, message: tools_pb2.Tool, *, default_to_set: bool) -> frozenset[str]:
    """Returns the fields of `ToolSpec` that a mask names.

    Args:
        mask: The mask.
        message: The tool.
        default_to_set: Makes an empty mask name the fields that are set in `message`, instead of refusing it.

    Raises:
        InvalidArgument: A path is unknown or cannot be written, or the mask is empty.
    """
    if not mask.paths and not default_to_set:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    paths = list(mask.paths)
    if not paths:
        present = {field.name for field, _ in message.ListFields()}
        paths = [*(present & _WRITABLE), *(["provenance"] if "provenance" in present else [])]
    written: set[str] = set()
    for path in paths:
        parent, _, child = path.partition(".")
        if parent == "provenance" and (not child or child in _PROVENANCE_IDS):
            written |= {child} if child else set(_PROVENANCE_IDS)
        elif path in _WRITABLE:
            written.add(path)
        else:
            raise InvalidArgument(f"update_mask must not name {path[:100]}.", field="update_mask")
    return frozenset(written)


def tool_filter_from_proto(message: pb.ToolFilter) -> ToolFilter:
    """Returns the filter of a list or a count.

    `valid_schema_only` has no effect: every stored schema was validated when it was written.

    Raises:
        InvalidArgument: A type is unknown.
    """
    return ToolFilter(
        tool_ids=tuple(message.tool_ids),
        names=tuple(message.names),
        types=tuple(enum_from_proto(_TYPES, number, "filter.types") for number in message.types),
        exclude_types=tuple(
            enum_from_proto(_TYPES, number, "filter.exclude_types") for number in message.exclude_types
        ),
        text_search=optional_field(message, "text_search"),
        tags_any=tuple(message.tags_any),
        mcp_server_id=optional_field(message, "mcp_server_id"),
    )


def tool_search_filter_from_proto(request: pb.SearchToolsRequest) -> ToolFilter:
    """Returns the filter of a search.

    Raises:
        InvalidArgument: A type is unknown.
    """
    types = tuple(enum_from_proto(_TYPES, number, "types") for number in request.types)
    return ToolFilter(types=types, tags_any=tuple(request.tags_any))


def tool_hit_to_proto(hit: ToolHit, tool: tools_pb2.Tool) -> pb.ToolHit:
    """Returns the message of a hit, with that of its tool."""
    return pb.ToolHit(tool=tool, score=hit.score, vector_rank=hit.vector_rank, text_rank=hit.text_rank)


def tool_order_from_proto(number: int) -> ToolOrder:
    """Returns the sort key of a list; the default is the create time.

    Raises:
        InvalidArgument: The value is unknown.
    """
    return enum_from_proto(_ORDERS, number, "order_by")
