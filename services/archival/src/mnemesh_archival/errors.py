"""What can go wrong with archives and passages."""

from __future__ import annotations

from mnemesh_kit.errors import Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Unavailable


class ArchiveNotFound(NotFound):
    """The organization has no such archive, or the agent does not hold it."""

    reason = "ARCHIVE_NOT_FOUND"

    def __init__(self, archive_id: str, agent_id: str | None = None) -> None:
        who = f"Agent {agent_id} holds no" if agent_id else "There is no"
        super().__init__(f"{who} archive {archive_id}.", resource_id=archive_id)


class PassageNotFound(NotFound):
    """The organization has no such passage."""

    def __init__(self, passage_id: str) -> None:
        super().__init__(f"There is no passage {passage_id}.", resource_id=passage_id)


class PassageExists(AlreadyExists):
    """The id that an importer gave is taken, or was and is spent."""

    def __init__(self, passage_id: str) -> None:
        super().__init__(f"The passage id {passage_id} was used before.", field="id", value=passage_id)


class PassageBusy(Aborted):
    """Another replica is changing the passage at this moment."""

    def __init__(self, passage_id: str) -> None:
        super().__init__(f"Passage {passage_id} is being changed by another call; try again.", resource_id=passage_id)


class ArchiveMoved(Aborted):
    """The archive gets another embedder at this moment, or got it while the call was embedding for the old one."""

    def __init__(self, archive_id: str) -> None:
        super().__init__(f"Archive {archive_id} is changing its embedder; try again.", resource_id=archive_id)


class AgentErased(FailedPrecondition):
    """The agent was erased; nothing is written for it any more."""

    reason = "ERASED"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"Agent {agent_id} was erased.", resource_id=agent_id)


class EmbedderUnavailable(Unavailable):
    """The embedder cannot be reached, or fails. It was asked several times already, so channels need not."""

    reason = "EMBEDDER_UNAVAILABLE"
    final = True

    def __init__(self, embedder: str, why: str) -> None:
        super().__init__(f"The embedder {embedder} does not work: {why}", embedder=embedder)


class VectorIndexUnavailable(Unavailable):
    """The server of the vector index does not answer."""


class EmbedderUnknown(InvalidArgument):
    """No embedder of that name can be built from the configuration."""

    reason = "EMBEDDER_UNKNOWN"

    def __init__(self, embedder: str, why: str) -> None:
        super().__init__(why, field="archive.embedder", embedder=embedder)
