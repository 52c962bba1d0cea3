"""The errors of the orchestrator."""

from mnemesh_kit.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServerBusy,
)


class LeaseLost(Aborted):
    """Another process holds the lease of the conversation. The task must stop at once and write nothing more."""

    reason = "LEASE_LOST"


class StepConflict(Aborted):
    """The step was committed before with other content."""

    reason = "STEP_CONFLICT"


class WindowMoved(Aborted):
    """The window has another version than the caller saw."""

    reason = "WINDOW_MOVED"


class ConversationBusy(Aborted):
    """Another run holds the conversation."""

    reason = "CONVERSATION_BUSY"


class PendingApproval(FailedPrecondition):
    """The conversation waits for the answer to an approval."""

    reason = "PENDING_APPROVAL"


class NoPendingApproval(FailedPrecondition):
    """No approval waits for this answer, or it was answered before."""

    reason = "NO_PENDING_APPROVAL"


class ApprovalMismatch(InvalidArgument):
    """The decisions do not match the calls that wait."""

    reason = "APPROVAL_MISMATCH"


class ContextWindowOverflow(FailedPrecondition):
    """The next request does not fit the context window of the model."""

    reason = "CONTEXT_WINDOW_OVERFLOW"


class SystemPromptOverflow(FailedPrecondition):
    """The system prompt alone does not fit the context window of the model."""

    reason = "SYSTEM_PROMPT_OVERFLOW"


class NothingToCompact(FailedPrecondition):
    """A compaction found nothing to remove."""

    reason = "NOTHING_TO_COMPACT"


class RuleFault(FailedPrecondition):
    """A tool rule gives an argument that its tool does not take. The run stops and the tool does not run."""


class ToolsMissing(FailedPrecondition):
    """The agent acts by tools only and has none. The model is not called."""


class RunEnded(FailedPrecondition):
    """The run has ended."""

    reason = "RUN_ENDED"


class OtidReused(InvalidArgument):
    """A message has the otid of an earlier one and other content, or is sent beside messages of an earlier run."""

    reason = "OTID_REUSED"


class EmbedderUnknown(InvalidArgument):
    """The embedder of an agent is not configured."""

    reason = "EMBEDDER_UNKNOWN"

    def __init__(self, handle: str, problem: str) -> None:
        super().__init__(
            f"agent.embedder must be a configured embedder: {problem}. ListEmbedders returns the available ones.",
            field="agent.embedder",
            embedder=handle,
        )


class AgentRevisionMismatch(Aborted):
    """The agent has another revision than the caller saw."""

    reason = "AGENT_REVISION_MISMATCH"

    def __init__(self, agent_id: str, revision: int) -> None:
        super().__init__(
            f"The agent was changed since and has the revision {revision}. Read it again.",
            resource_id=agent_id,
            revision=str(revision),
        )


class IdentifierKeyTaken(AlreadyExists):
    """Another identity of the project has the key."""

    def __init__(self, identifier_key: str) -> None:
        super().__init__(
            f"There is an identity with the key {identifier_key[:200]!r} already.", field="identity.identifier_key"
        )


class RunUnderWay(FailedPrecondition):
    """The run has not ended yet."""


class GroupUnusable(FailedPrecondition):
    """The group has no members, or its manager was deleted."""

    reason = "GROUP_UNUSABLE"


class GroupChanged(Aborted):
    """Another request changed the group, or is changing it."""

    def __init__(self, group_id: str) -> None:
        super().__init__("Another request is changing the group. Repeat the call.", resource_id=group_id)


class GroupRevisionMismatch(Aborted):
    """The group has another revision than the caller saw."""

    reason = "GROUP_REVISION_MISMATCH"

    def __init__(self, group_id: str, revision: int) -> None:
        super().__init__(
            f"The group was changed since and has the revision {revision}. Read it again.",
            resource_id=group_id,
            revision=str(revision),
        )


class MessageCycle(FailedPrecondition):
    """An agent would wait for itself: the recipient of its message waits for its answer."""


class MessageDepthExceeded(FailedPrecondition):
    """Too many agents called one another."""


class BudgetExceeded(ResourceExhausted):
    """A budget of the organization or of the agent is used up."""

    reason = "BUDGET_EXCEEDED"


class InputRefused(FailedPrecondition):
    """A processor of the operator refuses the input. The message is the processor's."""

    reason = "INPUT_REFUSED"


class ProcessorFailed(Internal):
    """A processor of the operator failed, or exceeded its time limit."""

    reason = "PROCESSOR_FAILED"


class ProviderNameTaken(AlreadyExists):
    """Another provider of the organization or the operator has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is a provider {name} already. Choose another name.", field="provider.name", name=name)


class ProviderNotFound(NotFound):
    """The provider does not exist, or is another organization's."""

    def __init__(self, provider_id: str) -> None:
        super().__init__(f"There is no provider {provider_id}.", field="provider_id", resource_id=provider_id)


class ToolSlotsBusy(ServerBusy):
    """The tools service had no slot for a tool in time. The tool was not run."""

    reason = "TOOL_SLOTS_BUSY"


REMOTE = (LeaseLost, StepConflict, WindowMoved, ToolSlotsBusy)
"""Errors of other services that the orchestrator handles by type."""
