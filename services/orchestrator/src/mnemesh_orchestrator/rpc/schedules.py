"""`mnemesh.agents.v1.ScheduleService`."""

from typing import Any

import grpc
from mnemesh.agents.v1 import schedules_service_pb2 as rpc
from mnemesh.agents.v1 import schedules_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_types.twin import enum_from_proto

from mnemesh_orchestrator.model.schedules import ScheduleOrder
from mnemesh_orchestrator.rpc.convert.schedules import (
    schedule_changes_from_proto,
    schedule_draft_from_proto,
    schedule_filter_from_proto,
    schedule_to_proto,
)
from mnemesh_orchestrator.usecases.schedules import ScheduleService

Context = grpc.aio.ServicerContext[Any, Any]


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
