"""Agents as models: by id, and by a name that only one agent has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import is_id
from mnemesh_kit.principal import Principal

from mnemesh_gateway.errors import InvalidRequest, UnknownAgent
from mnemesh_gateway.model.agents import AgentInfo
from mnemesh_gateway.ports.agents import AgentsPort
from mnemesh_gateway.usecases.cache import Cache

_SECONDS: Final = 10.0
_SHOWN: Final = 20


class AgentService:
    """Finds agents by the `model` of a request. What was found is kept for ten seconds."""

    def __init__(self, agents: AgentsPort, clock: Clock) -> None:
        self._agents = agents
        self._found: Cache[tuple[str, str], AgentInfo] = Cache(1_000, _SECONDS, clock)

    async def find(self, caller: Principal, model: str) -> AgentInfo:
        """Returns the agent with an id or a name.

        Raises:
            UnknownAgent: There is none.
            InvalidRequest: Several agents have the name.
        """
        key = (caller.organization_id, model)
        found = self._found.get(key)
        if found is None:
            found = await self._find(model)
            self._found.put(key, found)
        return found

    async def _find(self, model: str) -> AgentInfo:
        if is_id(model, "agent"):
            try:
                return await self._agents.get(model)
            except NotFound:
                raise UnknownAgent(model, ()) from None
        agents = await self._agents.named(model) if model.isprintable() and model else ()
        if len(agents) > 1:
            raise InvalidRequest(f"Several agents have the name {model[:200]!r}. Use the id of one.", "model")
        if not agents:
            names: list[str] = []
            async for agent in self._listed():
                names.append(agent.name)
                if len(names) == _SHOWN:
                    break
            raise UnknownAgent(model, tuple(names))
        return agents[0]

    def list(self, caller: Principal) -> AsyncIterator[AgentInfo]:  # noqa: ARG002  (the port knows the caller)
        """Yields the agents of the caller's organization that talk to users, oldest first."""
        return self._listed()

    async def _listed(self) -> AsyncIterator[AgentInfo]:
        async for agent in self._agents.list():
            if not agent.is_partner:
                yield agent
