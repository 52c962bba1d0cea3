"""The archival service, as the orchestrator calls it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_orchestrator.model.episodes import ArchivalSummary, PassageHit
from mnemesh_orchestrator.model.erasure import Erased


class ArchivalPort(Protocol):
    """Archival memory."""

    async def insert(
        self, request_id: str, agent_id: str, text: str, tags: Sequence[str] = (), *, embedder: str | None = None
    ) -> str:
        """Stores a passage in the agent's archive, and returns its id.

        An agent without an archive gets one with the embedder; None is the default of archival.
        """
        ...

    async def search(
        self,
        agent_id: str,
        query: str,
        *,
        further_queries: Sequence[str] = (),
        tags: Sequence[str] = (),
        match_all_tags: bool = False,
        limit: int = 10,
        surrounding: int = 0,
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str = "UTC",
        now: datetime | None = None,
    ) -> tuple[PassageHit, ...]:
        """Searches all archives of the agent (hybrid) for one query or several, best first.

        Each hit has the passages of its dialogue or document around it, as many as `surrounding` on either side.
        Expressions of time in the queries, such as "last week", are resolved from `now`. See RecallPort.search.
        """
        ...

    async def summary(self, agent_id: str, if_revision: int | None = None) -> ArchivalSummary | None:
        """Returns the summary of the agent's archives, or None if `if_revision` is the current revision."""
        ...

    async def attach(self, request_id: str, agent_id: str, archive_id: str) -> None:
        """Attaches an archive to the agent."""
        ...

    async def create(self, request_id: str, agent_id: str, embedder: str | None = None) -> str:
        """Creates an archive for the agent, with which it is deleted, attaches it, and returns its id."""
        ...

    async def archives_of(self, agent_id: str) -> tuple[str, ...]:
        """Returns the ids of the agent's archives, oldest first."""
        ...

    async def erase_agent(
        self, request_id: str, agent_id: str, *, unshared: bool = False, together_with: Sequence[str] = ()
    ) -> Erased:
        """Erases the agent, and the archives that were created for it or, if `unshared`, that only it holds.

        Archives that were created for an agent of `together_with`, which is erased too, are erased like its own.
        """
        ...
