"""Schedules: runs that start at given times."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final, Literal

from google.protobuf import field_mask_pb2
from mnemesh.agents.v1 import runs_pb2, schedules_pb2, schedules_service_pb2, schedules_service_pb2_grpc
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_client.inputs import Input, input_messages
from mnemesh_client.paging import paginate
from mnemesh_client.transport import Channel

MissedRunRuleName = Literal["run_once", "skip"]
OverlapRuleName = Literal["skip", "queue"]
_NAMES: Final = {"due_at": "due_time", "end_at": "end_time"}


class SchedulesClient:
    """Calls of ScheduleService, as `client.schedules`."""

    def __init__(self, channel: Channel) -> None:
        self.stub = schedules_service_pb2_grpc.ScheduleServiceStub(channel)

    async def create(
        self,
        content: Input,
        *,
        agent_id: str = "",
        conversation_id: str | None = None,
        group_id: str | None = None,
        cron: str | None = None,
        due_at: datetime | None = None,
        time_zone: str = "",
        name: str = "",
        missed_runs: MissedRunRuleName = "run_once",
        overlap: OverlapRuleName = "skip",
        max_runs: int | None = None,
        end_at: datetime | None = None,
        config: runs_pb2.RunConfig | None = None,
    ) -> schedules_pb2.Schedule:
        """Creates a schedule of an agent, of one of its conversations, or of a group.

        Args:
            content: the input of each run.
            agent_id: the agent.
            conversation_id: one of its conversations; None is the default one.
            group_id: a group, instead of an agent.
            cron: minute, hour, day of month, month and day of week, such as "0 9 * * mon-fri".
            due_at: the time of the only run, instead of `cron`.
            time_zone: the IANA time zone of `cron`, such as "Europe/Rome"; "" is UTC.
            name: a name for people.
            missed_runs: what happens to a run that was due while no mesh was running.
            overlap: what happens to a run that is due before the end of the run before.
            max_runs: the number of runs after which the schedule ends.
            end_at: the time after which no run starts.
            config: the settings of each run.

        Raises:
            InvalidArgument: a value breaks a rule, or no time would ever be due.
            NotFound: the agent, the conversation or the group does not exist.
            FailedPrecondition: the organization has 1,000 schedules that have not ended.
        """
        schedule = _message(
            agent_id=agent_id,
            conversation_id=conversation_id,
            group_id=group_id,
            messages=content,
            cron=cron,
            due_at=due_at,
            time_zone=time_zone,
            name=name,
            missed_runs=missed_runs,
            overlap=overlap,
            max_runs=max_runs,
            end_at=end_at,
            config=config,
        )
        return (await self.stub.CreateSchedule(schedules_service_pb2.CreateScheduleRequest(schedule=schedule))).schedule

    async def get(self, schedule_id: str) -> schedules_pb2.Schedule:
        """Returns a schedule."""
        request = schedules_service_pb2.GetScheduleRequest(schedule_id=schedule_id)
        return (await self.stub.GetSchedule(request)).schedule

    def list(
        self, *, agent_id: str | None = None, group_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[schedules_pb2.Schedule]:
        """Yields the schedules that match all arguments, oldest first."""
        criteria = schedules_service_pb2.ScheduleFilter(agent_id=agent_id, group_id=group_id)
        request = schedules_service_pb2.ListSchedulesRequest(filter=criteria)
        return paginate(self.stub.ListSchedules, request, "schedules", limit)

    async def update(self, schedule_id: str, **fields: Any) -> schedules_pb2.Schedule:
        """Updates fields by the names of the arguments of `create`: cron, messages, … and `paused`. None clears one."""
        schedule = _message(**fields)
        schedule.id = schedule_id
        request = schedules_service_pb2.UpdateScheduleRequest(
            schedule=schedule,
            update_mask=field_mask_pb2.FieldMask(paths=[_NAMES.get(name, name) for name in fields]),
        )
        return (await self.stub.UpdateSchedule(request)).schedule

    async def pause(self, schedule_id: str) -> schedules_pb2.Schedule:
        """Stops the starts of a schedule until it is resumed. What would be due meanwhile is not made up for."""
        return await self.update(schedule_id, paused=True)

    async def resume(self, schedule_id: str) -> schedules_pb2.Schedule:
        """Continues a paused schedule with the next time that is due from now on."""
        return await self.update(schedule_id, paused=False)

    async def delete(self, schedule_id: str) -> None:
        """Deletes a schedule. The runs that it started are kept."""
        await self.stub.DeleteSchedule(schedules_service_pb2.DeleteScheduleRequest(schedule_id=schedule_id))


def _message(**fields: Any) -> schedules_pb2.Schedule:
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        match name:
            case "messages":
                values[name] = input_messages(value)
            case "due_at" | "end_at":
                values[_NAMES[name]] = timestamp_to_proto(value)
            case "missed_runs":
                values[name] = schedules_pb2.MissedRunRule.Value(f"MISSED_RUN_RULE_{value.upper()}")
            case "overlap":
                values[name] = schedules_pb2.OverlapRule.Value(f"OVERLAP_RULE_{value.upper()}")
            case _:
                values[name] = value
    return schedules_pb2.Schedule(**values)
