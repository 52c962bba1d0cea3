"""Messages, windows and hits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import contexts_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import InvalidArgument

from mnemesh_recall.model import contexts
from mnemesh_recall.model import messages as model
from mnemesh_recall.model.messages import Role
from mnemesh_recall.model.search import MessageHit, SearchMode
from mnemesh_recall.rpc.convert import parts

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_ROLES: Final[dict[int, Role]] = {
    pb.ROLE_SYSTEM: Role.SYSTEM,
    pb.ROLE_USER: Role.USER,
    pb.ROLE_ASSISTANT: Role.ASSISTANT,
    pb.ROLE_TOOL: Role.TOOL,
    pb.ROLE_APPROVAL: Role.APPROVAL,
    pb.ROLE_SUMMARY: Role.SUMMARY,
}
_ROLES_OUT: Final = {role: pb.Role.ValueType(number) for number, role in _ROLES.items()}
_MODES: Final = {
    rpc.SEARCH_MODE_UNSPECIFIED: SearchMode.HYBRID,
    rpc.SEARCH_MODE_HYBRID: SearchMode.HYBRID,
    rpc.SEARCH_MODE_TEXT: SearchMode.TEXT,
    rpc.SEARCH_MODE_VECTOR: SearchMode.VECTOR,
}
_MODES_OUT: Final = {
    None: rpc.SEARCH_MODE_UNSPECIFIED,
    SearchMode.HYBRID: rpc.SEARCH_MODE_HYBRID,
    SearchMode.TEXT: rpc.SEARCH_MODE_TEXT,
    SearchMode.VECTOR: rpc.SEARCH_MODE_VECTOR,
}


def messages_in(
    messages: Iterable[pb.Message], field: str, *, agent_id: str, conversation_id: str | None, now: datetime
) -> tuple[model.Message, ...]:
    """Messages of a write: an absent agent, conversation or time is the write's own.

    Raises:
        InvalidArgument: a field that no domain message can have, or an agent or conversation other than the write's.
    """
    return tuple(
        _owned(message_in(message, f"{field}[{index}]", now), f"{field}[{index}]", agent_id, conversation_id)
        for index, message in enumerate(messages)
    )


def owned(message: pb.Message, field: str, *, agent_id: str, conversation_id: str, now: datetime) -> model.Message:
    """One message of a write; see `messages_in`."""
    return _owned(message_in(message, field, now), field, agent_id, conversation_id)


def message_in(message: pb.Message, field: str, now: datetime) -> model.Message:
    """A message as it came; `field` is its path in the request."""
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidArgument(f"{field}.role must be given.", field=f"{field}.role")
    return model.Message(
        id=message.id,
        agent_id=message.agent_id,
        role=role,
        created_at=instant(message.create_time, f"{field}.create_time") if message.HasField("create_time") else now,
        content=parts.parts_in(message.content, f"{field}.content"),
        tool_calls=tuple(parts.call_in(call) for call in message.tool_calls),
        tool_returns=tuple(
            parts.return_in(item, f"{field}.tool_returns[{index}]") for index, item in enumerate(message.tool_returns)
        ),
        approval_decisions=tuple(
            parts.decision_in(item, f"{field}.approval_decisions[{index}]")
            for index, item in enumerate(message.approval_decisions)
        ),
        approval_request_id=message.approval_request_id if message.HasField("approval_request_id") else None,
        name=message.name if message.HasField("name") else None,
        otid=message.otid if message.HasField("otid") else None,
        sender_id=message.sender_id if message.HasField("sender_id") else None,
        group_id=message.group_id if message.HasField("group_id") else None,
        model=message.model if message.HasField("model") else None,
        step_id=message.step_id if message.HasField("step_id") else None,
        run_id=message.run_id if message.HasField("run_id") else None,
        turn_id=message.turn_id if message.HasField("turn_id") else None,
        is_err=message.is_err if message.HasField("is_err") else None,
        conversation_id=message.conversation_id if message.HasField("conversation_id") else None,
    )


def changes_in(message: pb.Message, field: str, now: datetime) -> model.Message:
    """The new values of some fields of a stored message; its role stays, so it need not be given."""
    named = pb.Message()
    named.CopyFrom(message)
    named.role = message.role or pb.ROLE_USER
    return message_in(named, field, now)


def message_out(message: model.Message) -> pb.Message:
    """A stored message for the wire."""
    return pb.Message(
        id=message.id,
        agent_id=message.agent_id,
        role=_ROLES_OUT[message.role],
        content=[parts.part_out(part) for part in message.content],
        tool_calls=[parts.call_out(call) for call in message.tool_calls],
        tool_returns=[parts.return_out(item) for item in message.tool_returns],
        approval_decisions=[parts.decision_out(item) for item in message.approval_decisions],
        approval_request_id=message.approval_request_id,
        name=message.name,
        otid=message.otid,
        sender_id=message.sender_id,
        group_id=message.group_id,
        model=message.model,
        step_id=message.step_id,
        run_id=message.run_id,
        turn_id=message.turn_id,
        is_err=message.is_err,
        conversation_id=message.conversation_id,
        create_time=timestamp(message.created_at),
        update_time=None if message.updated_at is None else timestamp(message.updated_at),
        sequence_id=message.sequence_id,
    )


def context_out(context: contexts.ContextWindow) -> contexts_pb2.Context:
    """A window for the wire."""
    return contexts_pb2.Context(
        conversation_id=context.conversation_id,
        agent_id=context.agent_id,
        version=context.version,
        epoch=context.epoch,
        messages=[message_out(message) for message in context.messages or ()],
        agent_message_count=context.agent_message_count,
        create_time=timestamp(context.created_at),
        update_time=timestamp(context.updated_at),
        last_message_time=None if context.last_message_at is None else timestamp(context.last_message_at),
    )


def window_ids_out(window: contexts.ContextWindowIds) -> rpc.ContextIds:
    """Which messages a window holds, for the wire."""
    return rpc.ContextIds(
        conversation_id=window.conversation_id,
        agent_id=window.agent_id,
        version=window.version,
        message_ids=window.message_ids,
    )


def hit_out(hit: MessageHit) -> rpc.MessageHit:
    """A search hit for the wire."""
    return rpc.MessageHit(
        message=message_out(hit.message),
        text=hit.text,
        score=hit.score,
        vector_rank=hit.vector_rank,
        text_rank=hit.text_rank,
        mode=_MODES_OUT[hit.mode],
    )


def mode_in(mode: rpc.SearchMode.ValueType) -> SearchMode:
    """The mode of a search; hybrid where none is given."""
    if (known := _MODES.get(mode)) is None:
        raise InvalidArgument("mode is not a search mode.", field="mode")
    return known


def roles_in(roles: Iterable[int]) -> tuple[Role, ...]:
    """The roles of a filter, each once."""
    given = tuple(dict.fromkeys(roles))
    if any(role not in _ROLES for role in given):
        raise InvalidArgument("roles must be roles of messages.", field="roles")
    return tuple(_ROLES[role] for role in given)


def instant(time: Timestamp, field: str) -> datetime:
    """A wire time as an instant, to the microsecond."""
    try:
        if 0 <= time.nanos < 1_000_000_000:
            return _EPOCH + timedelta(seconds=time.seconds, microseconds=time.nanos // 1000)
    except OverflowError:
        pass
    raise InvalidArgument(f"{field} is not a time between the years 1 and 9999.", field=field)


def timestamp(moment: datetime) -> Timestamp:
    """An instant for the wire."""
    since = moment - _EPOCH
    return Timestamp(seconds=since.days * 86_400 + since.seconds, nanos=since.microseconds * 1000)


def _owned(message: model.Message, field: str, agent_id: str, conversation_id: str | None) -> model.Message:
    if message.agent_id not in ("", agent_id):
        raise InvalidArgument(f"{field}.agent_id is another agent's.", field=f"{field}.agent_id")
    if conversation_id is None:
        return message if message.agent_id else replace(message, agent_id=agent_id)
    if message.conversation_id not in (None, conversation_id):
        raise InvalidArgument(f"{field}.conversation_id is another conversation's.", field=f"{field}.conversation_id")
    if message.agent_id and message.conversation_id:
        return message
    return replace(message, agent_id=agent_id, conversation_id=conversation_id)


def strings(values: Sequence[str]) -> tuple[str, ...]:
    """A repeated string field, each value once, in order."""
    return tuple(dict.fromkeys(values))
