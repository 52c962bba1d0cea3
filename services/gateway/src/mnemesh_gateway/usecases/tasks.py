"""Tasks of front ends: answered by the agent's language model, without the agent's memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Final

import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.time import Clock

from mnemesh_gateway.clients.runs import TaskAgentsClient
from mnemesh_gateway.model.models import AgentInfo
from mnemesh_gateway.model.runs import AnswerEvent, Begun
from mnemesh_gateway.model.tasks import Task
from mnemesh_gateway.usecases.agents import AgentService, Cache
from mnemesh_gateway.usecases.answering import answer_events
from mnemesh_gateway.usecases.chat import Answer

_SWEEP_SECONDS: Final = 3600.0
_ORGANIZATIONS: Final = 1_000
_log = structlog.get_logger("mnemesh.tasks")


class TaskService:
    """Answers tasks with agents that exist for one task and are deleted with all they stored."""

    def __init__(self, agents: AgentService, tasks: TaskAgentsClient, clock: Clock) -> None:
        self._agents = agents
        self._tasks = tasks
        self._clock = clock
        self._deletions: set[asyncio.Task[None]] = set()
        self._swept: Cache[str, bool] = Cache(_ORGANIZATIONS, _SWEEP_SECONDS, clock)

    async def open(self, caller: Principal, model: str, task: Task) -> Answer:
        """Starts a task and returns its answer. Raises the errors of ChatService.open."""
        agent = await self._agents.find(caller, model)
        helper = await self._tasks.create(agent.model, task.instructions)
        events = answer_events(self._tasks.run(helper, task), ())
        try:
            begun = await anext(events)
        except BaseException:
            self._delete_later(helper.id)
            raise
        assert isinstance(begun, Begun), "a run begins with its id"  # noqa: S101
        return Answer(agent, begun, self._ending(events, helper), self._clock.now())

    def sweep(self, caller: Principal) -> None:
        """Begins to delete the helpers that killed processes left in the caller's organization, once in an hour."""
        if self._swept.get(caller.organization_id) is None:
            self._swept.put(caller.organization_id, value=True)
            self._begin(self._delete(None))

    async def close(self) -> None:
        """Waits for the deletions that have begun."""
        await asyncio.gather(*self._deletions, return_exceptions=True)

    async def _ending(
        self, events: AsyncGenerator[AnswerEvent, None], helper: AgentInfo
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yields the events; at their end, or if the client disconnects, the helper is deleted."""
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        finally:
            self._delete_later(helper.id)

    def _delete_later(self, agent_id: str) -> None:
        self._begin(self._delete(agent_id))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        deletion = asyncio.create_task(work)
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)

    async def _delete(self, agent_id: str | None) -> None:
        """Deletes a helper, and those that killed processes left."""
        try:
            if agent_id is not None:
                await self._tasks.delete(agent_id)
            for abandoned in await self._tasks.abandoned():
                await self._tasks.delete(abandoned)
        except MnemeshError as error:
            _log.warning("task_agent_not_deleted", agent_id=agent_id, error=error.message)
