"""The errors of the archival service."""

from mnemesh_kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Unavailable


class ArchiveNotFound(NotFound):
    """The organization has no such archive, or it is not attached to the agent."""

    reason = "ARCHIVE_NOT_FOUND"

    def __init__(self, archive_id: str, agent_id: str | None = None) -> None:
        message = f"There is no archive {archive_id}."
        if agent_id is not None:
            message = f"Archive {archive_id} is not attached to agent {agent_id}."
        super().__init__(message, resource_id=archive_id)


class PassageNotFound(NotFound):
    """The organization has no such passage."""

    def __init__(self, passage_id: str) -> None:
        super().__init__(f"There is no passage {passage_id}.", resource_id=passage_id)


class PassageExists(AlreadyExists):
    """The id that the caller supplied belongs to another passage, or belonged to a deleted one."""

    def __init__(self, passage_id: str) -> None:
        super().__init__(f"The passage id {passage_id} was used before.", field="id", value=passage_id)


class AgentErased(FailedPrecondition):
    """The agent was erased; nothing can be written for it."""

    reason = "ERASED"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"Agent {agent_id} was erased.", resource_id=agent_id)


class EmbedderUnavailable(Unavailable):
    """The embedder cannot be reached, or fails. It was retried, so channels do not retry."""

    reason = "EMBEDDER_UNAVAILABLE"
    final = True

    def __init__(self, embedder: str, error: str) -> None:
        super().__init__(f"The embedder {embedder} is unavailable: {error}", embedder=embedder)


class EmbedderRefused(FailedPrecondition):
    """The embedder's provider refused the texts or the key. The same call would fail again."""

    reason = "PROVIDER_REFUSED"

    def __init__(self, embedder: str, error: str) -> None:
        super().__init__(f"The embedder {embedder} refused the request: {error}", provider=embedder.partition("/")[0])


class VectorIndexUnavailable(Unavailable):
    """The server of the vector index does not answer."""


class EmbedderUnknown(InvalidArgument):
    """The configuration does not allow to build this embedder."""

    reason = "EMBEDDER_UNKNOWN"

    def __init__(self, embedder: str, error: str, field: str = "archive.embedder") -> None:
        super().__init__(error, field=field, embedder=embedder)
