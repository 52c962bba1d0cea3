"""The tools with which an agent schedules messages to itself. Each message is a run in the conversation of the call."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import derive_id
from mnemesh_kit.time import Clock
from mnemesh_types.messages import Role, TextPart

from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.model.conversations import default_conversation_id
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.schedules import Schedule, least_interval, planned, valid_schedule
from mnemesh_orchestrator.store.schedules import ScheduleStore

MOST_SCHEDULES: Final = 20
"""The largest number of schedules of its own that an agent has."""
LEAST_INTERVAL: Final = timedelta(minutes=5)
"""The shortest time between two messages of a schedule, and until the first."""
_PREFACE: Final = "[You scheduled this message for yourself at {at}. It does not come from the user.]\n\n{message}"
_LEAST: Final = f"{LEAST_INTERVAL // timedelta(minutes=1)} minutes"


@dataclass(frozen=True, eq=False)
class ScheduleTools:
    """The schedules that agents make for themselves."""

    store: ScheduleStore
    clock: Clock
    changed: asyncio.Event
    """Set after each change: the next time at which a schedule is due may be another one."""

    async def schedule(self, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
        """Runs schedule_message. A repeat returns the first schedule."""
        caller, schedule_id = current_principal(), derive_id("schedule", call.effect(0))
        try:
            return _created(await self.store.get(caller.organization_id, schedule_id))
        except NotFound:
            pass
        now = self.clock.now()
        zone = ZoneInfo(call.time_zone)
        text = _PREFACE.format(at=now.astimezone(zone).isoformat(timespec="minutes"), message=arguments["message"])
        at = _moment(arguments["time"], zone) if arguments.get("time") else None
        draft = Schedule(
            id=schedule_id,
            organization_id=caller.organization_id,
            subject_id=caller.subject_id,
            agent_id=call.agent_id,
            conversation_id=call.conversation_id or default_conversation_id(call.agent_id),
            messages=(InputMessage((TextPart(text),), Role.SYSTEM, sender_id=call.agent_id),),
            created_at=now,
            updated_at=now,
            name=arguments["message"].partition("\n")[0][:80],
            cron=arguments.get("cron") or None,
            due_at=at,
            time_zone=call.time_zone,
            created_by_agent=True,
        )
        if (draft.cron is None) == (draft.due_at is None):
            raise Refused("Give either time or cron. Nothing was scheduled.")
        schedule = planned(valid_schedule(draft), now)
        interval = least_interval(schedule, now)
        if interval is not None and interval < LEAST_INTERVAL:
            raise Refused(f"cron must leave at least {_LEAST} between two messages. Nothing was scheduled.")
        if at is not None and at < now + LEAST_INTERVAL:
            raise Refused(f"time must be at least {_LEAST} from now. Nothing was scheduled.")
        stored = await self.store.create(None, schedule, most_of_agent=MOST_SCHEDULES)
        self.changed.set()
        return _created(stored)

    async def list(self, call: BuiltinCall, _arguments: Mapping[str, Any]) -> str:
        """Runs list_scheduled_messages."""
        found = await self.store.list_open(current_principal().organization_id, call.agent_id)
        shown = [
            {
                "schedule_id": schedule.id,
                "message": schedule.name,
                "next_time": _local(schedule),
                **({"cron": schedule.cron} if schedule.cron else {}),
            }
            for schedule in found
        ]
        return json.dumps(shown, ensure_ascii=False)

    async def cancel(self, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
        """Runs cancel_scheduled_message."""
        organization_id, schedule_id = current_principal().organization_id, arguments["schedule_id"]
        key = RequestKey(organization_id, "DeleteSchedule", call.effect(0), schedule_id[:100])
        if not await self.store.delete(key, organization_id, schedule_id, of_agent=call.agent_id):
            raise Refused(
                f"You have no schedule {schedule_id[:100]}. list_scheduled_messages shows those that you have."
            )
        return f"Cancelled {schedule_id}."


def _created(schedule: Schedule) -> str:
    return json.dumps({"schedule_id": schedule.id, "next_time": _local(schedule)})


def _local(schedule: Schedule) -> str | None:
    at = schedule.next_run_at
    return None if at is None else at.astimezone(ZoneInfo(schedule.time_zone or "UTC")).isoformat(timespec="minutes")


def _moment(text: str, zone: ZoneInfo) -> datetime:
    try:
        at = datetime.fromisoformat(text.strip())
        return (at if at.tzinfo is not None else at.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused(f"time is not valid: {text[:100]}. Use ISO 8601, such as 2026-01-31T09:00.") from None
