"""The conversion of messages, context windows and search hits, and of the requests of MessageService.

Messages themselves are converted by mnemesh_types.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from mnemesh.recall.v1 import contexts_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import date_range, optional_timestamp_from_proto, zone_from_name
from mnemesh_retrieval.index import SearchMode
from mnemesh_retrieval.time_expressions.resolver import TimeRange
from mnemesh_types.convert import message_from_proto, message_to_proto
from mnemesh_types.messages import Message, Role
from mnemesh_types.twin import Conversion, enum_from_proto

from mnemesh_recall.model.contexts import ContextFork, ContextReplacement, ContextWindow, NewContext, StepCommit
from mnemesh_recall.model.messages import MessageBatch, MessageFilter, default_conversation_id
from mnemesh_recall.model.search import MessageHit, MessageSearch, SearchScope
from mnemesh_recall.rpc.convert.episodes import commit_from_proto

_MODE_FROM_PROTO: Final = {
    rpc.SEARCH_MODE_UNSPECIFIED: SearchMode.HYBRID,
    rpc.SEARCH_MODE_HYBRID: SearchMode.HYBRID,
    rpc.SEARCH_MODE_TEXT: SearchMode.TEXT,
    rpc.SEARCH_MODE_VECTOR: SearchMode.VECTOR,
}
_MODE_TO_PROTO: Final = {
    None: rpc.SEARCH_MODE_UNSPECIFIED,
    SearchMode.HYBRID: rpc.SEARCH_MODE_HYBRID,
    SearchMode.TEXT: rpc.SEARCH_MODE_TEXT,
    SearchMode.VECTOR: rpc.SEARCH_MODE_VECTOR,
}

_CONTEXT: Final = Conversion(contexts_pb2.Context, ContextWindow, messages=None)
_HIT: Final = Conversion(rpc.MessageHit, MessageHit, mode=None)
TIME_RANGE: Final = Conversion(rpc.ResolvedTimeRange, TimeRange, start_time="start", end_time="end")
_FILTER: Final = Conversion(
    rpc.ListMessagesRequest,
    MessageFilter,
    text_search="text",
    start_time="from_time",
    end_time="until_time",
    roles=None,
)
_STEP: Final = Conversion(rpc.CommitStepRequest, StepCommit, messages=None, hidden_messages=None)
_REPLACEMENT: Final = Conversion(rpc.ReplaceContextRequest, ContextReplacement, new_messages=None, memories=None)


def messages_from_proto(messages: Iterable[pb.Message], field: str, now: datetime) -> tuple[Message, ...]:
    """Converts the messages of a write. A message without a time gets `now`.

    Raises:
        InvalidArgument: a message has no role, or contains a part or a decision without a kind.
    """
    return tuple(message_from_proto(message, f"{field}[{index}]", now) for index, message in enumerate(messages))


def changes_from_proto(message: pb.Message, field: str, now: datetime) -> Message:
    """Converts the new values of a stored message, which may leave out the role, because it cannot change."""
    with_role = pb.Message()
    with_role.CopyFrom(message)
    with_role.role = message.role or pb.ROLE_USER
    return message_from_proto(with_role, field, now)


def context_to_proto(context: ContextWindow) -> contexts_pb2.Context:
    return _CONTEXT.to_proto(context, messages=[message_to_proto(message) for message in context.messages or ()])


def hit_to_proto(hit: MessageHit) -> rpc.MessageHit:
    """Converts a search hit."""
    return _HIT.to_proto(hit, mode=_MODE_TO_PROTO[hit.mode])


def mode_from_proto(mode: rpc.SearchMode.ValueType) -> SearchMode:
    """Converts the mode of a search. Unspecified is hybrid.

    Raises:
        InvalidArgument: the mode is unknown.
    """
    if (known := _MODE_FROM_PROTO.get(mode)) is None:
        raise InvalidArgument("mode must be a search mode.", field="mode")
    return known


def roles_from_proto(roles: Iterable[int]) -> tuple[Role, ...]:
    """Converts the roles of a filter, each once. Raises InvalidArgument if one is unknown."""
    return tuple(enum_from_proto(Role, role, "roles") for role in dict.fromkeys(roles))


def distinct(values: Sequence[str]) -> tuple[str, ...]:
    """Returns the values of a repeated field, each once, in order."""
    return tuple(dict.fromkeys(values))


DEFAULT_HITS: Final = 10


def new_context_from_proto(request: rpc.CreateContextRequest, now: datetime) -> NewContext:
    """Converts a request for a new window."""
    return NewContext(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id,
        messages=messages_from_proto(request.messages, "messages", now),
    )


def step_from_proto(request: rpc.CommitStepRequest, now: datetime) -> StepCommit:
    """Converts a step commit. Raises InvalidArgument without a lease."""
    if not request.HasField("lease"):
        raise InvalidArgument("lease is required.", field="lease")
    return _STEP.from_proto(
        request,
        messages=messages_from_proto(request.messages, "messages", now),
        hidden_messages=messages_from_proto(request.hidden_messages, "hidden_messages", now),
    )


def replacement_from_proto(request: rpc.ReplaceContextRequest, now: datetime) -> ContextReplacement:
    """Converts the replacement of a window."""
    return _REPLACEMENT.from_proto(
        request,
        new_messages=messages_from_proto(request.new_messages, "new_messages", now),
        memories=tuple(
            commit_from_proto(memory, f"memories[{index}].") for index, memory in enumerate(request.memories)
        ),
    )


def fork_from_proto(request: rpc.ForkContextRequest, now: datetime) -> ContextFork:
    return ContextFork(
        source_conversation_id=request.source_conversation_id,
        conversation_id=request.conversation_id,
        system_message=message_from_proto(request.system_message, "system_message", now),
        until_message_id=request.until_message_id if request.HasField("until_message_id") else None,
    )


def batch_from_proto(request: rpc.AppendMessagesRequest, now: datetime) -> MessageBatch:
    return MessageBatch(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id if request.HasField("conversation_id") else None,
        messages=messages_from_proto(request.messages, "messages", now),
    )


def message_filter_from_proto(request: rpc.ListMessagesRequest) -> MessageFilter:
    agent_ids = distinct(request.agent_ids)
    conversations = _conversations(request.conversation, agent_ids) if request.HasField("conversation") else ()
    filter_ = _FILTER.from_proto(request, roles=roles_from_proto(request.roles), conversation_ids=conversations)
    return replace(filter_, agent_ids=agent_ids, text=filter_.text or None)


def search_from_proto(request: rpc.SearchMessagesRequest, offset: int) -> MessageSearch:
    """Converts a search of messages. `offset` is the number of hits of earlier pages."""
    agent_ids = (request.agent_id,) if request.HasField("agent_id") else ()
    conversation_ids = _conversations(request.conversation, agent_ids) if request.HasField("conversation") else ()
    dates = date_range(
        request.start_date if request.HasField("start_date") else None,
        request.end_date if request.HasField("end_date") else None,
        request.time_zone,
    )
    return MessageSearch(
        query=request.query,
        mode=mode_from_proto(request.mode),
        limit=request.limit or DEFAULT_HITS,
        offset=offset,
        scope=SearchScope(
            agent_id=agent_ids[0] if agent_ids else None,
            conversation_id=conversation_ids[0] if conversation_ids else None,
            roles=roles_from_proto(request.roles),
            from_time=dates.start,
            before_time=dates.end,
            exclude_ids=tuple(request.exclude_message_ids),
            speakers=distinct(request.speakers),
            sender_ids=distinct(request.sender_ids),
        ),
        further_queries=tuple(request.further_queries),
        time_zone=zone_from_name(request.time_zone, "time_zone"),
        reference_time=optional_timestamp_from_proto(request, "reference_time"),
        messages_before=request.messages_before,
        messages_after=request.messages_after,
        rerank=request.rerank if request.HasField("rerank") else None,
    )


def _conversations(scope: rpc.ConversationScope, agent_ids: Sequence[str]) -> tuple[str, ...]:
    match scope.WhichOneof("scope"):
        case "conversation_id":
            return (scope.conversation_id,)
        case "default_conversation":
            if not agent_ids:
                raise InvalidArgument(
                    "An agent is required with default_conversation.", field="conversation.default_conversation"
                )
            return tuple(default_conversation_id(agent_id) for agent_id in agent_ids)
        case _:
            return ()
