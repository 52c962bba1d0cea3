"""The errors of the blocks service. Agents read the texts of those that an edit can raise."""

from collections.abc import Sequence

from mnemesh_kit.errors import Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound


class BlockNotFound(NotFound):
    """The organization has no such block."""

    def __init__(self, block_id: str) -> None:
        super().__init__(f"Block {block_id} does not exist.", resource_id=block_id)


class ConversationNotFound(NotFound):
    """The conversation belongs to another agent."""

    def __init__(self, conversation_id: str) -> None:
        super().__init__(f"Conversation {conversation_id} does not belong to this agent.", resource_id=conversation_id)


class BlockNotHeld(NotFound):
    """The agent does not hold the block."""

    def __init__(self, agent_id: str, block_id: str) -> None:
        super().__init__(f"Agent {agent_id} does not hold block {block_id}.", resource_id=block_id)


class BlockRevisionNotFound(NotFound):
    """The block has no such revision, or did not exist at the requested time."""

    def __init__(self, block_id: str, revision: str) -> None:
        super().__init__(f"Block {block_id} has no revision {revision}.", resource_id=block_id)


class BlockLabelNotFound(NotFound):
    """The agent holds no block under this label."""

    reason = "BLOCK_LABEL_NOT_FOUND"

    def __init__(self, label: str, labels: Sequence[str]) -> None:
        available = ", ".join(labels)
        super().__init__(
            f"Block field {label} does not exist (available sections = {available})",
            label=label,
            labels=",".join(labels),
        )


class BlockLabelTaken(AlreadyExists):
    """The agent holds another block under this label."""

    reason = "BLOCK_LABEL_TAKEN"

    def __init__(self, label: str, agent_id: str) -> None:
        super().__init__(f"Agent {agent_id} already holds a block labelled {label}.", label=label, agent_id=agent_id)


class BlockLimitExceeded(FailedPrecondition):
    """The new value is longer than the block's limit."""

    reason = "BLOCK_LIMIT_EXCEEDED"

    def __init__(self, label: str, limit: int, size: int) -> None:
        super().__init__(
            f"Edit failed: Exceeds {limit} character limit (requested {size})",
            label=label,
            limit=str(limit),
            size=str(size),
        )


class BlockReadOnly(FailedPrecondition):
    """The block is read-only, and the author is an agent."""

    reason = "BLOCK_READ_ONLY"

    def __init__(self, label: str) -> None:
        super().__init__("Error This block is read-only and cannot be edited.", label=label)


class BlockRevisionMismatch(Aborted):
    """The block changed since its author read it. The metadata has the current revision and value."""

    reason = "BLOCK_REVISION_MISMATCH"

    def __init__(self, label: str, revision: int, value: str) -> None:
        super().__init__(
            f"Block {label} was changed by another author and is now at revision {revision}. "
            "Read its current value and repeat the edit.",
            label=label,
            revision=str(revision),
            value=value,
        )


class BlockTextNotFound(FailedPrecondition):
    """The text to replace does not occur in the block."""

    reason = "BLOCK_TEXT_NOT_FOUND"


class BlockTextAmbiguous(FailedPrecondition):
    """The text to replace occurs more than once."""

    reason = "BLOCK_TEXT_AMBIGUOUS"

    def __init__(self, label: str, text: str, lines: Sequence[int]) -> None:
        super().__init__(
            f"No replacement was performed. Multiple occurrences of old_str `{text}` in lines {list(lines)}. "
            "Please ensure it is unique.",
            label=label,
            lines=",".join(map(str, lines)),
        )


class BlockLineNumberPrefix(InvalidArgument):
    """The text contains line numbers, which blocks are displayed with but do not contain."""

    reason = "BLOCK_LINE_NUMBER_PREFIX"

    def __init__(self, name: str, field: str) -> None:
        super().__init__(
            f"{name} contains a line number prefix, which is not allowed. Do not include line numbers when calling "
            "memory tools (line numbers are for display purposes only).",
            field=field,
        )


class BlockLineOutOfRange(InvalidArgument):
    """The block has no such line."""

    reason = "BLOCK_LINE_OUT_OF_RANGE"

    def __init__(self, line: int, lines: int) -> None:
        super().__init__(
            f"Invalid `insert_line` parameter: {line}. It should be within the range of lines of the memory block: "
            f"[0, {lines}], or -1 to append to the end of the memory block.",
            line=str(line),
            lines=str(lines),
        )


class BlockPatchFailed(FailedPrecondition):
    """A hunk of the patch matches no position of the block, or several."""

    reason = "BLOCK_PATCH_FAILED"


class BlockNoHistory(FailedPrecondition):
    """There is nothing to undo or to redo."""

    reason = "BLOCK_NO_HISTORY"

    def __init__(self, block_id: str, direction: str) -> None:
        super().__init__(f"Block {block_id} has no history entry to {direction}.", resource_id=block_id)


class AgentLinked(FailedPrecondition):
    """The agent shares its blocks with another set of agents."""

    def __init__(self, agent_id: str, link_id: str) -> None:
        super().__init__(
            f"Agent {agent_id} is linked under {link_id}. End that link first.", agent_id=agent_id, resource_id=link_id
        )


class AgentErased(FailedPrecondition):
    """The agent was erased. Later writes for it are refused."""

    reason = "ERASED"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"Agent {agent_id} was erased.", resource_id=agent_id)
