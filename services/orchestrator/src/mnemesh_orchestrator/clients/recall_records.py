"""The records of messages, traces, episodes and facts in recall."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc
from mnemesh.recall.v1 import episodes_pb2, traces_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1 import traces_service_pb2 as traces_rpc
from mnemesh.recall.v1.messages_service_pb2_grpc import MessageServiceStub
from mnemesh.recall.v1.traces_service_pb2_grpc import TraceServiceStub
from mnemesh.types.v1 import message_pb2, paging_pb2
from mnemesh_kit.errors import Aborted, AlreadyExists, FailedPrecondition, NotFound
from mnemesh_kit.paging import whole_answer
from mnemesh_types.convert import message_to_proto
from mnemesh_types.messages import Message

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.records import copy_of, items_of, map_field, map_other, named_record, record_of
from mnemesh_orchestrator.model.transfers import ExportScope, IdMap, ImportTarget, Outcome, Record, RecordType

_PAGE: Final = 200
_EXPORT_SECONDS: Final = 600.0
_MESSAGE_IDS: Final = (("step_id", "step"), ("run_id", "run"), ("approval_request_id", "message"))
_TRACE_TYPES: Final = {
    RecordType.RAW_TRACE: (traces_rpc.TRACE_RECORD_TYPE_RAW_TRACE, "raw_trace"),
    RecordType.EPISODE: (traces_rpc.TRACE_RECORD_TYPE_EPISODE, "episode"),
    RecordType.FACT: (traces_rpc.TRACE_RECORD_TYPE_FACT, "fact"),
}


class MessageRecords:
    """RecordPart of the messages of recall."""

    types = (RecordType.MESSAGE,)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = MessageServiceStub(channel)

    async def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        request = rpc.ListMessagesRequest(
            page_size=_PAGE,
            order=paging_pb2.SORT_ORDER_ASCENDING,
            agent_ids=[scope.agent_id],
            include_err=True,
        )
        async for message in items_of(self._stub.ListMessages, request, "messages"):
            message.sequence_id = 0
            yield record_of(kind, message.id, message)

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:  # noqa: ARG002
        """See RecordPart. Messages belong to their agent alone."""
        return {}

    async def restore(
        self,
        request_id: str,
        target: ImportTarget,
        records: Sequence[Record],
        existing: Mapping[str, str],  # noqa: ARG002
    ) -> Outcome:
        messages = [_message(record.body, target) for record in records]
        request = rpc.AppendMessagesRequest(request_id=request_id, agent_id=target.agent_id, messages=messages)
        with named_record(records):
            await self._stub.AppendMessages(request, timeout=deadlines.IMPORT)
        return Outcome()


class TraceRecords:
    """RecordPart of the traces, episodes and facts of recall."""

    types = (RecordType.RAW_TRACE, RecordType.EPISODE, RecordType.FACT)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = TraceServiceStub(channel)

    async def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        number, field = _TRACE_TYPES[kind]
        names = [] if scope.memory_scope is None else [scope.memory_scope]
        request = traces_rpc.ExportTracesRequest(agent_id=scope.agent_id, record_types=[number], scope_names=names)
        try:
            async for response in self._stub.ExportTraces(request, timeout=_EXPORT_SECONDS):
                body = getattr(response.record, field)
                yield record_of(kind, body.id, body)
        except NotFound:
            return  # recall has nothing of the agent

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:  # noqa: ARG002
        """See RecordPart. Memories of a named scope may exist; recall recognises them."""
        return {}

    async def restore(
        self,
        request_id: str,
        target: ImportTarget,
        records: Sequence[Record],
        existing: Mapping[str, str],  # noqa: ARG002
    ) -> Outcome:
        kind = records[0].type
        header = traces_rpc.ImportTracesHeader(
            agent_id=target.agent_id, record_count=len(records), exact=True, extend_window=False
        )

        def requests() -> Iterator[traces_rpc.ImportTracesRequest]:
            yield traces_rpc.ImportTracesRequest(request_id=request_id, header=header)
            for record in records:
                yield traces_rpc.ImportTracesRequest(record=_trace_record(kind, record.body, target))

        with named_record(records):
            result = await self._stub.ImportTraces(requests(), timeout=deadlines.IMPORT)
        return Outcome(existing=result.skipped_records)


class WindowRecords:
    """The context windows of imported agents."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._messages = MessageServiceStub(channel)
        self._traces = TraceServiceStub(channel)

    async def is_free(self, agent_id: str) -> bool:
        """Returns whether recall has no agent with this id, of any organization, erased or not."""
        header = traces_rpc.ImportTracesHeader(agent_id=agent_id, record_count=0, exact=True)
        requests = [traces_rpc.ImportTracesRequest(header=header)]
        try:
            await self._traces.ImportTraces(iter(requests), timeout=deadlines.IMPORT)
        except (NotFound, FailedPrecondition):
            return False
        return True

    async def restore(
        self, request_id: str, agent_id: str, conversation_id: str, message_ids: Sequence[str], system: Message
    ) -> int:
        """Creates the window of a conversation over stored messages of the agent.

        Args:
            request_id: the idempotency key. If the window exists, nothing changes.
            message_ids: the messages, in order. If the first is not of the role SYSTEM, `system` precedes it.
            system: the system message of a window that has none.

        Returns:
            The number of messages that are not stored, which are left out.
        """
        stored = [message async for message in self._list_stored(agent_id, message_ids)]
        has_system = bool(stored) and stored[0].role == message_pb2.ROLE_SYSTEM
        first = stored[0] if has_system else message_to_proto(system, agent_id)
        rest = stored[1:] if has_system else stored
        create = rpc.CreateContextRequest(
            request_id=f"{request_id}/create",
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=[_of_window(message) for message in (first, *rest[-1:])],
        )
        replace = rpc.ReplaceContextRequest(
            request_id=f"{request_id}/replace",
            agent_id=agent_id,
            conversation_id=conversation_id,
            base_version=1,
            message_ids=[first.id, *(message.id for message in rest)],
        )
        with suppress(AlreadyExists):
            await self._messages.CreateContext(create, timeout=deadlines.IMPORT)
        if len(rest) > 1:
            with suppress(Aborted):  # an earlier call has replaced the window
                await self._messages.ReplaceContext(replace, timeout=deadlines.IMPORT)
        return len(message_ids) - len(stored)

    async def _list_stored(self, agent_id: str, message_ids: Sequence[str]) -> AsyncIterator[message_pb2.Message]:
        for start in range(0, len(message_ids), _PAGE):
            request = rpc.GetMessagesRequest(message_ids=message_ids[start : start + _PAGE])
            response = await whole_answer(
                self._messages.GetMessages, request, seconds=deadlines.IMPORT, field="messages"
            )
            for message in response.messages:
                if message.agent_id == agent_id:
                    yield message


