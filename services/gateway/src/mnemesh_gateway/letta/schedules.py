"""Scheduled messages of agents: create, list, retrieve, delete, as Letta's cloud has them."""

from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from mnemesh.agents.v1 import schedules_pb2 as pb
from mnemesh.agents.v1 import schedules_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import NotFound
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_letta.convert.values import moment_of, present

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.mesh import PageQuery, list_page
from mnemesh_gateway.letta.messages import content_from_proto
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read
from mnemesh_gateway.letta.runs import returned_types
from mnemesh_gateway.letta.sending import SendMessages, config_to_proto, input_to_proto

_PAGE: Final = 50


class Timing(msgspec.Struct, kw_only=True):
    """When a message is due: once, in milliseconds since 1970, or by a cron expression in UTC."""

    type: Literal["one-time", "recurring"] = "one-time"
    scheduled_at: float | None = None
    cron_expression: str | None = None


class CreateSchedule(msgspec.Struct, kw_only=True):
    """Messages to send, and when."""

    messages: list[dict[str, Any]]
    schedule: Timing
    callback_url: str | None = None
    include_return_message_types: list[str] | None = None
    max_steps: int = 50


class CreatedSchedule(msgspec.Struct, kw_only=True):
    """The id of a new schedule."""

    id: str
    next_scheduled_at: datetime | None = None


class ScheduledInput(msgspec.Struct, kw_only=True):
    """What is sent."""

    messages: list[dict[str, Any]]
    callback_url: str | None = None
    include_return_message_types: list[str] | None = None
    max_steps: int | None = None


class ScheduledMessage(msgspec.Struct, kw_only=True):
    """A schedule."""

    id: str
    agent_id: str
    message: ScheduledInput
    next_scheduled_time: datetime | None = None
    schedule: dict[str, Any]


class ScheduledMessages(msgspec.Struct, kw_only=True):
    """A page of schedules."""

    has_next_page: bool
    scheduled_messages: list[ScheduledMessage]


class ListSchedules(msgspec.Struct, kw_only=True):
    """The query of a list."""

    after: str | None = None
    limit: int = _PAGE


class Deleted(msgspec.Struct, kw_only=True):
    """The answer to a deletion."""

    success: bool = True


operations = Operations()


@operations.post("/agents/{agent_id}/schedule", status=201)
async def create_schedule(call: Call[NoQuery, CreateSchedule]) -> CreatedSchedule:
    """Schedules messages to an agent."""
    body = call.body
    config = config_to_proto(
        SendMessages(
            max_steps=body.max_steps,
            callback_url=body.callback_url,
            include_return_message_types=body.include_return_message_types,
        )
    )
    messages = [input_to_proto(message, "body", "messages", index) for index, message in enumerate(body.messages)]
    schedule = pb.Schedule(agent_id=call.path["agent_id"], messages=messages, config=config)
    _set_timing(schedule, body.schedule)
    created = await call.write(call.mesh.schedules.CreateSchedule, rpc.CreateScheduleRequest(schedule=schedule))
    return CreatedSchedule(id=created.schedule.id, next_scheduled_at=moment_of(created.schedule, "next_run_time"))


@operations.get("/agents/{agent_id}/schedule")
async def list_schedules(call: Call[ListSchedules, None]) -> ScheduledMessages:
    """Lists the scheduled messages of an agent, oldest first."""
    limit = call.query.limit
    request = rpc.ListSchedulesRequest(filter=rpc.ScheduleFilter(agent_id=call.path["agent_id"]))
    page = PageQuery(after=call.query.after, limit=limit + 1)
    rows = await list_page(call.mesh.schedules.ListSchedules, request, "schedules", page, default="asc")
    return ScheduledMessages(
        has_next_page=len(rows) > limit, scheduled_messages=[schedule_from_proto(row) for row in rows[:limit]]
    )


@operations.get("/agents/{agent_id}/schedule/{scheduled_message_id}")
async def retrieve_schedule(call: Call[NoQuery, None]) -> ScheduledMessage:
    """Returns a scheduled message of an agent."""
    return schedule_from_proto(await _find(call))


@operations.delete("/agents/{agent_id}/schedule/{scheduled_message_id}")
async def delete_schedule(call: Call[NoQuery, None]) -> Deleted:
    """Deletes a scheduled message of an agent."""
    request = rpc.DeleteScheduleRequest(schedule_id=(await _find(call)).id)
    await call.write(call.mesh.schedules.DeleteSchedule, request)
    return Deleted()


async def _find(call: Call[Any, Any]) -> pb.Schedule:
    schedule_id = call.path["scheduled_message_id"]
    found = (await read(call.mesh.schedules.GetSchedule, rpc.GetScheduleRequest(schedule_id=schedule_id))).schedule
    if found.agent_id != call.path["agent_id"]:
        raise NotFound(f"{call.path['agent_id']} has no schedule {schedule_id}.")
    return found


def _set_timing(schedule: pb.Schedule, timing: Timing) -> None:
    if timing.type == "recurring":
        if not timing.cron_expression:
            raise invalid_field("Field required", "body", "schedule", "cron_expression")
        schedule.cron = timing.cron_expression
        return
    if timing.scheduled_at is None:
        raise invalid_field("Field required", "body", "schedule", "scheduled_at")
    try:
        at = datetime.fromtimestamp(timing.scheduled_at / 1e3, UTC)
    except (ValueError, OverflowError, OSError):
        raise invalid_field("Input should be milliseconds since 1970", "body", "schedule", "scheduled_at") from None
    schedule.due_time.CopyFrom(timestamp_to_proto(at))


def schedule_from_proto(schedule: pb.Schedule) -> ScheduledMessage:
    """Returns a schedule as Letta shows it."""
    due_at = moment_of(schedule, "due_time")
    timing: dict[str, Any] = {"type": "recurring", "cron_expression": schedule.cron}
    if due_at is not None:
        timing = {"type": "one-time", "scheduled_at": due_at.timestamp() * 1e3}
    return ScheduledMessage(
        id=schedule.id,
        agent_id=schedule.agent_id,
        message=ScheduledInput(
            messages=[_message(message) for message in schedule.messages],
            callback_url=present(schedule.config, "callback_url"),
            include_return_message_types=returned_types(schedule.config),
            max_steps=present(schedule.config, "max_steps"),
        ),
        next_scheduled_time=moment_of(schedule, "next_run_time"),
        schedule=timing,
    )


def _message(message: Any) -> dict[str, Any]:
    role = message_pb2.Role.Name(message.role).removeprefix("ROLE_").lower()
    named = {name: getattr(message, name) for name in ("name", "otid", "sender_id") if message.HasField(name)}
    return {"type": "message", "role": role, "content": content_from_proto(message.content), **named}
