"""`mnemesh.agents.v1.GroupService`, with the conversion of its messages."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import groups_pb2 as pb
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh.agents.v1 import groups_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import Cursor, PageQuery, bounded, next_page_token, page_query, page_token
from mnemesh_kit.time import optional_timestamp_from_proto
from mnemesh_types.convert import message_to_proto
from mnemesh_types.messages import Role
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, optional_field, register, written

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
from mnemesh_orchestrator.rpc.convert.runs import PROVENANCE_IDS, run_to_proto
from mnemesh_orchestrator.usecases.groups import GroupService
from mnemesh_orchestrator.usecases.sleeptime import SleeptimeService

Context = grpc.aio.ServicerContext[Any, Any]

enum_of(pb.ManagerType, ManagerType)
enum_of(rpc.GroupOrderBy, GroupOrder, "CREATED_AT")
GROUP: Final = Conversion(pb.Group, Group, manager_config="manager")
GROUP_FILTER: Final = Conversion(rpc.GroupFilter, GroupFilter)
SLEEPTIME_SETTINGS: Final = Conversion(rpc.SleeptimeSettings, SleeptimeSettings)
_WRITABLE: Final = (
    *("description", "agent_ids", "manager_config", "shared_block_ids", "hidden", "metadata", "turns_counter"),
    *PROVENANCE_IDS,
)
_MANAGERS: Final[Mapping[ManagerType, Conversion[Any, ManagerConfig]]] = {
    ManagerType.ROUND_ROBIN: Conversion(pb.RoundRobinManager, ManagerConfig),
    ManagerType.SUPERVISOR: Conversion(pb.SupervisorManager, ManagerConfig),
    ManagerType.DYNAMIC: Conversion(pb.DynamicManager, ManagerConfig),
    ManagerType.SLEEPTIME: Conversion(
        pb.SleeptimeManager,
        ManagerConfig,
        sleeptime_agent_frequency="frequency",
        interval="interval_seconds",
        inactivity="inactivity_seconds",
    ),
    ManagerType.VOICE_SLEEPTIME: Conversion(pb.VoiceSleeptimeManager, ManagerConfig),
    ManagerType.SWARM: Conversion(pb.SwarmManager, ManagerConfig),
}


def group_to_proto(group: Group) -> pb.Group:
    """Returns the message of a group."""
    message = GROUP.to_proto(group)
    if group.manager.type not in BACKGROUND_TYPES:
        message.ClearField("turns_counter")
    return message


def manager_to_proto(config: ManagerConfig) -> pb.ManagerConfig:
    """Returns the message of a manager."""
    return pb.ManagerConfig(**{config.type: _MANAGERS[config.type].to_proto(config)})


def manager_from_proto(message: pb.ManagerConfig, field: str = "") -> ManagerConfig:
    """Returns the manager of a message. None is round robin."""
    name = message.WhichOneof("config")
    if name is None:
        return ManagerConfig()
    kind = ManagerType(name)
    return _MANAGERS[kind].from_proto(getattr(message, name), f"{field}.{name}", type=kind)


register(pb.ManagerConfig, manager_from_proto, manager_to_proto)


def group_draft_from_proto(message: pb.Group) -> Group:
    """Returns the group that a caller wants to create, without id, organization and times."""
    return GROUP.from_proto(written(message, _WRITABLE), "group", organization_id="")


def group_update_from_proto(request: rpc.UpdateGroupRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the group, and the new values by the field names of `Group`.

    The value of `provenance` is a dictionary of those of its fields that change, that of `manager_fields` the kind of
    the manager with such a dictionary.
    """
    group_id = require_id(request.group.id, "group", "group.id")
    every = request.update_mask.paths
    manager = [path for path in every if path.startswith("manager_config.")]
    paths = [path for path in every if path not in manager]
    changes = {} if manager and not paths else GROUP.changes(request.group, FieldMask(paths=paths), _WRITABLE, "group")
    return group_id, changes | ({"manager_fields": _manager_changes(request.group, manager)} if manager else {})


def _manager_changes(message: pb.Group, paths: Sequence[str]) -> tuple[ManagerType, dict[str, Any]]:
    """Returns the kind, and the new values, of paths such as `manager_config.dynamic.max_turns`."""
    kinds = {path.split(".")[1] for path in paths}
    unknown = kinds - set(_MANAGERS)
    if len(kinds) > 1 and not unknown:
        raise InvalidArgument("update_mask must not name fields of two kinds of managers.", field="update_mask")
    name = min(unknown or kinds)
    manager: Any = getattr(message.manager_config, name, message)
    writable = () if unknown else manager.DESCRIPTOR.fields_by_name
    prefix = f"manager_config.{name}."
    own = [path.removeprefix(prefix) for path in paths]
    if bad := [path for path, field in zip(paths, own, strict=True) if field not in writable]:
        raise InvalidArgument(f"update_mask must not name {bad[0]}.", field="update_mask")
    kind = ManagerType(name)
    return kind, _MANAGERS[kind].changes(manager, FieldMask(paths=own), writable, f"group.{prefix[:-1]}")


