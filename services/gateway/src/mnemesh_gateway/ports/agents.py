"""The agents of the orchestrator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from mnemesh_gateway.model.agents import AgentInfo


class AgentsPort(Protocol):
    """Agents of the current principal's organization."""

    async def get(self, agent_id: str) -> AgentInfo:
        """Returns an agent. Raises NotFound."""
        ...

    async def named(self, name: str) -> tuple[AgentInfo, ...]:
        """Returns the agents with a name; at most two."""
        ...

    def list(self) -> AsyncIterator[AgentInfo]:
        """Yields all agents that are not hidden, oldest first."""
        ...
