"""What requests ask of the service: ids, bounds and sizes are checked here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import PageQuery, page_query

from mnemesh_recall.model.contexts import Fork, NewContext, Replacement, StepCommit
from mnemesh_recall.model.dates import end_bound, start_bound, time_zone
from mnemesh_recall.model.message_rules import MAX_NAME_CHARACTERS
from mnemesh_recall.model.messages import Batch, MessageFilter, default_conversation_id
from mnemesh_recall.model.search import MessageSearch, SearchScope
from mnemesh_recall.model.searchable_text import SEARCHABLE_ROLES
from mnemesh_recall.rpc.convert import messages as convert
from mnemesh_recall.rpc.convert.episode_commits import commits_in

MAX_QUERY_CHARACTERS: Final = 10_000
MAX_IDS: Final = 1000
DEFAULT_HITS: Final = 10
MAX_HITS: Final = 100


def new_context(request: rpc.CreateContextRequest, now: datetime) -> NewContext:
    """What CreateContext asks."""
    agent_id = require_id(request.agent_id, "agent", "agent_id")
    conversation_id = require_id(request.conversation_id, "conv", "conversation_id")
    messages = convert.messages_in(
        request.messages, "messages", agent_id=agent_id, conversation_id=conversation_id, now=now
    )
    return NewContext(agent_id=agent_id, conversation_id=conversation_id, messages=messages)


def step_commit(request: rpc.CommitStepRequest, now: datetime) -> StepCommit:
    """What CommitStep asks."""
    agent_id = require_id(request.agent_id, "agent", "agent_id")
    conversation_id = require_id(request.conversation_id, "conv", "conversation_id")
    if not request.HasField("lease"):
        raise InvalidArgument("lease must be given.", field="lease")
    if len(request.request_id) > 200 or "\0" in request.request_id:
        raise InvalidArgument("request_id must be at most 200 characters, none NUL.", field="request_id")
    given, hidden = (
        convert.messages_in(messages, field, agent_id=agent_id, conversation_id=conversation_id, now=now)
        for field, messages in (("messages", request.messages), ("hidden_messages", request.hidden_messages))
    )
    return StepCommit(
        agent_id=agent_id,
        conversation_id=conversation_id,
        step_id=require_id(request.step_id, "step", "step_id"),
        epoch=_epoch(request.lease),
        base_version=request.base_version,
        messages=given,
        hidden_messages=hidden,
        system_text=request.system_text if request.HasField("system_text") else None,
        request_id=request.request_id,
    )


def replacement(request: rpc.ReplaceContextRequest, now: datetime) -> Replacement:
    """What ReplaceContext asks."""
    agent_id = require_id(request.agent_id, "agent", "agent_id")
    conversation_id = require_id(request.conversation_id, "conv", "conversation_id")
    messages = convert.messages_in(
        request.new_messages, "new_messages", agent_id=agent_id, conversation_id=conversation_id, now=now
    )
    return Replacement(
        agent_id=agent_id,
        conversation_id=conversation_id,
        base_version=request.base_version,
        message_ids=message_ids(request.message_ids, "message_ids", most=None),
        new_messages=messages,
        system_text=request.system_text if request.HasField("system_text") else None,
        epoch=_epoch(request.lease) if request.HasField("lease") else None,
        memories=commits_in(request.memories, "memories"),
    )


def fork(request: rpc.ForkContextRequest, now: datetime) -> Fork:
    """What ForkContext asks."""
    conversation_id = require_id(request.conversation_id, "conv", "conversation_id")
    return Fork(
        source_conversation_id=require_id(request.source_conversation_id, "conv", "source_conversation_id"),
        conversation_id=conversation_id,
        system_message=convert.owned(
            request.system_message,
            "system_message",
            agent_id=require_id(request.system_message.agent_id, "agent", "system_message.agent_id"),
            conversation_id=conversation_id,
            now=now,
        ),
        until_message_id=require_id(request.until_message_id, "message", "until_message_id")
        if request.HasField("until_message_id")
        else None,
    )


def batch(request: rpc.AppendMessagesRequest, now: datetime) -> Batch:
    """What AppendMessages asks."""
    agent_id = require_id(request.agent_id, "agent", "agent_id")
    conversation_id = (
        require_id(request.conversation_id, "conv", "conversation_id") if request.HasField("conversation_id") else None
    )
    messages = convert.messages_in(
        request.messages, "messages", agent_id=agent_id, conversation_id=conversation_id, now=now
    )
    for index, message in enumerate(messages if conversation_id is None else ()):
        if message.conversation_id is not None:
            require_id(message.conversation_id, "conv", f"messages[{index}].conversation_id")
    return Batch(agent_id=agent_id, conversation_id=conversation_id, messages=messages)


def message_page(request: rpc.ListMessagesRequest) -> PageQuery:
    """Which page ListMessages asks for."""
    for field in ("after_id", "before_id"):
        if request.HasField(field):
            require_id(getattr(request, field), "message", field)
    return page_query(request)


def message_filter(request: rpc.ListMessagesRequest) -> MessageFilter:
    """What ListMessages asks, paging aside."""
    agent_ids = convert.strings(request.agent_ids)
    if len(agent_ids) > MAX_IDS:
        raise InvalidArgument(f"agent_ids must be at most {MAX_IDS}.", field="agent_ids")
    for index, agent_id in enumerate(agent_ids):
        require_id(agent_id, "agent", f"agent_ids[{index}]")
    return MessageFilter(
        agent_ids=agent_ids,
        conversation_ids=_conversations(request.conversation, agent_ids) if request.HasField("conversation") else (),
        roles=convert.roles_in(request.roles),
        run_id=require_id(request.run_id, "run", "run_id") if request.HasField("run_id") else None,
        step_id=require_id(request.step_id, "step", "step_id") if request.HasField("step_id") else None,
        group_id=require_id(request.group_id, "group", "group_id") if request.HasField("group_id") else None,
        turn_id=_short(request.turn_id, "turn_id") if request.HasField("turn_id") else None,
        otid=_short(request.otid, "otid") if request.HasField("otid") else None,
        include_err=request.include_err,
        tool_call_id=_short(request.tool_call_id, "tool_call_id") if request.HasField("tool_call_id") else None,
        text=_query(request.text_search, "text_search") or None,
        from_time=convert.instant(request.start_time, "start_time") if request.HasField("start_time") else None,
        until_time=convert.instant(request.end_time, "end_time") if request.HasField("end_time") else None,
    )


def search(request: rpc.SearchMessagesRequest, organization_id: str) -> MessageSearch:
    """What SearchMessages asks."""
    if not 0 <= request.limit <= MAX_HITS:
        raise InvalidArgument(f"limit must be between 0 and {MAX_HITS}.", field="limit")
    roles = convert.roles_in(request.roles)
    if any(role not in SEARCHABLE_ROLES for role in roles):
        raise InvalidArgument("roles must be USER, ASSISTANT or TOOL.", field="roles")
    agent_id = require_id(request.agent_id, "agent", "agent_id") if request.HasField("agent_id") else None
    zone = time_zone(request.time_zone)
    conversations = (
        _conversations(request.conversation, (agent_id,) if agent_id else ())
        if request.HasField("conversation")
        else ()
    )
    return MessageSearch(
        query=_query(request.query, "query"),
        mode=convert.mode_in(request.mode),
        limit=request.limit or DEFAULT_HITS,
        scope=SearchScope(
            organization_id=organization_id,
            agent_id=agent_id,
            conversation_id=conversations[0] if conversations else None,
            roles=roles,
            from_time=start_bound(request.start_date, zone) if request.HasField("start_date") else None,
            before_time=end_bound(request.end_date, zone) if request.HasField("end_date") else None,
            exclude_ids=message_ids(request.exclude_message_ids, "exclude_message_ids", most=10 * MAX_IDS),
        ),
    )


def message_ids(values: Sequence[str], field: str, *, most: int | None = MAX_IDS) -> tuple[str, ...]:
    """Message ids of a request, in order."""
    if most is not None and len(values) > most:
        raise InvalidArgument(f"{field} must be at most {most}.", field=field)
    return tuple(require_id(value, "message", f"{field}[{index}]") for index, value in enumerate(values))


def conversation_ids(values: Sequence[str], field: str) -> tuple[str, ...]:
    """Conversation ids of a request, in order."""
    if len(values) > MAX_IDS:
        raise InvalidArgument(f"{field} must be at most {MAX_IDS}.", field=field)
    return tuple(require_id(value, "conv", f"{field}[{index}]") for index, value in enumerate(values))


def _conversations(scope: rpc.ConversationScope, agent_ids: Sequence[str]) -> tuple[str, ...]:
    match scope.WhichOneof("scope"):
        case "conversation_id":
            return (require_id(scope.conversation_id, "conv", "conversation.conversation_id"),)
        case "default_conversation":
            if not agent_ids:
                raise InvalidArgument(
                    "The default conversation is an agent's: an agent must be named too.",
                    field="conversation.default_conversation",
                )
            return tuple(default_conversation_id(agent_id) for agent_id in agent_ids)
        case _:
            return ()


def _epoch(lease: object) -> int:
    epoch = int(getattr(lease, "epoch", 0))
    require_id(getattr(lease, "run_id", ""), "run", "lease.run_id")
    if epoch < 0:
        raise InvalidArgument("lease.epoch must not be negative.", field="lease.epoch")
    return epoch


def _query(text: str, field: str) -> str:
    if len(text) > MAX_QUERY_CHARACTERS:
        raise InvalidArgument(f"{field} must be at most {MAX_QUERY_CHARACTERS} characters.", field=field)
    if "\0" in text:
        raise InvalidArgument(f"{field} holds a NUL character.", field=field)
    return text


def _short(text: str, field: str) -> str:
    if len(text) > MAX_NAME_CHARACTERS or "\0" in text:
        raise InvalidArgument(f"{field} must be at most {MAX_NAME_CHARACTERS} characters, none NUL.", field=field)
    return text
