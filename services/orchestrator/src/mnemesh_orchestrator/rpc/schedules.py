"""`mnemesh.agents.v1.ScheduleService`, with the conversion of its messages."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import schedules_pb2 as pb
from mnemesh.agents.v1 import schedules_service_pb2 as rpc
from mnemesh.agents.v1 import schedules_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, optional_field, written

from mnemesh_orchestrator.model.groups import group_conversation_id
from mnemesh_orchestrator.model.schedules import (
    MissedRunRule,
    OverlapRule,
    Schedule,
    ScheduleFilter,
    ScheduleOrder,
    valid_schedule,
)
from mnemesh_orchestrator.rpc.convert.runs import (
    config_from_proto,
    config_to_proto,
    conversation_id_from_proto,
    input_to_proto,
    inputs_from_proto,
)
from mnemesh_orchestrator.usecases.schedules import ScheduleService

Context = grpc.aio.ServicerContext[Any, Any]

enum_of(pb.MissedRunRule, MissedRunRule, "RUN_ONCE")
enum_of(pb.OverlapRule, OverlapRule, "SKIP")
enum_of(rpc.ScheduleOrderBy, ScheduleOrder, "CREATED_AT")
_SCHEDULE: Final = Conversion(
    pb.Schedule, Schedule, end_time="ends_at", messages=None, config=None, conversation_id=None
)
_FILTER: Final = Conversion(rpc.ScheduleFilter, ScheduleFilter)
_CHANGEABLE: Final = (
    *("name", "messages", "config", "cron", "due_time", "time_zone", "missed_runs", "overlap"),
    *("max_runs", "end_time", "paused"),
)
_TARGET: Final = ("agent_id", "conversation_id", "group_id")


def schedule_to_proto(schedule: Schedule) -> pb.Schedule:
    """Returns the message of a schedule. The queue of a group is not shown as a conversation."""
    return _SCHEDULE.to_proto(
        schedule,
        conversation_id=None if schedule.group_id is not None else schedule.conversation_id,
        messages=[input_to_proto(message) for message in schedule.messages],
        config=config_to_proto(replace(schedule.config, otids_repeat=False)),
    )


def schedule_draft_from_proto(message: pb.Schedule) -> Schedule:
    """Returns the schedule that a caller wants to create, without id, organization and times."""
    copy = written(message, (*_CHANGEABLE, *_TARGET))
    values: dict[str, Any] = {"organization_id": "", "subject_id": "", **_read(message, ("messages", "config"))}
    if message.HasField("group_id"):
        if message.agent_id or message.HasField("conversation_id"):
            field = "schedule.agent_id" if message.agent_id else "schedule.conversation_id"
            raise InvalidArgument(f"{field} must be empty if group_id is set.", field=field)
        values["conversation_id"] = group_conversation_id(require_id(message.group_id, "group", "schedule.group_id"))
    else:
        agent_id = require_id(message.agent_id, "agent", "schedule.agent_id")
        values["conversation_id"] = conversation_id_from_proto(agent_id, optional_field(message, "conversation_id"))
    return _SCHEDULE.from_proto(copy, "schedule", **values)


def exported_schedule(message: pb.Schedule) -> Schedule:
    """Returns an exported schedule of an agent. Raises InvalidArgument."""
    if message.HasField("group_id"):
        raise InvalidArgument("schedule.group_id must be empty.", field="schedule.group_id")
    given = _read(message, ("messages", "config"))
    ids = {"organization_id": "", "subject_id": "", "conversation_id": message.conversation_id}
    return valid_schedule(_SCHEDULE.from_proto(message, "schedule", **ids, **given))


def schedule_changes_from_proto(request: rpc.UpdateScheduleRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the schedule, and the new values by the field names of `Schedule`."""
    schedule_id = require_id(request.schedule.id, "schedule", "schedule.id")
    changes = _SCHEDULE.changes(request.schedule, request.update_mask, _CHANGEABLE, "schedule")
    return schedule_id, changes | _read(request.schedule, request.update_mask.paths)


def _read(message: pb.Schedule, fields: Collection[str]) -> dict[str, Any]:
    """Returns the input and the config with errors that name their fields."""
    values: dict[str, Any] = {}
    if "messages" in fields:
        values["messages"] = inputs_from_proto(message.messages, "schedule.messages")
    if "config" in fields:
        values["config"] = config_from_proto(message.config)
    return values


def schedule_filter_from_proto(message: rpc.ScheduleFilter) -> ScheduleFilter:
    """Returns the filter of a list."""
    require_ids(message, "filter", agent_id="agent", group_id="group")
    return _FILTER.from_proto(message, "filter")


class SchedulesServicer(schedules_service_pb2_grpc.ScheduleServiceServicer):
    """Serves the schedules."""

    def __init__(self, service: ScheduleService) -> None:
        self._service = service

    async def CreateSchedule(self, request: rpc.CreateScheduleRequest, context: Context) -> rpc.CreateScheduleResponse:
        key, draft = request_key(request, "CreateSchedule"), schedule_draft_from_proto(request.schedule)
        schedule = await self._service.create(current_principal(), key, draft)
        return rpc.CreateScheduleResponse(schedule=schedule_to_proto(schedule))

    async def GetSchedule(self, request: rpc.GetScheduleRequest, context: Context) -> rpc.GetScheduleResponse:
        schedule = await self._service.get(current_principal(), _schedule_id(request.schedule_id))
        return rpc.GetScheduleResponse(schedule=schedule_to_proto(schedule))

    async def ListSchedules(self, request: rpc.ListSchedulesRequest, context: Context) -> rpc.ListSchedulesResponse:
        enum_from_proto(ScheduleOrder, request.order_by, "order_by")
        query, filter_ = page_query(request), schedule_filter_from_proto(request.filter)
        found = await self._service.list(current_principal(), filter_, query)
        page = bounded(query, found.map(schedule_to_proto))
        return rpc.ListSchedulesResponse(schedules=page.items, next_page_token=next_page_token(query, page))

    async def UpdateSchedule(self, request: rpc.UpdateScheduleRequest, context: Context) -> rpc.UpdateScheduleResponse:
        key, (schedule_id, changes) = request_key(request, "UpdateSchedule"), schedule_changes_from_proto(request)
        schedule = await self._service.update(current_principal(), key, schedule_id, changes)
        return rpc.UpdateScheduleResponse(schedule=schedule_to_proto(schedule))

    async def DeleteSchedule(self, request: rpc.DeleteScheduleRequest, context: Context) -> rpc.DeleteScheduleResponse:
        key = request_key(request, "DeleteSchedule")
        await self._service.delete(current_principal(), key, _schedule_id(request.schedule_id))
        return rpc.DeleteScheduleResponse()


def _schedule_id(value: str) -> str:
    return require_id(value, "schedule", "schedule_id")
