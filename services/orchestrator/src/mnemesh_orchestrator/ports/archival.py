"""The archival service."""

from collections.abc import Sequence
from typing import Protocol

from mnemesh_orchestrator.model.archival import ArchivalSummary, PassageHit
from mnemesh_orchestrator.model.erasure import Erased


class ArchivalPort(Protocol):
    """Archival memory (the archival room)."""

    async def insert(self, request_id: str, agent_id: str, text: str, tags: Sequence[str] = ()) -> str:
        """Stores a passage in the agent's archive, made when it has none; the passage's id."""
        ...

    async def search(
        self,
        agent_id: str,
        query: str,
        *,
        tags: Sequence[str] = (),
        match_all_tags: bool = False,
        limit: int = 10,
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str = "UTC",
    ) -> tuple[PassageHit, ...]:
        """Hybrid search of the agent's archives as one, best first."""
        ...

    async def summary(self, agent_id: str, if_revision: int | None = None) -> ArchivalSummary | None:
        """How much there is, or None where `if_revision` still holds."""
        ...

    async def attach(self, request_id: str, agent_id: str, archive_id: str) -> None:
        """Gives an archive to the agent."""
        ...

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        """Forgets the agent, and the archives that nobody else holds."""
        ...
