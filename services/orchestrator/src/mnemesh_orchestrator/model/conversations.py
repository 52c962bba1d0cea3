"""Conversations, their context windows, and the tool calls for whose approval they wait."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_kit.text import require_no_nul, require_optional_text, require_text, require_texts
from mnemesh_types import agents
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import (
    ApprovalDecision,
    ClientReturn,
    Deny,
    ImagePart,
    Message,
    Role,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)

from mnemesh_orchestrator.errors import PendingApproval
from mnemesh_orchestrator.model.agents import Correction
from mnemesh_orchestrator.model.inputs import OnBusy, RunConfig, require_valid_part
from mnemesh_orchestrator.model.models import ToolSchema, require_valid_settings

_MAX_TEXT: Final = 100_000
_MAX_LABELS: Final = 100
_MAX_KEY: Final = 512


@dataclass(frozen=True, slots=True)
class Conversation(agents.Conversation):
    """A conversation of an agent with its own context window in recall. Its model and settings override the agent's."""

    organization_id: str = ""
    created_by_id: str = ""

    @property
    def holder_id(self) -> str | None:
        """The id of the conversation if it has isolated blocks, otherwise None."""
        return self.id if self.isolated_block_labels else None


class ConversationState(StrEnum):
    """The state of a conversation. Only ACTIVE conversations are visible to clients."""

    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class ConversationOrigin:
    """The record of a creation in progress: what it forks, and the idempotency key to release if it fails."""

    until_message_id: str | None = None
    method: str | None = None
    request_id: str | None = None
    create_missing_blocks: bool = False


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """The conditions of a list; a conversation must meet all that are set.

    Only ACTIVE conversations of ACTIVE agents are found.
    """

    agent_id: str | None = None
    archived: bool | None = None
    summary_search: str | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedConversation:
    """A CREATING or DELETING conversation. `origin` is set while it is CREATING."""

    conversation: Conversation
    origin: ConversationOrigin | None
    on_busy: OnBusy = OnBusy.REJECT
    """The reaction of its creation to runs that hold the source of a fork."""


@dataclass(frozen=True, slots=True)
class ConversationDraft:
    """A request to create a conversation."""

    agent_id: str
    summary: str | None = None
    description: str | None = None
    archived: bool = False
    model: str | None = None
    model_settings: ModelSettings | None = None
    isolated_block_labels: tuple[str, ...] = ()
    key: str | None = None
    create_missing_blocks: bool = False
    """Gives the conversation empty blocks of its own for isolated labels that the agent does not have."""


class ConversationOrder(StrEnum):
    """The keys that lists of conversations can be sorted by."""

    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"
    LAST_MESSAGE_AT = "last_message_at"


def default_conversation_id(agent_id: str) -> str:
    return derive_id("conv", agent_id)


