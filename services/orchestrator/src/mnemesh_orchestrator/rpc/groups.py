"""`mnemesh.agents.v1.GroupService`."""

from typing import Any

import grpc
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh.agents.v1 import groups_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_types.convert import message_to_proto
from mnemesh_types.twin import enum_from_proto, optional_field

from mnemesh_orchestrator.model.groups import GroupOrder
from mnemesh_orchestrator.rpc.convert.groups import (
    GROUP_FILTER,
    SLEEPTIME_SETTINGS,
    group_draft_from_proto,
    group_to_proto,
    group_update_from_proto,
    message_page_token,
    message_query_from_proto,
    preview_to_proto,
    settings_update_from_proto,
    target_from_proto,
)
from mnemesh_orchestrator.rpc.convert.runs import run_to_proto
from mnemesh_orchestrator.usecases.groups import GroupService
from mnemesh_orchestrator.usecases.sleeptime import SleeptimeService

Context = grpc.aio.ServicerContext[Any, Any]


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
