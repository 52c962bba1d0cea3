"""The Protocol of the orchestrator, as far as the files service needs it."""

from __future__ import annotations

from typing import Protocol


class AgentsPort(Protocol):
    """The agents of the orchestrator. Calls act for the current principal."""

    async def record_folders(self, agent_id: str, revision: int, *, holds_folders: bool) -> None:
        """Tells the orchestrator whether an agent holds folders, as of a revision of its directories.

        A lower revision than that of an earlier call changes nothing.

        Raises:
            NotFound: there is no such agent.
            FailedPrecondition: the agent is being created.
            Unavailable, DeadlineExceeded: the orchestrator does not answer.
        """
        ...
