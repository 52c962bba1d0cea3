"""Tools, and the requests that list and update them."""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import tools_pb2
from mnemesh.tools.v1 import tools_service_pb2 as pb
from mnemesh.types.v1 import audit_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_types.tools import PackagesStatus, ToolFilter, ToolType
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, optional_field, optional_to_proto, register

from mnemesh_tools.model.tools import RestoredTool, Tool, ToolOrder, ToolSecret, ToolSpec
from mnemesh_tools.usecases.tool_search import ToolHit

R = TypeVar("R", pb.CreateToolRequest, pb.UpsertToolRequest, pb.UpdateToolRequest)

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


enum_of(pb.ToolOrderBy, ToolOrder, "CREATE_TIME")
_SPEC: Final = Conversion(tools_pb2.Tool, ToolSpec)
_RESTORED: Final = Conversion(tools_pb2.Tool, RestoredTool)


def tool_spec_from_proto(message: tools_pb2.Tool) -> ToolSpec:
    """Returns the definition in a message, without id, times, revision and authors.

    Raises:
        InvalidArgument: An enum has an unknown value.
    """
    values = {name: optional_field(message.provenance, name) for name in _PROVENANCE_IDS}
    return _SPEC.from_proto(message, "tool", **values)


def restored_from_proto(message: tools_pb2.Tool) -> RestoredTool:
    """Returns the values of a tool that was created elsewhere. Raises InvalidArgument for a bad id or time."""
    require_id(message.id, "tool", "tool.id")
    origin = message.provenance
    return _RESTORED.from_proto(
        message, "tool", created_by_id=origin.created_by_id, last_updated_by_id=origin.last_updated_by_id
    )


def tool_to_proto(tool: Tool, packages: PackagesStatus | None = None) -> tools_pb2.Tool:
    """Returns the message of a tool, with the state of its packages on this server."""
    spec = tool.spec
    return _SPEC.to_proto(
        spec,
        id=tool.id,
        packages=optional_to_proto(packages),
        revision=tool.revision,
        create_time=timestamp_to_proto(tool.created_at),
        update_time=timestamp_to_proto(tool.updated_at),
        provenance=audit_pb2.Provenance(
            created_by_id=tool.created_by_id,
            last_updated_by_id=tool.last_updated_by_id,
            **{name: getattr(spec, name) for name in _PROVENANCE_IDS},
        ),
    )


def _write_secret(secret: ToolSecret) -> tools_pb2.ToolSecret:
    variable = secret.stored
    return tools_pb2.ToolSecret(
        name=secret.name, update_time=None if variable is None else timestamp_to_proto(variable.updated_at)
    )


def _read_secret(secret: tools_pb2.ToolSecret, _field: str) -> ToolSecret:
    return ToolSecret(secret.name, optional_field(secret, "value"))


register(tools_pb2.ToolSecret, _read_secret, _write_secret)


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
    for name in ("types", "exclude_types"):
        _require_types(getattr(message, name), f"filter.{name}")
    return ToolFilter.from_proto(message, "filter")


def _require_types(numbers: Iterable[int], field: str) -> None:
    if tools_pb2.TOOL_TYPE_UNSPECIFIED in numbers:
        raise InvalidArgument(f"{field} has the unknown value 0.", field=field)


def tool_search_filter_from_proto(request: pb.SearchToolsRequest) -> ToolFilter:
    """Returns the filter of a search.

    Raises:
        InvalidArgument: A type is unknown.
    """
    _require_types(request.types, "types")
    types = tuple(enum_from_proto(ToolType, number, "types") for number in request.types)
    return ToolFilter(types=types, tags_any=tuple(request.tags_any))


def tool_hit_to_proto(hit: ToolHit, tool: tools_pb2.Tool) -> pb.ToolHit:
    """Returns the message of a hit, with that of its tool."""
    return pb.ToolHit(tool=tool, score=hit.score, vector_rank=hit.vector_rank, text_rank=hit.text_rank)
