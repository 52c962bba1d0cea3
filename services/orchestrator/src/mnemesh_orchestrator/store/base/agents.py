"""The contract of what stores agents."""

from collections.abc import Callable
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.agents import Agent, AgentFilter


class AgentStore(Protocol):
    """Agents and their conversations."""

    async def begin_creation(self, key: RequestKey | None, agent: Agent, creation: bytes) -> tuple[str, bool]:
        """Stores a CREATING agent with its default conversation and the whole of its request.

        Returns the agent's id and whether the request came before (then nothing is stored).

        Raises:
            RequestIdReused: with other content.
        """
        ...

    async def unfinished(self) -> tuple[tuple[Agent, bytes], ...]:
        """Every CREATING and DELETING agent of every organization, with its creation request (empty when DELETING)."""
        ...

    async def creation(self, organization_id: str, agent_id: str) -> tuple[Agent, bytes] | None:
        """A CREATING agent and its request; None in any other state."""
        ...

    async def activate(self, agent: Agent) -> bool:
        """Writes a CREATING agent as ACTIVE; False where it is not CREATING any more, and nothing is written."""
        ...

    async def abandon(self, agent_id: str, key: RequestKey | None) -> bool:
        """Marks a CREATING agent DELETING and forgets the request that began it; False where it is not CREATING."""
        ...

    async def remove(self, agent_id: str) -> None:
        """Removes the agent with all that hangs on it."""
        ...

    async def get(self, organization_id: str, agent_id: str) -> Agent:
        """An ACTIVE agent.

        Raises:
            NotFound: it is not there, not yet, or not any more.
        """
        ...

    async def list(self, organization_id: str, where: AgentFilter, order_by: str, page: PageQuery) -> Page[Agent]:
        """A page by "created_at", "updated_at" or "last_run_completed_at" (agents that never ran last)."""
        ...

    async def count(self, organization_id: str, where: AgentFilter) -> int:
        """How many agents match."""
        ...

    async def update(
        self, key: RequestKey | None, organization_id: str, agent_id: str, change: Callable[[Agent], Agent]
    ) -> Agent:
        """Applies a pure function to an ACTIVE agent's record and stores the result; a repeat changes nothing.

        What `change` raises changes nothing.

        Raises:
            NotFound: it is not ACTIVE.
        """
        ...

    async def record_request(self, key: RequestKey | None) -> bool:
        """Records a request whose effect lies in another room; whether it had come before.

        Raises:
            RequestIdReused: with other content.
        """
        ...

    async def outcome(self, key: RequestKey) -> str | None:
        """What a request that is repeated was noted to come to; None where it is the first.

        Raises:
            RequestIdReused: with other content.
        """
        ...

    async def record_outcome(self, key: RequestKey, outcome: str) -> str:
        """Notes what a request comes to before it has its effect; the first note stands, and comes back.

        Raises:
            RequestIdReused: with other content.
        """
        ...

    async def begin_deletion(self, organization_id: str, agent_id: str) -> bool:
        """Marks an agent DELETING and takes its conversations' leases away; False where there is none.

        True again for an agent that is DELETING: who asks again takes the deletion up.
        """
        ...

    async def tags(self, organization_id: str, page: PageQuery, text_search: str | None) -> Page[str]:
        """Tags in use, by the alphabet."""
        ...
