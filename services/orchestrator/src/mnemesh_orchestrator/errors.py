"""This room's errors."""

from mnemesh_kit.errors import Aborted, AlreadyExists, FailedPrecondition, Internal, InvalidArgument


class LeaseLost(Aborted):
    """Another holder took the conversation over; the task must stop at once and write nothing more."""

    reason = "LEASE_LOST"


class StepConflict(Aborted):
    """The step was committed before with other content."""

    reason = "STEP_CONFLICT"


class WindowMoved(Aborted):
    """The window is at another version than the caller saw."""

    reason = "WINDOW_MOVED"


class ConversationBusy(Aborted):
    """Another run holds the conversation."""

    reason = "CONVERSATION_BUSY"


class PendingApproval(FailedPrecondition):
    """The conversation waits for an answer to its approval."""

    reason = "PENDING_APPROVAL"


class NoPendingApproval(FailedPrecondition):
    """Nothing waits for that answer, or not any more."""

    reason = "NO_PENDING_APPROVAL"


class ApprovalMismatch(InvalidArgument):
    """The decisions do not answer exactly the calls that were asked for."""

    reason = "APPROVAL_MISMATCH"


class ContextWindowOverflow(FailedPrecondition):
    """The next request would not fit the model's window."""

    reason = "CONTEXT_WINDOW_OVERFLOW"


class SystemPromptOverflow(FailedPrecondition):
    """The system prompt alone would not fit the model's window."""

    reason = "SYSTEM_PROMPT_OVERFLOW"


class NothingToCompact(FailedPrecondition):
    """A compaction found nothing to take away."""

    reason = "NOTHING_TO_COMPACT"


class RuleFault(FailedPrecondition):
    """A tool rule gives an argument that its tool does not take; the run stops, and the tool is not run."""


class RunEnded(FailedPrecondition):
    """The run has ended."""

    reason = "RUN_ENDED"


class IdentifierKeyTaken(AlreadyExists):
    """Another identity of the project has the key."""

    def __init__(self, identifier_key: str) -> None:
        super().__init__(
            f"There is an identity with the key {identifier_key[:200]!r} already.", field="identity.identifier_key"
        )


class RunUnderWay(FailedPrecondition):
    """The run has not ended yet."""


class SecretsKeyMissing(FailedPrecondition):
    """Secrets cannot be stored: the server has no key to seal them with."""


class SecretUnreadable(FailedPrecondition):
    """A stored secret was sealed with a key that the server has not, or is damaged."""


class InputRefused(FailedPrecondition):
    """A processor of the operator does not take the input; the words are the processor's."""

    reason = "INPUT_REFUSED"


class ProcessorFailed(Internal):
    """A processor of the operator failed at an input, or took too long."""

    reason = "PROCESSOR_FAILED"


REMOTE = (LeaseLost, StepConflict, WindowMoved)
"""Errors of other rooms that this one branches on."""
