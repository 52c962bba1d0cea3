"""Groups, their managers, filters and updates, requests for their messages, and sleeptime settings."""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import groups_pb2 as pb
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import Cursor, PageQuery, page_token
from mnemesh_kit.time import optional_timestamp_from_proto
from mnemesh_types.convert import role_from_proto
from mnemesh_types.twin import Conversion, enum_of, optional_field, register, written

from mnemesh_orchestrator.model.conversations import MessagePage, MessageQuery
from mnemesh_orchestrator.model.groups import (
    BACKGROUND_TYPES,
    Group,
    GroupFilter,
    GroupOrder,
    ManagerConfig,
    ManagerType,
    SleeptimePreview,
    SleeptimeSettings,
    SleeptimeTarget,
)
from mnemesh_orchestrator.rpc.convert.fields import PROVENANCE_IDS

enum_of(pb.ManagerType, ManagerType)
enum_of(rpc.GroupOrderBy, GroupOrder, "CREATED_AT")
GROUP: Final = Conversion(pb.Group, Group, manager_config="manager")
GROUP_FILTER: Final = Conversion(rpc.GroupFilter, GroupFilter)
SLEEPTIME_SETTINGS: Final = Conversion(rpc.SleeptimeSettings, SleeptimeSettings)
_WRITABLE: Final = (
    *("description", "agent_ids", "manager_config", "shared_block_ids", "hidden", "metadata", "turns_counter"),
    *PROVENANCE_IDS,
)
_MANAGERS: Final[Mapping[ManagerType, Callable[..., Any]]] = {
    ManagerType.ROUND_ROBIN: pb.RoundRobinManager,
    ManagerType.SUPERVISOR: pb.SupervisorManager,
    ManagerType.DYNAMIC: pb.DynamicManager,
    ManagerType.SLEEPTIME: pb.SleeptimeManager,
    ManagerType.VOICE_SLEEPTIME: pb.VoiceSleeptimeManager,
    ManagerType.SWARM: pb.SwarmManager,
}
_NAMES: Final = {
    "sleeptime_agent_frequency": "frequency",
    "interval": "interval_seconds",
    "inactivity": "inactivity_seconds",
}
"""The field names of `ManagerConfig` that differ from those of the contract."""
_DURATIONS: Final = ("interval", "inactivity")


def group_to_proto(group: Group) -> pb.Group:
    """Returns the message of a group."""
    message = GROUP.to_proto(group)
    if group.manager.type not in BACKGROUND_TYPES:
        message.ClearField("turns_counter")
    return message


def manager_to_proto(config: ManagerConfig) -> pb.ManagerConfig:
    """Returns the message of a manager."""
    manager = _MANAGERS[config.type]()
    values = {}
    for name in manager.DESCRIPTOR.fields_by_name:
        value = getattr(config, _NAMES.get(name, name))
        values[name] = _duration(value) if name in _DURATIONS and value is not None else value
    return pb.ManagerConfig(**{config.type: _MANAGERS[config.type](**values)})


def _duration(seconds: float) -> Duration:
    result = Duration()
    result.FromTimedelta(timedelta(seconds=seconds))
    return result


def manager_from_proto(message: pb.ManagerConfig, _field: str = "") -> ManagerConfig:
    """Returns the manager of a message. None is round robin."""
    name = message.WhichOneof("config")
    if name is None:
        return ManagerConfig()
    kind = ManagerType(name)
    return ManagerConfig(kind, **dict(_manager_values(kind, getattr(message, name))))


register(pb.ManagerConfig, manager_from_proto, manager_to_proto)


def _manager_values(kind: ManagerType, manager: Any) -> Iterator[tuple[str, Any]]:
    for name in _MANAGERS[kind]().DESCRIPTOR.fields_by_name:
        yield _NAMES.get(name, name), _manager_value(manager, name)


def _manager_value(manager: Any, name: str) -> Any:
    if name == "manager_agent_id":
        return manager.manager_agent_id or None
    if name in _DURATIONS:
        duration = optional_field(manager, name)
        return None if duration is None else duration.seconds + duration.nanos / 1e9
    return optional_field(manager, name)


def group_draft_from_proto(message: pb.Group) -> Group:
    """Returns the group that a caller wants to create, without id, organization and times."""
    return GROUP.from_proto(written(message, _WRITABLE), "group", organization_id="")


