"""Groups, their managers, filters and updates, requests for their messages, and sleeptime settings."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from mnemesh.agents.v1 import groups_pb2 as pb
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import Cursor, PageQuery, page_token
from mnemesh_kit.time import optional_timestamp_from_proto, optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.convert import provenance_from_proto, role_from_proto

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
from mnemesh_orchestrator.rpc.convert.agents import PROVENANCE_IDS
from mnemesh_orchestrator.rpc.convert.fields import (
    duration_to_proto,
    enum_from_proto,
    optional_field,
    present_fields,
    seconds_from_proto,
)

_ORDER_FROM_PROTO: Final = {
    rpc.GROUP_ORDER_BY_UNSPECIFIED: GroupOrder.CREATED_AT,
    rpc.GROUP_ORDER_BY_CREATE_TIME: GroupOrder.CREATED_AT,
    rpc.GROUP_ORDER_BY_UPDATE_TIME: GroupOrder.UPDATED_AT,
}
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
_EPOCH: Final = datetime.fromtimestamp(0, UTC)

_SLEEPTIME_READERS: Final[Mapping[str, Callable[[rpc.SleeptimeSettings], Any]]] = {
    "max_concurrent_runs": lambda settings: (
        settings.max_concurrent_runs if settings.HasField("max_concurrent_runs") else None
    )
}
"""The paths of an update mask, and the values that they read. An absent field clears its value."""


_TYPE_TO_PROTO: Final = {kind: pb.ManagerType.Value(f"MANAGER_TYPE_{kind.name}") for kind in ManagerType}
_TYPE_FROM_PROTO: Final = {number: kind for kind, number in _TYPE_TO_PROTO.items()}
_PROVENANCE_PATHS: Final = {f"provenance.{name}": name for name in PROVENANCE_IDS}


def group_to_proto(group: Group) -> pb.Group:
    """Returns the message of a group."""
    background = group.manager.type in BACKGROUND_TYPES
    return pb.Group(
        id=group.id,
        description=group.description,
        agent_ids=group.agent_ids,
        manager_config=manager_to_proto(group.manager),
        shared_block_ids=group.shared_block_ids,
        hidden=group.hidden,
        turns_counter=group.turns_counter if background else None,
        last_processed_message_id=group.last_processed_message_id,
        metadata=group.metadata,
        revision=group.revision,
        last_sleeptime=optional_timestamp_to_proto(group.last_sleeptime_at),
        create_time=timestamp_to_proto(group.created_at),
        update_time=timestamp_to_proto(group.updated_at),
        provenance=group.provenance.to_proto(),
    )


def manager_to_proto(config: ManagerConfig) -> pb.ManagerConfig:
    """Returns the message of a manager."""
    manager = _MANAGERS[config.type]()
    values = {}
    for name in manager.DESCRIPTOR.fields_by_name:
        value = getattr(config, _NAMES.get(name, name))
        values[name] = duration_to_proto(_milliseconds(value)) if name in _DURATIONS else value
    return pb.ManagerConfig(**{config.type: _MANAGERS[config.type](**values)})


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)


def manager_from_proto(message: pb.ManagerConfig) -> ManagerConfig:
    """Returns the manager of a message. None is round robin."""
    name = message.WhichOneof("config")
    if name is None:
        return ManagerConfig()
    kind = ManagerType(name)
    return ManagerConfig(kind, **dict(_manager_values(kind, getattr(message, name))))


def _manager_values(kind: ManagerType, manager: Any) -> Iterator[tuple[str, Any]]:
    for name in _MANAGERS[kind]().DESCRIPTOR.fields_by_name:
        yield _NAMES.get(name, name), _manager_value(manager, name)


def _manager_value(manager: Any, name: str) -> Any:
    if name == "manager_agent_id":
        return manager.manager_agent_id or None
    if name in _DURATIONS:
        return seconds_from_proto(manager, name)
    return optional_field(manager, name)


def group_draft_from_proto(message: pb.Group) -> Group:
    """Returns the group that a caller wants to create, without id, organization and times."""
    values = {name: read(message) for name, read in _READERS.values()}
    return Group(
        "", "", created_at=_EPOCH, updated_at=_EPOCH, **values, provenance=provenance_from_proto(message.provenance)
    )


_READERS: Final[Mapping[str, tuple[str, Callable[[pb.Group], Any]]]] = {
    "description": ("description", lambda group: group.description),
    "agent_ids": ("agent_ids", lambda group: tuple(group.agent_ids)),
    "manager_config": ("manager", lambda group: manager_from_proto(group.manager_config)),
    "shared_block_ids": ("shared_block_ids", lambda group: tuple(group.shared_block_ids)),
    "hidden": ("hidden", lambda group: group.hidden),
    "metadata": ("metadata", lambda group: optional_field(group, "metadata")),
    "turns_counter": ("turns_counter", lambda group: group.turns_counter),
}
"""By path: the field name of `Group`, and the value that is read."""


def group_update_from_proto(request: rpc.UpdateGroupRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the group, and the new values by the field names of `Group`.

    The value of `provenance` is a dictionary of those of its fields that change, that of `manager_fields` the kind of
    the manager with such a dictionary.

    Raises:
        InvalidArgument: The id is malformed, the mask is empty, or it names a field that cannot be updated.
    """
    message, paths = request.group, request.update_mask.paths
    group_id = require_id(message.id, "group", "group.id")
    if not paths:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    changes = dict(_change_of(message, path) for path in paths if path in _READERS)
    provenance = provenance_from_proto(message.provenance)
    for path in paths:
        if path in _READERS:
            continue
        if path in _PROVENANCE_PATHS:
            name = _PROVENANCE_PATHS[path]
            changes.setdefault("provenance", {})[name] = getattr(provenance, name)
            continue
        kind, name, value = _manager_change(message, path)
        before = changes.setdefault("manager_fields", (kind, {}))
        if before[0] is not kind:
            raise InvalidArgument("update_mask must not name fields of two kinds of managers.", field="update_mask")
        before[1][name] = value
    return group_id, changes


