"""The store of imports of agents."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.model.steps import Step
from mnemesh_orchestrator.model.transfers import AgentImport, ImportReport


class AgentImportStore(Protocol):
    """Imports in progress, and the parts of imported agents that the orchestrator stores.

    Every write for an import raises Aborted if a newer call continues it. What exists already is not written again, so
    that an import can be repeated.
    """

    async def resume(self, organization_id: str, request_id: str, fingerprint: str) -> AgentImport | None:
        """Returns the import of an earlier call, which this call continues, or None.

        Raises:
            RequestIdReused: The import has another fingerprint.
        """
        ...

    async def is_free(self, agent_id: str) -> bool:
        """Returns whether no organization has an agent with this id."""
        ...

    async def begin(self, started: AgentImport, agent: Agent) -> AgentImport:
        """Stores a new import and its agent, which is invisible, or returns what another call has stored meanwhile.

        Raises:
            AlreadyExists: An agent has the id.
        """
        ...

    async def plan(self, started: AgentImport, record_ids: Iterable[str]) -> AgentImport:
        """Notes the records of shared things that this import creates, and returns the import."""
        ...

    async def put_conversations(self, started: AgentImport, conversations: Sequence[Conversation]) -> None:
        """Stores conversations. The default conversation of the agent exists; it gets the given values."""
        ...

    async def put_runs(self, started: AgentImport, runs: Sequence[Run]) -> None:
        """Stores ended runs, in their order."""
        ...

    async def put_steps(self, started: AgentImport, steps: Sequence[Step]) -> frozenset[str]:
        """Stores steps of stored runs. Returns the ids of those whose run is not stored."""
        ...

    async def activate(self, started: AgentImport, agent: Agent) -> None:
        """Makes the agent visible, with its final values. A repeat changes nothing.

        Raises:
            NotFound: An identity of the agent does not exist.
        """
        ...

    async def end(self, started: AgentImport, report: ImportReport) -> AgentImport:
        """Stores the report. It is kept as long as the agent."""
        ...

    async def abandon(self, before: datetime) -> int:
        """Marks the agents of imports that were not continued since then for deletion. Returns their number."""
        ...
