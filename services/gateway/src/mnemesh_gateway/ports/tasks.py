"""Agents that exist for one task."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from mnemesh_gateway.model.agents import AgentInfo
from mnemesh_gateway.model.runs import RunEvent
from mnemesh_gateway.model.tasks import Task


class TaskAgentsPort(Protocol):
    """Hidden agents without memory and tools."""

    async def create(self, model: str, instructions: str | None) -> AgentInfo:
        """Returns a new agent with a language model and a system prompt."""
        ...

    def run(self, agent: AgentInfo, task: Task) -> AsyncIterator[RunEvent]:
        """Yields the events of the task's only run. The first is Accepted."""
        ...

    async def delete(self, agent_id: str) -> None:
        """Deletes an agent with everything that it stored."""
        ...

    async def abandoned(self) -> tuple[str, ...]:
        """Returns the ids of agents whose tasks ended without their deletion, because a process was killed."""
        ...