def message_query_from_proto(request: rpc.ListGroupMessagesRequest, page: PageQuery) -> MessageQuery:
    """Returns the query of a request for the messages of a group, with the page token of recall.

    Args:
        page: Its page. The position of its cursor is recall's page token; see `message_page_token`.
    """
    return MessageQuery(
        page_size=page.limit,
        page_token="" if page.cursor is None else str(page.cursor.value),
        ascending=page.ascending,
        after_id=page.after_id,
        before_id=page.before_id,
        agent_ids=(require_id(request.agent_id, "agent", "agent_id"),) if request.HasField("agent_id") else (),
        roles=tuple(enum_from_proto(Role, role, "roles") for role in request.roles),
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
    return rpc.PreviewSleeptimeRunsResponse(
        transcript=preview.transcript,
        message_count=preview.message_count,
        previews=[rpc.SleeptimePreview(agent_id=item.agent_id, request=item.request) for item in preview.members],
    )


def settings_update_from_proto(request: rpc.UpdateSleeptimeSettingsRequest) -> dict[str, Any]:
    """Returns the new values by the field names of `SleeptimeSettings`."""
    return SLEEPTIME_SETTINGS.changes(request.settings, request.update_mask, ("max_concurrent_runs",), "settings")


class GroupsServicer(groups_service_pb2_grpc.GroupServiceServicer):
    """Serves the groups."""

    def __init__(self, service: GroupService, sleeptime: SleeptimeService) -> None:
        self._service = service
        self._sleeptime = sleeptime

    async def CreateGroup(self, request: rpc.CreateGroupRequest, context: Context) -> rpc.CreateGroupResponse:
        key, draft = request_key(request, "CreateGroup"), group_draft_from_proto(request.group)
        group = await self._service.create(current_principal(), key, draft)
        return rpc.CreateGroupResponse(group=group_to_proto(group))

    async def GetGroup(self, request: rpc.GetGroupRequest, context: Context) -> rpc.GetGroupResponse:
        group = await self._service.get(current_principal(), _group_id(request.group_id))
        return rpc.GetGroupResponse(group=group_to_proto(group))

    async def ListGroups(self, request: rpc.ListGroupsRequest, context: Context) -> rpc.ListGroupsResponse:
        order, query = enum_from_proto(GroupOrder, request.order_by, "order_by"), page_query(request)
        found = await self._service.list(
            current_principal(), GROUP_FILTER.from_proto(request.filter, "filter"), order, query
        )
        page = bounded(query, found.map(group_to_proto))
        return rpc.ListGroupsResponse(groups=page.items, next_page_token=next_page_token(query, page))

    async def CountGroups(self, request: rpc.CountGroupsRequest, context: Context) -> rpc.CountGroupsResponse:
        count = await self._service.count(current_principal(), GROUP_FILTER.from_proto(request.filter, "filter"))
        return rpc.CountGroupsResponse(count=count)

    async def UpdateGroup(self, request: rpc.UpdateGroupRequest, context: Context) -> rpc.UpdateGroupResponse:
        key, (group_id, changes) = request_key(request, "UpdateGroup"), group_update_from_proto(request)
        if_revision = optional_field(request, "if_revision")
        group = await self._service.update(current_principal(), key, group_id, changes, if_revision=if_revision)
        return rpc.UpdateGroupResponse(group=group_to_proto(group))

    async def DeleteGroup(self, request: rpc.DeleteGroupRequest, context: Context) -> rpc.DeleteGroupResponse:
        key = request_key(request, "DeleteGroup")
        await self._service.delete(current_principal(), key, _group_id(request.group_id))
        return rpc.DeleteGroupResponse()

    async def ListGroupMessages(
        self, request: rpc.ListGroupMessagesRequest, context: Context
    ) -> rpc.ListGroupMessagesResponse:
        group_id, query = _group_id(request.group_id), page_query(request)
        page = await self._service.messages(current_principal(), group_id, message_query_from_proto(request, query))
        messages = [message_to_proto(message) for message in page.messages]
        return rpc.ListGroupMessagesResponse(messages=messages, next_page_token=message_page_token(query, page))

    async def ResetGroupMessages(
        self, request: rpc.ResetGroupMessagesRequest, context: Context
    ) -> rpc.ResetGroupMessagesResponse:
        key = request_key(request, "ResetGroupMessages")
        group_id, keep = _group_id(request.group_id), request.keep_turns_counter
        group = await self._service.reset(current_principal(), key, group_id, keep_turns_counter=keep)
        return rpc.ResetGroupMessagesResponse(group=group_to_proto(group))

    async def StartSleeptimeRuns(
        self, request: rpc.StartSleeptimeRunsRequest, context: Context
    ) -> rpc.StartSleeptimeRunsResponse:
        key = request_key(request, "StartSleeptimeRuns")
        runs = await self._sleeptime.start(current_principal(), key, target_from_proto(request))
        return rpc.StartSleeptimeRunsResponse(runs=[run_to_proto(run) for run in runs])

    async def PreviewSleeptimeRuns(
        self, request: rpc.PreviewSleeptimeRunsRequest, context: Context
    ) -> rpc.PreviewSleeptimeRunsResponse:
        preview = await self._sleeptime.preview(current_principal(), target_from_proto(request))
        return preview_to_proto(preview)

    async def GetSleeptimeSettings(
        self, request: rpc.GetSleeptimeSettingsRequest, context: Context
    ) -> rpc.GetSleeptimeSettingsResponse:
        settings = await self._sleeptime.settings(current_principal())
        return rpc.GetSleeptimeSettingsResponse(settings=SLEEPTIME_SETTINGS.to_proto(settings))

    async def UpdateSleeptimeSettings(
        self, request: rpc.UpdateSleeptimeSettingsRequest, context: Context
    ) -> rpc.UpdateSleeptimeSettingsResponse:
        key, changes = request_key(request, "UpdateSleeptimeSettings"), settings_update_from_proto(request)
        settings = await self._sleeptime.update_settings(current_principal(), key, changes)
        return rpc.UpdateSleeptimeSettingsResponse(settings=SLEEPTIME_SETTINGS.to_proto(settings))


def _group_id(value: str) -> str:
    return require_id(value, "group", "group_id")
