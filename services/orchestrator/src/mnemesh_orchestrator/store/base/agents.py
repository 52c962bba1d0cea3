"""The store of agents."""

from collections.abc import Callable
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentOrder
from mnemesh_orchestrator.model.creation import Partnership
from mnemesh_orchestrator.model.erasure import CREATED_FOR_AGENT, Deletion, DeletionStart, ErasureScope


class AgentStore(Protocol):
    """Agents, with the default conversation of each.

    Example:
        >>> agent_id, repeated = await agents.begin_creation(key, agent, creation)
        >>> await agents.activate(agent)
        True
        >>> (await agents.get(agent.organization_id, agent_id)).state
        <AgentState.ACTIVE: 'active'>
    """

    async def begin_creation(self, key: RequestKey | None, agent: Agent, creation: bytes) -> tuple[str, bool]:
        """Stores a CREATING agent with its default conversation and its creation request.

        Returns:
            The id of the agent, and whether the request is a repeat. A repeat stores nothing and returns the first id.

        Raises:
            NotFound: An identity of the agent does not exist.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def unfinished(self) -> tuple[tuple[Agent, bytes], ...]:
        """Returns every CREATING and DELETING agent of all organizations, oldest first, with its creation request.

        Instead of a creation request, a DELETING agent has the scope of its deletion, or nothing.
        """
        ...

    async def creation(self, organization_id: str, agent_id: str) -> tuple[Agent, bytes] | None:
        """Returns a CREATING agent and its creation request, or None if the agent has another state."""
        ...

    async def activate(self, agent: Agent, partnership: Partnership | None = None) -> bool:
        """Stores a CREATING agent as ACTIVE, together with a new partner and their group.

        Returns False, and stores nothing, if the agent has another state.
        """
        ...

    async def abandon(self, agent_id: str, key: RequestKey | None, deletion: Deletion) -> bool:
        """Marks a CREATING agent DELETING with the record of its deletion, and deletes the key of its creation.

        Returns False, and changes nothing, if the agent has another state.
        """
        ...

    async def remove(self, agent_id: str) -> None:
        """Deletes the rows of an agent: its conversations, runs, tags and links."""
        ...

    async def get(self, organization_id: str, agent_id: str) -> Agent:
        """Returns an ACTIVE agent.

        Raises:
            NotFound: The agent does not exist or has another state.
        """
        ...

    async def list(
        self, organization_id: str, filter_: AgentFilter, order_by: AgentOrder, page: PageQuery
    ) -> Page[Agent]:
        """Returns a page of ACTIVE agents. In the order of LAST_RUN_COMPLETED_AT, agents without a run come last."""
        ...

    async def count(self, organization_id: str, filter_: AgentFilter) -> int:
        """Returns the number of ACTIVE agents."""
        ...

    async def cost(self, organization_id: str, agent_id: str) -> int | None:
        """Returns the cost of an agent's ended runs in billionths of a US dollar; None if no run has a known cost."""
        ...

    async def update(
        self, key: RequestKey | None, organization_id: str, agent_id: str, change: Callable[[Agent], Agent]
    ) -> Agent:
        """Applies a pure function to the record of an ACTIVE agent, stores the result, and returns it.

        A repeat under the same key does not apply the function. If the function raises, nothing is stored.

        Raises:
            NotFound: The agent is not ACTIVE, or an identity does not exist.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def record_request(self, key: RequestKey | None) -> bool:
        """Records a request whose effect is in another service. Returns whether it was recorded before.

        Raises:
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def outcome(self, key: RequestKey) -> str | None:
        """Returns the recorded outcome of a request, or None if the request is not a repeat.

        Raises:
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def record_outcome(self, key: RequestKey, outcome: str) -> str:
        """Records the outcome of a request before its effect, and returns the recorded outcome: the first one, if it is
        a repeat.

        Raises:
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def begin_deletion(
        self, organization_id: str, agent_id: str, scope: ErasureScope = CREATED_FOR_AGENT
    ) -> DeletionStart:
        """Marks an agent and the partners that were created for it DELETING, and revokes the leases of their
        conversations.

        The sleeptime group that the agent manages becomes DELETING. So does one of which it was the last member; then
        its manager no longer has enable_sleeptime.

        Returns:
            The id and the stored record of each of these agents, the agent itself last, and the ids of these groups.
            Nothing if the agent does not exist or is CREATING. For DELETING agents these are the records of the first
            request, so that a repeat continues the deletion.
        """
        ...

    async def tags(self, organization_id: str, page: PageQuery, text_search: str | None) -> Page[str]:
        """Returns a page of the distinct tags of ACTIVE agents, in alphabetical order. The search ignores case."""
        ...
