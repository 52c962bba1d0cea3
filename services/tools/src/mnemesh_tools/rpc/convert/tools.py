"""Tools and executions between the wire and the domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import execution_service_pb2, tools_pb2, tools_service_pb2
from mnemesh_kit.errors import InvalidArgument

from mnemesh_tools.model.tools import Requirement, SourceType, Tool, ToolFilter, ToolOrder, ToolSpec, ToolType
from mnemesh_tools.sandbox import OutcomeStatus
from mnemesh_tools.sandbox.task import AgentView
from mnemesh_tools.usecases.executions import AdHocTool, Execution

T = TypeVar("T")

_TYPES: Final = {
    tools_pb2.TOOL_TYPE_CUSTOM: ToolType.CUSTOM,
    tools_pb2.TOOL_TYPE_BUILTIN: ToolType.BUILTIN,
    tools_pb2.TOOL_TYPE_MCP: ToolType.MCP,
    tools_pb2.TOOL_TYPE_CLIENT: ToolType.CLIENT,
}
_TYPE_NUMBERS: Final = {value: number for number, value in _TYPES.items()}
_SOURCES: Final = {
    tools_pb2.SOURCE_TYPE_PYTHON: SourceType.PYTHON,
    tools_pb2.SOURCE_TYPE_TYPESCRIPT: SourceType.TYPESCRIPT,
}
_SOURCE_NUMBERS: Final = {value: number for number, value in _SOURCES.items()}
_ORDERS: Final = {
    tools_service_pb2.TOOL_ORDER_BY_UNSPECIFIED: ToolOrder.CREATE_TIME,
    tools_service_pb2.TOOL_ORDER_BY_CREATE_TIME: ToolOrder.CREATE_TIME,
    tools_service_pb2.TOOL_ORDER_BY_UPDATE_TIME: ToolOrder.UPDATE_TIME,
    tools_service_pb2.TOOL_ORDER_BY_NAME: ToolOrder.NAME,
}
_STATUSES: Final = {
    OutcomeStatus.SUCCESS: execution_service_pb2.EXECUTION_STATUS_SUCCESS,
    OutcomeStatus.ERROR: execution_service_pb2.EXECUTION_STATUS_ERROR,
    OutcomeStatus.TIMED_OUT: execution_service_pb2.EXECUTION_STATUS_TIMED_OUT,
    OutcomeStatus.KILLED: execution_service_pb2.EXECUTION_STATUS_KILLED,
}
_OPTIONAL: Final = (
    "description",
    "source_code",
    "args_json_schema",
    "default_requires_approval",
    "metadata",
    "mcp_server_id",
    "mcp_tool_name",
)
_PLAIN: Final = (
    "name",
    "json_schema",
    "return_char_limit",
    "enable_parallel_execution",
    "idempotent",
    "timeout_seconds",
    "allow_network",
)
_PROVENANCE: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
_LISTS: Final = ("pip_requirements", "npm_requirements", "tags")
# What a mask may name; `type` is settled when a tool is made.
WRITABLE: Final = frozenset({*_OPTIONAL, *_PLAIN, *_LISTS, "source_type"})


def spec_from_proto(tool: tools_pb2.Tool) -> ToolSpec:
    """What a client wrote; ids, times, revision and authorship are not its to write."""
    provenance = tool.provenance
    return ToolSpec(
        type=_known(_TYPES, tool.type, ToolType.CUSTOM, "tool.type"),
        source_type=_known(_SOURCES, tool.source_type, SourceType.PYTHON, "tool.source_type"),
        pip_requirements=_requirements(tool.pip_requirements),
        npm_requirements=_requirements(tool.npm_requirements),
        tags=tuple(tool.tags),
        **{name: getattr(tool, name) for name in _PLAIN},
        **{name: getattr(tool, name) if tool.HasField(name) else None for name in _OPTIONAL},  # type: ignore[arg-type]
        **{name: getattr(provenance, name) if provenance.HasField(name) else None for name in _PROVENANCE},  # type: ignore[arg-type]
    )


def tool_to_proto(tool: Tool) -> tools_pb2.Tool:
    """A stored tool as clients read it."""
    spec = tool.spec
    message = tools_pb2.Tool(
        id=tool.id,
        type=_TYPE_NUMBERS[spec.type],
        source_type=_SOURCE_NUMBERS[spec.source_type],
        pip_requirements=[_requirement_to_proto(item) for item in spec.pip_requirements],
        npm_requirements=[_requirement_to_proto(item) for item in spec.npm_requirements],
        tags=spec.tags,
        revision=tool.revision,
        **{name: getattr(spec, name) for name in (*_PLAIN, *_OPTIONAL)},
    )
    message.create_time.FromDatetime(tool.created_at)
    message.update_time.FromDatetime(tool.updated_at)
    message.provenance.created_by_id = tool.created_by_id
    message.provenance.last_updated_by_id = tool.last_updated_by_id
    for name in _PROVENANCE:
        if (value := getattr(spec, name)) is not None:
            setattr(message.provenance, name, value)
    return message


def written_fields(mask: FieldMask, tool: tools_pb2.Tool, *, whole_if_empty: bool) -> frozenset[str]:
    """The fields of ToolSpec that a mask names; of an empty one, those that `tool` has.

    Raises:
        InvalidArgument: an unknown path, or one that cannot be written.
    """
    if not mask.paths and not whole_if_empty:
        raise InvalidArgument("update_mask names no field to write.", field="update_mask")
    paths = list(mask.paths)
    if not paths:
        present = {field.name for field, _ in tool.ListFields()}
        paths = [*(present & WRITABLE), *(["provenance"] if "provenance" in present else [])]
    written: set[str] = set()
    for path in paths:
        first, _, rest = path.partition(".")
        if first == "provenance" and (not rest or rest in _PROVENANCE):
            written |= {rest} if rest else set(_PROVENANCE)
        elif path in WRITABLE:
            written.add(path)
        else:
            raise InvalidArgument(f"update_mask names {path[:100]}, which cannot be written.", field="update_mask")
    return frozenset(written)


def filter_from_proto(where: tools_service_pb2.ToolFilter) -> ToolFilter:
    """A list's filter. Stored schemas are checked when written, so `valid_schema_only` holds for all of them."""
    return ToolFilter(
        tool_ids=tuple(where.tool_ids),
        names=tuple(where.names),
        types=tuple(_required(_TYPES, number, "filter.types") for number in where.types),
        exclude_types=tuple(_required(_TYPES, number, "filter.exclude_types") for number in where.exclude_types),
        text_search=where.text_search if where.HasField("text_search") else None,
        tags_any=tuple(where.tags_any),
        mcp_server_id=where.mcp_server_id if where.HasField("mcp_server_id") else None,
    )