def _of_window(message: message_pb2.Message) -> message_pb2.Message:
    """Returns a message of a window without its conversation, which differs for messages that a fork shares."""
    copy = copy_of(message)
    copy.ClearField("conversation_id")
    return copy


def _message(message: message_pb2.Message, target: ImportTarget) -> message_pb2.Message:
    ids = target.ids
    copy = copy_of(message)
    copy.id = ids.of("message", message.id)
    copy.agent_id = target.agent_id
    copy.sequence_id = 0
    map_field(copy, "conversation_id", "conv", ids)
    for name, prefix in _MESSAGE_IDS:
        map_field(copy, name, prefix, ids)
    for name in ("sender_id", "group_id"):
        map_other(copy, name, ids)
    return copy


def _trace_record(kind: RecordType, body: Any, target: ImportTarget) -> traces_rpc.TraceRecord:
    copy = copy_of(body)
    if kind is RecordType.RAW_TRACE:
        return traces_rpc.TraceRecord(raw_trace=_raw_trace(copy, target))
    _map_memory(copy, "episode" if kind is RecordType.EPISODE else "fact", target)
    if kind is RecordType.EPISODE:
        return traces_rpc.TraceRecord(episode=copy)
    for name in ("superseded_by_id", "supersedes_id"):
        _map_memory_id(copy, name, "fact", target.ids)
    if copy.HasField("invalid_source"):
        _map_source(copy.invalid_source, target)
    return traces_rpc.TraceRecord(fact=copy)


def _raw_trace(trace: traces_pb2.RawTrace, target: ImportTarget) -> traces_pb2.RawTrace:
    trace.agent_id = target.agent_id
    for name, prefix in (("conversation_id", "conv"), ("run_id", "run")):
        map_field(trace, name, prefix, target.ids)
    return trace


def _map_memory(memory: Any, prefix: str, target: ImportTarget) -> None:
    _map_memory_id(memory, "id", prefix, target.ids)
    _map_source(memory.source, target)
    match memory.scope.WhichOneof("scope"):
        case "agent_id":
            memory.scope.agent_id = target.ids.other(memory.scope.agent_id)
        case "conversation_id":
            memory.scope.conversation_id = target.ids.of("conv", memory.scope.conversation_id)
        case "identity_id" | "group_id" as name:
            setattr(memory.scope, name, target.ids.other(getattr(memory.scope, name)))


def _map_memory_id(memory: Any, name: str, prefix: str, ids: IdMap) -> None:
    """Replaces the id of a memory. Ids of trace files of other forms stay: recall derives its own from them."""
    value = getattr(memory, name)
    if value.startswith(f"{prefix}-"):
        setattr(memory, name, ids.of(prefix, value))


def _map_source(source: episodes_pb2.MemorySource, target: ImportTarget) -> None:
    ids = target.ids
    is_own = not source.agent_id or ids.other(source.agent_id) == target.agent_id
    map_other(source, "agent_id", ids)
    if not is_own:
        return
    messages = [ids.of("message", message_id) for message_id in source.message_ids]
    del source.message_ids[:]
    source.message_ids.extend(messages)
    for name, prefix in (("conversation_id", "conv"), ("run_id", "run")):
        map_field(source, name, prefix, ids)
    if source.HasField("episode_id"):
        _map_memory_id(source, "episode_id", "episode", ids)
