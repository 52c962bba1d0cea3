"""Schedules, and the start of the runs that are due."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import structlog
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import TEMPORARY, MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.runs import Lineage, Run, RunOrigin, RunRequest
from mnemesh_orchestrator.model.schedules import (
    LATE,
    MISSED,
    Schedule,
    ScheduleFilter,
    is_missed,
    planned,
    valid_schedule,
)
from mnemesh_orchestrator.store.schedules import ScheduleStore
from mnemesh_orchestrator.usecases.runs import RunService

_LOOK_SECONDS: Final = 30.0
"""How late the run of a schedule may be whose replica ended before it was due."""
_LEAST_SECONDS: Final = 0.01
_AT_ONCE: Final = 100
_UNEXPECTED: Final = "The run could not be started. The server's log has the reason."
_TIMING: Final = frozenset({"cron", "due_at", "time_zone", "max_runs", "ends_at", "paused"})
_log = structlog.get_logger("mnemesh.schedules")


@dataclass(frozen=True, eq=False)
class ScheduleService:
    """Creates, reads and changes schedules, and starts the runs that are due."""

    store: ScheduleStore
    runs: RunService
    clock: Clock
    ids: IdSource
    changed: asyncio.Event
    """Set after each change in this process: the next time at which a schedule is due may be another one."""
    started_at: datetime
    """When this process began."""

    async def create(self, caller: Principal, key: RequestKey | None, draft: Schedule) -> Schedule:
        """Stores a schedule and returns it. Raises InvalidArgument, and NotFound for what it names."""
        now = self.clock.now()
        new = replace(
            draft,
            id=self.ids.new("schedule"),
            organization_id=caller.organization_id,
            subject_id=caller.subject_id,
            created_at=now,
            updated_at=now,
        )
        stored = await self.store.create(key, planned(valid_schedule(new), now))
        self.changed.set()
        return stored

    async def get(self, caller: Principal, schedule_id: str) -> Schedule:
        """Returns a schedule. Raises NotFound."""
        return await self.store.get(caller.organization_id, schedule_id)

    async def list(self, caller: Principal, filter_: ScheduleFilter, page: PageQuery) -> Page[Schedule]:
        """Returns a page of schedules ordered by creation."""
        return await self.store.list(caller.organization_id, filter_, page)

    async def update(
        self, caller: Principal, key: RequestKey | None, schedule_id: str, changes: Mapping[str, Any]
    ) -> Schedule:
        """Changes fields of a schedule, and returns it. If its times change, the next one is calculated from now on.

        Raises InvalidArgument, NotFound.
        """
        now = self.clock.now()
        if (changes.get("cron") is None) != (changes.get("due_at") is None):
            changes = {"cron": None, "due_at": None, **changes}

        def change(schedule: Schedule) -> Schedule:
            changed = valid_schedule(replace(schedule, **changes, updated_at=now))
            return planned(changed, now) if _TIMING & changes.keys() else changed

        stored = await self.store.update(key, caller.organization_id, schedule_id, change)
        self.changed.set()
        return stored

    async def delete(self, caller: Principal, key: RequestKey | None, schedule_id: str) -> None:
        """Deletes a schedule. A missing one is not an error."""
        await self.store.delete(key, caller.organization_id, schedule_id)

    async def watch(self) -> None:
        """Starts the runs that are due, when they are due. Does not return."""
        while True:
            self.changed.clear()
            next_at = await self.store.next_time()
            seconds = _LOOK_SECONDS
            if next_at is not None:
                seconds = min(seconds, max(_LEAST_SECONDS, (next_at - self.clock.now()).total_seconds()))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.changed.wait()
            await self.start_due()

    async def start_due(self) -> None:
        """Starts the runs that are due now, in every organization."""
        while found := await self.store.list_due(self.clock.now(), _AT_ONCE):
            for schedule in found:
                try:
                    await self._start(schedule)
                except TEMPORARY:
                    raise
                except Exception:
                    # A schedule that cannot start must not stop the others.
                    _log.exception("scheduled_run_failed_unexpectedly", schedule_id=schedule.id)
                    await self.store.fire(schedule, None, _UNEXPECTED)

    async def _start(self, due: Schedule) -> None:
        """Starts the due run of a schedule, or notes why it does not start. Raises the errors of the database."""
        run: Run | None = None
        refusal: str | None = None
        if is_missed(due, self.clock.now()):
            refusal = MISSED if (due.next_run_at or self.started_at) < self.started_at else LATE
        else:
            try:
                run = await self._run_of(due)
            except MnemeshError as error:
                if isinstance(error, TEMPORARY):
                    raise
                refusal = error.message
        started = await self.store.fire(due, run, refusal)
        if started is None:
            _log.info("scheduled_run_not_started", schedule_id=due.id, reason=refusal if run is None else "overlap")
            return
        _log.info("scheduled_run_started", schedule_id=due.id, run_id=started.id)
        await self.runs.worker.start_next(started.conversation_id)

    async def _run_of(self, due: Schedule) -> Run:
        """Returns the run of a due time. Its id is derived from both."""
        caller = Principal(due.organization_id, due.subject_id)
        conversation_id = "" if due.group_id is not None else due.conversation_id
        request = RunRequest(due.agent_id, conversation_id, due.messages, due.config, due.group_id)
        run = replace(
            self.runs.new_run(caller, request, background=True),
            id=derive_id("run", due.id, (due.next_run_at or due.created_at).isoformat()),
            lineage=Lineage(origin=RunOrigin.SCHEDULE),
        )
        with as_principal(caller):
            if due.group_id is not None:
                run = await self.runs.planner.plan(run, due.group_id)
            return await self.runs.prepare(run)