def order_from_proto(number: int) -> ToolOrder:
    """What a list is sorted by."""
    return _required(_ORDERS, number, "order_by")


def source_type_from_proto(number: int, field: str) -> SourceType:
    """The language of a source; unspecified is Python."""
    return _known(_SOURCES, number, SourceType.PYTHON, field)


def ad_hoc_from_proto(tool: execution_service_pb2.AdHocTool) -> AdHocTool:
    """A tool that is not stored."""
    return AdHocTool(
        source_code=tool.source_code,
        source_type=source_type_from_proto(tool.source_type, "ad_hoc.source_type"),
        name=tool.name if tool.HasField("name") else None,
        args_json_schema=tool.args_json_schema if tool.HasField("args_json_schema") else None,
        pip_requirements=_requirements(tool.pip_requirements),
        npm_requirements=_requirements(tool.npm_requirements),
        allow_network=tool.allow_network,
    )


def agent_from_proto(request: execution_service_pb2.ExecuteToolRequest) -> AgentView | None:
    """What the tool may see of its agent, if anything."""
    if not request.HasField("agent_state"):
        return None
    state = request.agent_state
    return AgentView(state.agent_id, state.name, dict(state.blocks))


def timeout_from_proto(request: execution_service_pb2.ExecuteToolRequest) -> float | None:
    """The caller's bound in seconds, if it set one."""
    return request.timeout.seconds + request.timeout.nanos / 1e9 if request.HasField("timeout") else None


def execution_to_proto(execution: Execution) -> execution_service_pb2.ExecuteToolResponse:
    """What came of a run."""
    outcome = execution.outcome
    return execution_service_pb2.ExecuteToolResponse(
        status=_STATUSES[outcome.status],
        result=execution.result,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        duration=Duration(seconds=int(outcome.duration), nanos=int(outcome.duration % 1 * 1e9)),
        truncated=execution.truncated,
        changed_blocks=dict(outcome.changed_blocks),
    )


def _requirements(items: Iterable[tools_pb2.PackageRequirement]) -> tuple[Requirement, ...]:
    return tuple(Requirement(item.name, item.version if item.HasField("version") else None) for item in items)


def _requirement_to_proto(item: Requirement) -> tools_pb2.PackageRequirement:
    return tools_pb2.PackageRequirement(name=item.name, version=item.version)


def _known(values: Mapping[Any, T], number: int, unspecified: T, field: str) -> T:
    return unspecified if number == 0 else _required(values, number, field)


def _required(values: Mapping[Any, T], number: int, field: str) -> T:
    if number not in values:
        raise InvalidArgument(f"{field} has no value {number}.", field=field)
    return values[number]
