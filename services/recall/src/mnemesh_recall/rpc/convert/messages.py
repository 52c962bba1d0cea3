"""The conversion of messages, context windows and search hits. Messages themselves are converted by mnemesh_types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from mnemesh.recall.v1 import contexts_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_retrieval.time_expressions.resolver import TimeRange
from mnemesh_types.convert import message_from_proto, message_to_proto, role_from_proto
from mnemesh_types.messages import Message, Role

from mnemesh_recall.model.contexts import ContextWindow, ContextWindowIds
from mnemesh_recall.model.leases import WriterLease
from mnemesh_recall.model.search import MessageHit, SearchMode

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
    """Converts a context window."""
    return contexts_pb2.Context(
        conversation_id=context.conversation_id,
        agent_id=context.agent_id,
        version=context.version,
        epoch=context.epoch,
        messages=[message_to_proto(message) for message in context.messages or ()],
        agent_message_count=context.agent_message_count,
        create_time=timestamp_to_proto(context.created_at),
        update_time=timestamp_to_proto(context.updated_at),
        last_message_time=optional_timestamp_to_proto(context.last_message_at),
    )


def context_ids_to_proto(context: ContextWindowIds) -> rpc.ContextIds:
    """Converts the message ids of a context window."""
    return rpc.ContextIds(
        conversation_id=context.conversation_id,
        agent_id=context.agent_id,
        version=context.version,
        message_ids=context.message_ids,
    )


def lease_from_proto(lease: contexts_pb2.WriterLease) -> WriterLease:
    """Converts a lease."""
    return WriterLease(lease.run_id, lease.epoch)


def hit_to_proto(hit: MessageHit) -> rpc.MessageHit:
    """Converts a search hit."""
    return rpc.MessageHit(
        message=message_to_proto(hit.message),
        text=hit.text,
        score=hit.score,
        vector_rank=hit.vector_rank,
        text_rank=hit.text_rank,
        mode=_MODE_TO_PROTO[hit.mode],
        text_score=hit.text_score,
        vector_score=hit.vector_score,
        rerank_score=hit.rerank_score,
        before=[message_to_proto(message) for message in hit.before],
        after=[message_to_proto(message) for message in hit.after],
        question=None if hit.question is None else message_to_proto(hit.question),
    )


def time_range_to_proto(time: TimeRange) -> rpc.ResolvedTimeRange:
    """Converts a range of time."""
    return rpc.ResolvedTimeRange(
        expression=time.expression,
        start_time=optional_timestamp_to_proto(time.start),
        end_time=optional_timestamp_to_proto(time.end),
    )


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
    return tuple(role_from_proto(role, "roles") for role in dict.fromkeys(roles))


def distinct(values: Sequence[str]) -> tuple[str, ...]:
    """Returns the values of a repeated field, each once, in order."""
    return tuple(dict.fromkeys(values))