def require_valid_conversation(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns new values of the fields of a conversation if each follows its rule."""
    for name in ("summary", "description", "model"):
        require_optional_text(values.get(name), f"conversation.{name}", max_chars=_MAX_TEXT)
    require_optional_text(values.get("key"), "conversation.key", min_chars=1, max_chars=_MAX_KEY)
    if (settings := values.get("model_settings")) is not None:
        require_valid_settings(settings, "conversation.model_settings")
    require_texts(values.get("isolated_block_labels", ()), "conversation.isolated_block_labels", max_items=_MAX_LABELS)
    return values


def require_summary(summary: str | None) -> str | None:
    """Returns the summary of a fork; None keeps that of its source. Raises InvalidArgument."""
    return require_optional_text(summary, "summary", max_chars=_MAX_TEXT)


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """The context window of a conversation, system message first. Every change raises `version`."""

    conversation_id: str
    agent_id: str
    version: int
    messages: tuple[Message, ...]
    agent_message_count: int
    epoch: int = 0

    def with_system(self, text: str | None) -> Self:
        """Returns the window with another text of its system message, or unchanged with None."""
        if text is None:
            return self
        head = replace(self.messages[0], content=(TextPart(text),))
        return replace(self, messages=(head, *self.messages[1:]))

    def extended(self, version: int, count: int, system_text: str | None, added: tuple[Message, ...]) -> Self:
        """Returns the window as recall holds it after a commit that was not rebased."""
        base = self.with_system(system_text)
        return replace(base, version=version, agent_message_count=count, messages=(*base.messages, *added))


@dataclass(frozen=True, slots=True)
class StepCommit:
    """The commit of one step to recall. `messages` enter the window in order.

    `base_version` is the version of the window that the step was built on. `system_text` is set if the system message
    is re-rendered.
    """

    agent_id: str
    conversation_id: str
    run_id: str
    epoch: int
    step_id: str
    base_version: int
    messages: tuple[Message, ...]
    system_text: str | None = None


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The result of a commit. `window` is set if recall rebased the messages onto a window that had changed.

    `sequence_ids` are those of the messages of the commit, in their order.
    """

    version: int
    agent_message_count: int
    sequence_ids: tuple[int, ...] = ()
    replayed: bool = False
    window: ContextWindow | None = None


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A message found by a search: its text without packaging, and its rank in each result list, from 1.

    `before` and `after` are the messages around it, oldest first, and `question` is the one that it may answer.
    """

    message: Message
    text: str
    score: float
    vector_rank: int | None = None
    text_rank: int | None = None
    mode: str = "hybrid"
    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()
    question: Message | None = None


@dataclass(frozen=True, slots=True)
class NamedTime:
    """An expression of time in a query, and the half-open range that it denotes. None means no bound."""

    expression: str
    start: datetime | None
    end: datetime | None


@dataclass(frozen=True, slots=True)
class MessageHits:
    """The messages that a search found, best first, and the times that its queries name."""

    hits: tuple[MessageHit, ...] = ()
    times: tuple[NamedTime, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextWindowReport:
    """The content of the next request to the model: texts by section, messages and tools, with estimated tokens.

    `section_tokens` are the tokens of the system prompt, core memory, tool rules, files and metadata, which together
    are the system message. `summary_tokens` are those of the summary that starts the window; `message_tokens` excludes
    them. All counts are corrected by `correction`.
    """

    size: int
    system: str
    core_memory: str
    tool_rules: str
    directories: str
    metadata: str
    window: ContextWindow
    schemas: tuple[ToolSchema, ...]
    passage_count: int
    section_tokens: tuple[int, ...]
    summary_tokens: int
    message_tokens: int
    schema_tokens: int
    correction: Correction

    @property
    def summary(self) -> str | None:
        """The summary of the messages that left the window, or None."""
        first = self.window.messages[1:2]
        return first[0].text if first and first[0].role is Role.SUMMARY else None

    @property
    def total_tokens(self) -> int:
        """The tokens of the whole request."""
        return sum(self.section_tokens) + self.summary_tokens + self.message_tokens + self.schema_tokens


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """A page of a list of messages. A message must meet all conditions that are set.

    The messages of one agent are ordered by sequence id, those of several by the order of storage. `page_token` is one
    that recall issued for the same conditions.
    """

    page_size: int = 0
    """0 is recall's default."""
    page_token: str = ""
    ascending: bool = True
    after_id: str | None = None
    before_id: str | None = None
    agent_ids: tuple[str, ...] = ()
    group_id: str | None = None
    roles: tuple[Role, ...] = ()
    start_time: datetime | None = None
    """Inclusive."""
    end_time: datetime | None = None
    """Exclusive."""
    after_sequence_id: int | None = None
    """Exclusive. Needs exactly one agent."""
    until_sequence_id: int | None = None
    """Inclusive. Needs exactly one agent."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """One page of messages. `next_page_token` is empty on the last one."""

    messages: tuple[Message, ...]
    next_page_token: str = ""


_MAX_DECISIONS: Final = 1_000
_MAX_REASON: Final = 10_000
_MAX_IMAGES: Final = 5
_MAX_LINES: Final = 1_000
_MAX_RETURN: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A tool call with the arguments that it will run with.

    `problem` is set if the arguments cannot be used. With `is_rules_fault` they come from a tool rule, so the model
    cannot correct them. A `gated` call runs after it is approved.
    """

    ordinal: int
    call: ToolCall
    arguments: Mapping[str, Any]
    heartbeat: bool = False
    thinking: str | None = None
    problem: str | None = None
    is_rules_fault: bool = False
    gated: bool = False


@dataclass(frozen=True, slots=True)
class AskedStep:
    """A step whose calls wait for a decision: the stored answer, and the state of the turn before it.

    `history` and `last_result` belong to the tool rules. `client_tools` names the gated tools that the client runs.
    `seen` holds the revisions of the memory blocks that the request showed.
    """

    step_id: str
    message: Message
    calls: tuple[PlannedCall, ...]
    history: tuple[str, ...] = ()
    last_result: str = ""
    client_tools: tuple[str, ...] = ()
    seen: Mapping[str, int] | None = None

    @property
    def gated(self) -> tuple[PlannedCall, ...]:
        """The calls that need a decision."""
        return tuple(item for item in self.calls if item.gated)


@dataclass(frozen=True, slots=True)
class Resumption:
    """The start of a run that answers an approval: the calls that waited and their decisions.

    If the approval was withdrawn, no call runs and the turn ends.
    """

    request_id: str
    asked: AskedStep
    decisions: tuple[ApprovalDecision, ...]
    withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request for approval without an answer: the index of the message that makes the calls, and the calls without a
    return.
    """

    index: int
    caller: Message
    request: Message
    calls: tuple[ToolCall, ...]


def open_request(messages: Sequence[Message]) -> OpenRequest | None:
    """Returns the open request for approval of a window, or None.

    The messages from its `index` on belong together and must stay in the window, because the answer refers to them.
    """
    if not any(message.role is Role.APPROVAL for message in messages):
        return None
    answered = {message.approval_request_id for message in messages if message.approval_request_id}
    returned = {item.tool_call_id for message in messages for item in message.tool_returns}
    for index in range(len(messages) - 1, -1, -1):
        request = messages[index]
        if request.role is Role.APPROVAL and request.tool_calls and request.id not in answered:
            at = _caller(messages, index)
            caller = messages[at]
            calls = tuple(call for call in caller.tool_calls if call.id not in returned)
            return OpenRequest(at, caller, request, calls) if calls else None
    return None


def _caller(messages: Sequence[Message], index: int) -> int:
    """Returns the index of the message that makes the calls of a request; the request's own index if no other message
    does.
    """
    waiting = {call.id for call in messages[index].tool_calls}
    for at in range(index - 1, -1, -1):
        if waiting & {call.id for call in messages[at].tool_calls}:
            return at
    return index


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for approval. Its id is that of the stored message; `config` is that of the run that asked."""

    id: str
    organization_id: str
    subject_id: str
    agent_id: str
    conversation_id: str
    run_id: str
    created_at: datetime
    config: RunConfig
    asked: AskedStep
    expires_at: datetime | None = None
    """The time at which it is denied; None follows the server's setting."""


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """The answer to an approval. Without an id, it answers the pending one.

    Without a config, the answering run has the config of the run that asked. With one, it keeps that run's client tools
    unless it has its own.
    """

    decisions: tuple[ApprovalDecision, ...]
    approval_request_id: str | None = None
    config: RunConfig | None = None
    withdrawn: bool = False

    def config_after(self, asking: RunConfig) -> RunConfig:
        if self.config is None:
            return asking
        return self.config if self.config.client_tools else replace(self.config, client_tools=asking.client_tools)


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """The conditions of pending approvals; an approval must meet all that are set."""

    organization_id: str | None = None
    agent_ids: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    conversation_id: str | None = None
    group_id: str | None = None
    """The group in whose runs the approval was asked for."""
    expired_at: datetime | None = None
    """A time before which the approval has expired by its own timeout, or was asked before `asked_before`."""
    asked_before: datetime | None = None


def require_valid_answer(answer: ApprovalAnswer) -> ApprovalAnswer:
    """Returns the answer to an approval if each decision can be stored."""
    if not answer.decisions:
        raise InvalidArgument("decisions must have at least one decision.", field="decisions")
    if len(answer.decisions) > _MAX_DECISIONS:
        raise InvalidArgument(f"decisions must have at most {_MAX_DECISIONS:,} decisions.", field="decisions")
    for index, decision in enumerate(answer.decisions):
        _require_valid_decision(decision, f"decisions[{index}]")
    return answer


def _require_valid_decision(decision: ApprovalDecision, field: str) -> None:
    call_id = decision.tool_call_id
    if not call_id or " " in call_id or "\0" in call_id:
        raise InvalidArgument(f"{field}.tool_call_id must be the id of a call.", field=f"{field}.tool_call_id")
    match decision:
        case Deny(reason=str() as reason):
            require_text(reason, f"{field}.deny.reason", max_chars=_MAX_REASON)
        case ClientReturn(tool_return=returned):
            _require_valid_return(returned, f"{field}.client_return")


def _require_valid_return(returned: ToolReturn, field: str) -> None:
    if returned.status is ToolStatus.UNSPECIFIED:
        raise InvalidArgument(f"{field}.status must be SUCCESS or ERROR.", field=f"{field}.status")
    if sum(isinstance(part, ImagePart) for part in returned.content) > _MAX_IMAGES:
        raise InvalidArgument(f"{field}.content must have at most {_MAX_IMAGES} images.", field=f"{field}.content")
    for index, part in enumerate(returned.content):
        if not isinstance(part, TextPart):  # a tool can return an empty text
            require_valid_part(part, f"{field}.content[{index}]")
    for name, lines in (("content", (returned.text,)), ("stdout", returned.stdout), ("stderr", returned.stderr)):
        path = f"{field}.{name}"
        if len(lines) > _MAX_LINES or sum(map(len, lines)) > _MAX_RETURN:
            raise InvalidArgument(f"{path} must have at most 1 MB in {_MAX_LINES:,} lines.", field=path)
        for line in lines:
            require_no_nul(line, path)


def require_no_approval(pending: str | None) -> None:
    """Raises PendingApproval if the conversation waits for the approval `pending`."""
    if pending is not None:
        raise PendingApproval(
            "The conversation waits for an approval. Answer it before sending a message.",
            approval_request_id=pending,
        )
