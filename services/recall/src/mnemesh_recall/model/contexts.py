"""Context windows: their content, the requests that create, extend, replace and fork them, and the rules of these.

A window that contains a call without a return is returned with an error return, so that it stays valid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import derive_id, require_id
from mnemesh_kit.text import require_text
from mnemesh_types.messages import ClientReturn, Message, Role, ToolCall, ToolReturn, ToolStatus
from mnemesh_types.recall import WriterLease

from mnemesh_recall.model.episode_rules import require_memories
from mnemesh_recall.model.episodes import EpisodeCommit
from mnemesh_recall.model.messages import (
    MessageBatch,
    owned_message,
    owned_messages,
    require_content_text,
    require_distinct_ids,
    require_message,
    require_messages,
)
from mnemesh_recall.model.writers import require_lease


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWindow:
    """The context window of a conversation.

    `messages` starts with the system message. It is None if the caller already had this version.
    """

    conversation_id: str
    agent_id: str
    version: int
    epoch: int
    agent_message_count: int
    created_at: datetime
    updated_at: datetime
    last_message_at: datetime | None = None
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewContext:
    """The first window of a conversation: the system message, followed by the first messages."""

    agent_id: str
    conversation_id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommit:
    """The commit of one step of a run. All of it is stored, or nothing.

    `hidden_messages` are stored without entering the window. `system_text` replaces the text of the system message.
    """

    agent_id: str
    conversation_id: str
    step_id: str
    lease: WriterLease
    base_version: int
    messages: tuple[Message, ...]
    hidden_messages: tuple[Message, ...] = ()
    system_text: str | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of a step commit. `context` is the current window if the commit was rebased onto it."""

    version: int
    rebased: bool
    replayed: bool
    sequence_ids: tuple[int, ...]
    agent_message_count: int
    context: ContextWindow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReplacement:
    """A whole new window, given by message ids.

    `lease` is None for an owner that acts outside of a run. `memories` are committed in the same transaction.
    """

    agent_id: str
    conversation_id: str
    base_version: int
    message_ids: tuple[str, ...]
    new_messages: tuple[Message, ...] = ()
    system_text: str | None = None
    lease: WriterLease | None = None
    memories: tuple[EpisodeCommit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFork:
    """A new window over the messages of another one, up to and including `until_message_id` if it is set."""

    source_conversation_id: str
    conversation_id: str
    system_message: Message
    until_message_id: str | None = None


MAX_WINDOW: Final = 10_000
MAX_REQUEST_ID_CHARACTERS: Final = 200
UPDATABLE_FIELDS: Final = frozenset({"content", "tool_calls", "tool_returns", "name", "is_err"})


def valid_context(new: NewContext) -> NewContext:
    """Returns a new window with complete messages, if it follows the rules.

    Raises:
        InvalidArgument: an id or a message is invalid, or the first message is not of role SYSTEM.
    """
    _require_owner(new.agent_id, new.conversation_id)
    messages = owned_messages(new.messages, "messages", new.agent_id, new.conversation_id)
    require_messages(messages, "messages", at_least=1)
    require_distinct_ids(messages, "messages")
    if messages[0].role is not Role.SYSTEM:
        raise InvalidArgument("The first message must be of role SYSTEM.", field="messages[0].role")
    return replace(new, messages=messages)


def valid_step(step: StepCommit) -> StepCommit:
    """Returns a step commit with complete messages, if it follows the rules. Raises InvalidArgument."""
    _require_owner(step.agent_id, step.conversation_id)
    require_lease(step.lease, "lease")
    require_text(step.request_id, "request_id", max_chars=MAX_REQUEST_ID_CHARACTERS)
    require_id(step.step_id, "step", "step_id")
    messages = owned_messages(step.messages, "messages", step.agent_id, step.conversation_id)
    hidden = owned_messages(step.hidden_messages, "hidden_messages", step.agent_id, step.conversation_id)
    require_messages(messages, "messages")
    require_messages(hidden, "hidden_messages")
    if not messages and not hidden and step.system_text is None:
        raise InvalidArgument("messages must not be empty if nothing else is committed.", field="messages")
    require_distinct_ids((*messages, *hidden), "messages")
    if step.system_text is not None:
        require_content_text(step.system_text, "system_text")
    return replace(step, messages=messages, hidden_messages=hidden)


def valid_replacement(new: ContextReplacement) -> ContextReplacement:
    """Returns a replacement of a window with complete messages, if it follows the rules. Raises InvalidArgument."""
    _require_owner(new.agent_id, new.conversation_id)
    if new.lease is not None:
        require_lease(new.lease, "lease")
    messages = owned_messages(new.new_messages, "new_messages", new.agent_id, new.conversation_id)
    require_messages(messages, "new_messages")
    require_distinct_ids(messages, "new_messages")
    _require_window_ids(new.message_ids)
    if new.system_text is not None:
        require_content_text(new.system_text, "system_text")
    require_memories(new.memories, "memories")
    return replace(new, new_messages=messages)


def valid_fork(fork: ContextFork) -> ContextFork:
    """Returns a fork with a complete system message, if it follows the rules. Raises InvalidArgument."""
    require_id(fork.source_conversation_id, "conv", "source_conversation_id")
    require_id(fork.conversation_id, "conv", "conversation_id")
    if fork.until_message_id is not None:
        require_id(fork.until_message_id, "message", "until_message_id")
    agent_id = require_id(fork.system_message.agent_id, "agent", "system_message.agent_id")
    system = owned_message(fork.system_message, "system_message", agent_id, fork.conversation_id)
    require_message(system, "system_message")
    if system.role is not Role.SYSTEM:
        raise InvalidArgument("system_message must be of role SYSTEM.", field="system_message.role")
    return replace(fork, system_message=system)


def valid_batch(batch: MessageBatch) -> MessageBatch:
    """Returns a batch with complete messages, if it follows the rules. Raises InvalidArgument."""
    require_id(batch.agent_id, "agent", "agent_id")
    if batch.conversation_id is not None:
        require_id(batch.conversation_id, "conv", "conversation_id")
    messages = owned_messages(batch.messages, "messages", batch.agent_id, batch.conversation_id)
    for index, message in enumerate(messages):
        if message.conversation_id is not None:
            require_id(message.conversation_id, "conv", f"messages[{index}].conversation_id")
    require_messages(messages, "messages", at_least=1)
    require_distinct_ids(messages, "messages")
    return replace(batch, messages=messages)


def require_update(changed: Message, fields: frozenset[str]) -> None:
    """Refuses an update of a message that names no field or a field that cannot change. Raises InvalidArgument."""
    if not fields or not fields <= UPDATABLE_FIELDS:
        names = ", ".join(sorted(UPDATABLE_FIELDS))
        raise InvalidArgument(f"update_mask must name some of {names}.", field="update_mask")
    require_message(changed, "message")


def require_system_start(new: ContextReplacement, first: Message, system_message_id: str) -> None:
    """Refuses a window that does not start with a system message of its own conversation.

    Without this rule, the system message of another conversation could be rewritten through this one.

    Raises:
        InvalidArgument: naming `message_ids`.
    """
    is_own = first.id == system_message_id or any(message.id == first.id for message in new.new_messages)
    if first.role is not Role.SYSTEM or not is_own:
        raise InvalidArgument(
            "message_ids must begin with the conversation's own system message, or a new one.", field="message_ids"
        )


def require_window_messages(new: ContextReplacement, messages: Sequence[Message]) -> None:
    """Refuses a window with ids of messages that do not exist or belong to another agent.

    Raises:
        NotFound: for the first such id.
    """
    missing = set(new.message_ids) - {message.id for message in messages if message.agent_id == new.agent_id}
    if missing:
        first = min(missing, key=new.message_ids.index)
        raise NotFound(f"The agent has no message {first}.", resource_id=first)


def shared_messages(window: Sequence[Message], until_message_id: str | None) -> Sequence[Message]:
    """Returns the messages of a window, without its system message, that a fork shares.

    Raises:
        NotFound: `until_message_id` is not among them.
    """
    messages = window[1:]
    if until_message_id is None:
        return messages
    for index, message in enumerate(messages):
        if message.id == until_message_id:
            return messages[: index + 1]
    raise NotFound(
        f"The window does not contain {until_message_id}.", field="until_message_id", resource_id=until_message_id
    )


def last_message_time(messages: Sequence[Message], previous: datetime | None) -> datetime | None:
    """Returns the time of the newest message, or `previous` if that is later; None if there is neither."""
    times = [message.created_at for message in messages]
    if previous is not None:
        times.append(previous)
    return max(times, default=None)


def _require_owner(agent_id: str, conversation_id: str) -> None:
    require_id(agent_id, "agent", "agent_id")
    require_id(conversation_id, "conv", "conversation_id")


def _require_window_ids(message_ids: Sequence[str]) -> None:
    if not message_ids:
        raise InvalidArgument("message_ids must not be empty.", field="message_ids")
    if len(message_ids) > MAX_WINDOW:
        raise InvalidArgument(f"message_ids must be at most {MAX_WINDOW:,}.", field="message_ids")
    for index, message_id in enumerate(message_ids):
        require_id(message_id, "message", f"message_ids[{index}]")
    if len(set(message_ids)) < len(message_ids):
        raise InvalidArgument("message_ids must not repeat.", field="message_ids")


INTERRUPTED: Final = (
    "The tool call was interrupted: whether it took effect is not known. Check before you call the tool again."
)

_Position = tuple[int, ToolCall]
"""The index of the message that makes a call, and the call."""


def with_error_returns(window: Sequence[Message]) -> tuple[Message, ...]:
    """Returns the window with an error return after every message that has unanswered calls.

    Calls that wait for approval are left alone, and so are the other calls of the same message.

    The returns are not stored: their sequence_id is 0, and their id is derived from the calls that they answer.
    """
    unanswered: dict[int, list[ToolCall]] = {}
    for index, call in _unanswered(window):
        unanswered.setdefault(index, []).append(call)
    if not unanswered:
        return tuple(window)
    repaired: list[Message] = []
    for index, message in enumerate(window):
        repaired.append(message)
        if index in unanswered:
            repaired.append(_error_return(message, unanswered[index]))
    return tuple(repaired)


def is_derived_return(message: Message) -> bool:
    """Returns whether a message of a window is a derived error return, which is not stored."""
    return message.sequence_id == 0


def _unanswered(window: Sequence[Message]) -> Iterator[_Position]:
    open_calls: dict[str, _Position] = {}
    waiting: dict[str, str] = {}
    for index, message in enumerate(window):
        for call in message.tool_calls:
            # A request for approval repeats its calls. Any other repeated id is the provider's.
            if message.role is Role.APPROVAL:
                waiting[call.id] = message.id
                open_calls.setdefault(call.id, (index, call))
                continue
            if call.id in open_calls:
                yield open_calls[call.id]
            open_calls[call.id] = (index, call)
        for decision in message.approval_decisions:
            waiting.pop(decision.tool_call_id, None)
            if isinstance(decision, ClientReturn):
                open_calls.pop(decision.tool_call_id, None)
        if message.approval_request_id is not None:
            waiting = {id_: request for id_, request in waiting.items() if request != message.approval_request_id}
        for item in message.tool_returns:
            open_calls.pop(item.tool_call_id, None)
    held = {index for id_, (index, _) in open_calls.items() if id_ in waiting}
    yield from (position for position in open_calls.values() if position[0] not in held)


def _error_return(message: Message, calls: Sequence[ToolCall]) -> Message:
    return Message(
        id=derive_id("message", "interrupted", message.id, *(call.id for call in calls)),
        agent_id=message.agent_id,
        role=Role.TOOL,
        created_at=message.created_at,
        tool_returns=tuple(ToolReturn.from_text(call.id, call.name, ToolStatus.ERROR, INTERRUPTED) for call in calls),
        group_id=message.group_id,
        step_id=message.step_id,
        run_id=message.run_id,
        turn_id=message.turn_id,
        conversation_id=message.conversation_id,
    )
