"""The store of partners in creation."""

from collections.abc import Callable
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.creation import Partnership, PartnerStart
from mnemesh_orchestrator.model.groups import Group


class PartnerStore(Protocol):
    """Partners that are created for ACTIVE agents.

    AgentStore.activate stores those that are created together with their agent.
    """

    async def begin(
        self,
        key: RequestKey | None,
        organization_id: str,
        agent_id: str,
        change: Callable[[Agent], Agent],
        create: Callable[[Agent, Group | None], tuple[Agent, bytes]],
    ) -> PartnerStart:
        """Applies an update of an agent whose sleeptime group has members, or stores a CREATING partner.

        A repeat under the same key changes nothing, and returns the state of the first request. A request while the
        partner of another request is CREATING changes and records nothing, and returns that partner. So does one for an
        agent whose partners are in none of its groups, and returns these.

        Args:
            key: Identifies the update.
            organization_id: The organization.
            agent_id: The agent.
            change: Returns the agent after the update. It is also called before a partner is stored.
            create: Returns the partner and the record of its creation, from the agent after the update and its
                sleeptime group without members, if it has one.

        Raises:
            NotFound: The agent is not ACTIVE.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def activate(self, partnership: Partnership, agent_id: str, change: Callable[[Agent], Agent]) -> Agent | None:
        """Stores a CREATING partner as ACTIVE, and applies the update of its agent. Returns the agent.

        The group is inserted, or the partner joins it if it exists. Returns None, and stores nothing, if the partner
        has another state.

        Raises:
            NotFound: The agent is not ACTIVE.
            InvalidArgument: The agent manages another sleeptime group.
        """
        ...
