"""The conversion of the requests of MessageService."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import date_range, optional_timestamp_from_proto, zone_from_name
from mnemesh_types.convert import message_from_proto

from mnemesh_recall.model.contexts import ContextFork, ContextReplacement, NewContext, StepCommit
from mnemesh_recall.model.messages import MessageBatch, MessageFilter, default_conversation_id
from mnemesh_recall.model.search import MessageSearch, SearchScope
from mnemesh_recall.rpc.convert import messages as convert
from mnemesh_recall.rpc.convert.episodes import commit_from_proto

DEFAULT_HITS: Final = 10


def new_context_from_proto(request: rpc.CreateContextRequest, now: datetime) -> NewContext:
    """Converts a request for a new window."""
    return NewContext(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id,
        messages=convert.messages_from_proto(request.messages, "messages", now),
    )


def step_from_proto(request: rpc.CommitStepRequest, now: datetime) -> StepCommit:
    """Converts a step commit. Raises InvalidArgument without a lease."""
    if not request.HasField("lease"):
        raise InvalidArgument("lease is required.", field="lease")
    return StepCommit(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id,
        step_id=request.step_id,
        lease=convert.lease_from_proto(request.lease),
        base_version=request.base_version,
        messages=convert.messages_from_proto(request.messages, "messages", now),
        hidden_messages=convert.messages_from_proto(request.hidden_messages, "hidden_messages", now),
        system_text=request.system_text if request.HasField("system_text") else None,
        request_id=request.request_id,
    )


def replacement_from_proto(request: rpc.ReplaceContextRequest, now: datetime) -> ContextReplacement:
    """Converts the replacement of a window."""
    return ContextReplacement(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id,
        base_version=request.base_version,
        message_ids=tuple(request.message_ids),
        new_messages=convert.messages_from_proto(request.new_messages, "new_messages", now),
        system_text=request.system_text if request.HasField("system_text") else None,
        lease=convert.lease_from_proto(request.lease) if request.HasField("lease") else None,
        memories=tuple(
            commit_from_proto(memory, f"memories[{index}].") for index, memory in enumerate(request.memories)
        ),
    )


def fork_from_proto(request: rpc.ForkContextRequest, now: datetime) -> ContextFork:
    """Converts a request for a fork."""
    return ContextFork(
        source_conversation_id=request.source_conversation_id,
        conversation_id=request.conversation_id,
        system_message=message_from_proto(request.system_message, "system_message", now),
        until_message_id=request.until_message_id if request.HasField("until_message_id") else None,
    )


def batch_from_proto(request: rpc.AppendMessagesRequest, now: datetime) -> MessageBatch:
    """Converts a batch of messages."""
    return MessageBatch(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id if request.HasField("conversation_id") else None,
        messages=convert.messages_from_proto(request.messages, "messages", now),
    )


def message_filter_from_proto(request: rpc.ListMessagesRequest) -> MessageFilter:
    """Converts the filter of a list of messages."""
    agent_ids = convert.distinct(request.agent_ids)
    return MessageFilter(
        agent_ids=agent_ids,
        conversation_ids=_conversations(request.conversation, agent_ids) if request.HasField("conversation") else (),
        roles=convert.roles_from_proto(request.roles),
        run_id=request.run_id if request.HasField("run_id") else None,
        step_id=request.step_id if request.HasField("step_id") else None,
        group_id=request.group_id if request.HasField("group_id") else None,
        turn_id=request.turn_id if request.HasField("turn_id") else None,
        otid=request.otid if request.HasField("otid") else None,
        include_err=request.include_err,
        tool_call_id=request.tool_call_id if request.HasField("tool_call_id") else None,
        text=request.text_search or None,
        from_time=optional_timestamp_from_proto(request, "start_time"),
        until_time=optional_timestamp_from_proto(request, "end_time"),
        after_sequence_id=request.after_sequence_id if request.HasField("after_sequence_id") else None,
        until_sequence_id=request.until_sequence_id if request.HasField("until_sequence_id") else None,
    )


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
        mode=convert.mode_from_proto(request.mode),
        limit=request.limit or DEFAULT_HITS,
        offset=offset,
        scope=SearchScope(
            agent_id=agent_ids[0] if agent_ids else None,
            conversation_id=conversation_ids[0] if conversation_ids else None,
            roles=convert.roles_from_proto(request.roles),
            from_time=dates.start,
            before_time=dates.end,
            exclude_ids=tuple(request.exclude_message_ids),
            speakers=convert.distinct(request.speakers),
            sender_ids=convert.distinct(request.sender_ids),
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