def _change_of(message: pb.Group, path: str) -> tuple[str, Any]:
    name, read = _READERS[path]
    return name, read(message)


def _manager_change(message: pb.Group, path: str) -> tuple[ManagerType, str, Any]:
    """Returns the kind, the field and the new value of a path such as `manager_config.dynamic.max_turns`."""
    match path.split("."):
        case ["manager_config", kind, name] if kind in _MANAGERS and name in _fields_of(ManagerType(kind)):
            manager = getattr(message.manager_config, kind)
            return ManagerType(kind), _NAMES.get(name, name), _manager_value(manager, name)
    raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")


def _fields_of(kind: ManagerType) -> Mapping[str, Any]:
    return _MANAGERS[kind]().DESCRIPTOR.fields_by_name  # type: ignore[no-any-return]


def group_filter_from_proto(message: rpc.GroupFilter) -> GroupFilter:
    """Returns the filter of a list or a count. Raises InvalidArgument if a type is unknown."""
    names = [field.name for field in fields(GroupFilter) if field.name not in ("group_ids", "manager_types")]
    return GroupFilter(
        group_ids=tuple(message.group_ids),
        manager_types=tuple(
            enum_from_proto(_TYPE_FROM_PROTO, kind, "filter.manager_types") for kind in message.manager_types
        ),
        **present_fields(message, *names),
    )


def group_order_from_proto(value: rpc.GroupOrderBy.ValueType) -> GroupOrder:
    """Returns the sort key of a list. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ORDER_FROM_PROTO, value, "order_by")


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


def settings_to_proto(settings: SleeptimeSettings) -> rpc.SleeptimeSettings:
    """Returns the settings as a message."""
    return rpc.SleeptimeSettings(max_concurrent_runs=settings.max_concurrent_runs)


def settings_update_from_proto(request: rpc.UpdateSleeptimeSettingsRequest) -> dict[str, Any]:
    """Returns the new values by the field names of `SleeptimeSettings`.

    Raises:
        InvalidArgument: The mask is empty, or it names a field that does not exist.
    """
    paths = request.update_mask.paths
    if not paths:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    for path in paths:
        if path not in _SLEEPTIME_READERS:
            raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")
    return {path: _SLEEPTIME_READERS[path](request.settings) for path in paths}