def group_update_from_proto(request: rpc.UpdateGroupRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the group, and the new values by the field names of `Group`.

    The value of `provenance` is a dictionary of those of its fields that change, that of `manager_fields` the kind of
    the manager with such a dictionary.

    Raises:
        InvalidArgument: The id is malformed, the mask is empty, or it names a field that cannot be updated.
    """
    group_id = require_id(request.group.id, "group", "group.id")
    every = request.update_mask.paths
    manager = [path for path in every if path.startswith("manager_config.")]
    paths = [path for path in every if path not in manager]
    kinds: dict[ManagerType, dict[str, Any]] = {}
    for path in manager:
        kind, name, value = _manager_change(request.group, path)
        kinds.setdefault(kind, {})[name] = value
    if len(kinds) > 1:
        raise InvalidArgument("update_mask must not name fields of two kinds of managers.", field="update_mask")
    changes = {} if kinds and not paths else GROUP.changes(request.group, FieldMask(paths=paths), _WRITABLE, "group")
    return group_id, changes | ({"manager_fields": next(iter(kinds.items()))} if kinds else {})


def _manager_change(message: pb.Group, path: str) -> tuple[ManagerType, str, Any]:
    """Returns the kind, the field and the new value of a path such as `manager_config.dynamic.max_turns`."""
    match path.split("."):
        case ["manager_config", kind, name] if kind in _MANAGERS and name in _fields_of(ManagerType(kind)):
            manager = getattr(message.manager_config, kind)
            return ManagerType(kind), _NAMES.get(name, name), _manager_value(manager, name)
    raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")


def _fields_of(kind: ManagerType) -> Mapping[str, Any]:
    return _MANAGERS[kind]().DESCRIPTOR.fields_by_name  # type: ignore[no-any-return]


def message_query_from_proto(request: rpc.ListGroupMessagesRequest, page: PageQuery) -> MessageQuery:
    """Returns the query of a request for the messages of a group, with the page token of recall.

    Args:
        request: The request.
        page: Its page. The position of its cursor is recall's page token; see `message_page_token`.

    Raises:
        InvalidArgument: The order, the agent, a role or a time breaks its rule.
    """
    if request.order_by not in rpc.GroupMessageOrderBy.values():
        raise InvalidArgument("order_by must be a known value of GroupMessageOrderBy.", field="order_by")
    return MessageQuery(
        page_size=page.limit,
        page_token="" if page.cursor is None else str(page.cursor.value),
        ascending=page.ascending,
        after_id=page.after_id,
        before_id=page.before_id,
        agent_ids=(require_id(request.agent_id, "agent", "agent_id"),) if request.HasField("agent_id") else (),
        roles=tuple(role_from_proto(role, "roles") for role in request.roles),
        start_time=optional_timestamp_from_proto(request, "start_time"),
        end_time=optional_timestamp_from_proto(request, "end_time"),
    )


def message_page_token(query: PageQuery, page: MessagePage) -> str:
    """Returns the token of the page after `page`, which contains that of recall; "" if it is the last one."""
    cursor = Cursor(page.next_page_token, "") if page.next_page_token else None
    return page_token(query, cursor)


def target_from_proto(request: rpc.StartSleeptimeRunsRequest | rpc.PreviewSleeptimeRunsRequest) -> SleeptimeTarget:
    """Returns the group of sleeptime runs. Raises InvalidArgument if none is named, or an id is malformed."""
    match request.target.WhichOneof("target"):
        case "group_id":
            return SleeptimeTarget(group_id=require_id(request.target.group_id, "group", "target.group_id"))
        case "agent_id":
            return SleeptimeTarget(agent_id=require_id(request.target.agent_id, "agent", "target.agent_id"))
        case _:
            raise InvalidArgument("target must name a group or an agent.", field="target")


def preview_to_proto(preview: SleeptimePreview) -> rpc.PreviewSleeptimeRunsResponse:
    """Returns the response with a preview."""
    return rpc.PreviewSleeptimeRunsResponse(
        transcript=preview.transcript,
        message_count=preview.message_count,
        previews=[rpc.SleeptimePreview(agent_id=item.agent_id, request=item.request) for item in preview.members],
    )


def settings_update_from_proto(request: rpc.UpdateSleeptimeSettingsRequest) -> dict[str, Any]:
    """Returns the new values by the field names of `SleeptimeSettings`.

    Raises:
        InvalidArgument: The mask is empty, or it names a field that does not exist.
    """
    return SLEEPTIME_SETTINGS.changes(request.settings, request.update_mask, ("max_concurrent_runs",), "settings")
