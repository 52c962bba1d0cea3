"""The errors of recall."""

from mnemesh_kit.errors import Aborted, AlreadyExists, FailedPrecondition, NotFound, Unavailable


class Erased(FailedPrecondition):
    """The agent was erased. Later writes are refused."""

    reason = "ERASED"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"The agent {agent_id} was erased.", resource_id=agent_id)


class StepConflict(Aborted):
    """The step was committed before, with other messages."""

    reason = "STEP_CONFLICT"

    def __init__(self, step_id: str) -> None:
        super().__init__(f"The step {step_id} was committed before with other content.", step_id=step_id)


class LeaseLost(Aborted):
    """Another lease holder has taken over the conversation."""

    reason = "LEASE_LOST"

    def __init__(self, conversation_id: str, epoch: int) -> None:
        super().__init__(
            f"The conversation {conversation_id} was taken over at epoch {epoch}.",
            conversation_id=conversation_id,
            epoch=str(epoch),
        )


class WindowMoved(Aborted):
    """The window has another version than the caller read."""

    reason = "WINDOW_MOVED"

    def __init__(self, conversation_id: str, version: int) -> None:
        super().__init__(
            f"The window of {conversation_id} is at version {version}. Read it and try again.",
            conversation_id=conversation_id,
            version=str(version),
        )


class FactClosed(FailedPrecondition):
    """The fact was superseded or invalidated before."""

    reason = "FACT_CLOSED"

    def __init__(self, fact_id: str, superseded_by_id: str | None) -> None:
        successor = {} if superseded_by_id is None else {"superseded_by_id": superseded_by_id}
        super().__init__(f"The fact {fact_id} is closed.", resource_id=fact_id, fact_id=fact_id, **successor)


class EmbedderUnavailable(Unavailable):
    """The embedder cannot be reached, and the search uses nothing else."""

    reason = "EMBEDDER_UNAVAILABLE"

    def __init__(self, embedder: str) -> None:
        super().__init__(f"The embedder {embedder} cannot be reached.", embedder=embedder)


class VectorIndexUnavailable(Unavailable):
    """The vector index cannot be read now, and the search uses nothing else."""

    def __init__(self) -> None:
        super().__init__("The vector index is unavailable. Retry later, or search by words.")


def no_agent(agent_id: str) -> NotFound:
    """Returns the error for an agent that is unknown or another organization's."""
    return NotFound(f"No agent {agent_id}.", resource_id=agent_id)


def no_conversation(conversation_id: str) -> NotFound:
    """Returns the error for a conversation that has no window or is another organization's."""
    return NotFound(f"No conversation {conversation_id}.", resource_id=conversation_id)


def no_message(message_id: str) -> NotFound:
    """Returns the error for a message that does not exist or is another organization's."""
    return NotFound(f"No message {message_id}.", resource_id=message_id)


def no_memory(kind: str, memory_id: str) -> NotFound:
    """Returns the error for an episode or a fact that does not exist or is another organization's."""
    return NotFound(f"No {kind} {memory_id}.", resource_id=memory_id)


def record_exists(record_id: str) -> AlreadyExists:
    """Returns the error for a record whose id belongs to other content."""
    return AlreadyExists(f"The agent has a record {record_id} with other content.", record_id=record_id)


def position_taken(record_id: str, turn_id: str, seq: int) -> AlreadyExists:
    """Returns the error for a trace at the position of another trace of the same import."""
    return AlreadyExists(
        f"The record {record_id} has the turn_id and seq of another record of the import ({turn_id}, {seq})."
        " Give each record of a turn its own seq.",
        record_id=record_id,
    )


def message_exists(message_id: str) -> AlreadyExists:
    """Returns the error for a message id that belongs to other content."""
    return AlreadyExists(f"The message {message_id} exists with other content.", id=message_id)
