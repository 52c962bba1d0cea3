"""The RPCs of MessageService: decode, call, encode."""

from __future__ import annotations

from typing import Any

from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1 import messages_service_pb2_grpc
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import next_page_token
from mnemesh_kit.principal import current_principal

from mnemesh_recall.rpc.convert import message_requests as requests
from mnemesh_recall.rpc.convert import messages as convert
from mnemesh_recall.usecases.messages import MessageService

Call = Any
"""gRPC's context of a call; no RPC here needs it."""


class MessagesServicer(messages_service_pb2_grpc.MessageServiceServicer):
    """Answers all of MessageService."""

    def __init__(self, service: MessageService, clock: Clock) -> None:
        self._service = service
        self._clock = clock

    async def CreateContext(self, request: rpc.CreateContextRequest, context: Call) -> rpc.CreateContextResponse:
        """Makes a conversation's window."""
        key = request_key(request, "CreateContext")
        made = await self._service.create_context(
            _organization(), requests.new_context(request, self._clock.now()), key
        )
        return rpc.CreateContextResponse(context=convert.context_out(made))

    async def GetContext(self, request: rpc.GetContextRequest, context: Call) -> rpc.GetContextResponse:
        """The window, or that it is as the caller knows it."""
        found = await self._service.get_context(
            _organization(),
            require_id(request.conversation_id, "conv", "conversation_id"),
            request.if_version if request.HasField("if_version") else None,
        )
        return rpc.GetContextResponse(not_modified=found.messages is None, context=convert.context_out(found))

    async def BatchGetContextIds(
        self, request: rpc.BatchGetContextIdsRequest, context: Call
    ) -> rpc.BatchGetContextIdsResponse:
        """Which messages windows hold."""
        ids = requests.conversation_ids(request.conversation_ids, "conversation_ids")
        found = await self._service.get_window_ids(_organization(), ids)
        return rpc.BatchGetContextIdsResponse(contexts=[convert.window_ids_out(window) for window in found])

    async def CommitStep(self, request: rpc.CommitStepRequest, context: Call) -> rpc.CommitStepResponse:
        """Commits one step in one transaction."""
        result = await self._service.commit_step(_organization(), requests.step_commit(request, self._clock.now()))
        return rpc.CommitStepResponse(
            version=result.version,
            rebased=result.rebased,
            replayed=result.replayed,
            context=None if result.context is None else convert.context_out(result.context),
            sequence_ids=result.sequence_ids,
            agent_message_count=result.agent_message_count,
        )

    async def ReplaceContext(self, request: rpc.ReplaceContextRequest, context: Call) -> rpc.ReplaceContextResponse:
        """Replaces the window."""
        key = request_key(request, "ReplaceContext")
        new = requests.replacement(request, self._clock.now())
        replaced = await self._service.replace_context(_organization(), new, key)
        return rpc.ReplaceContextResponse(context=convert.context_out(replaced))

    async def ForkContext(self, request: rpc.ForkContextRequest, context: Call) -> rpc.ForkContextResponse:
        """Makes a window that shares another's messages."""
        key = request_key(request, "ForkContext")
        made = await self._service.fork_context(_organization(), requests.fork(request, self._clock.now()), key)
        return rpc.ForkContextResponse(context=convert.context_out(made))

    async def DeleteContext(self, request: rpc.DeleteContextRequest, context: Call) -> rpc.DeleteContextResponse:
        """Deletes a window."""
        gone = await self._service.delete_context(
            _organization(),
            require_id(request.conversation_id, "conv", "conversation_id"),
            request_key(request, "DeleteContext"),
            delete_messages=request.delete_messages,
        )
        return rpc.DeleteContextResponse(deleted_messages=gone)

    async def AppendMessages(self, request: rpc.AppendMessagesRequest, context: Call) -> rpc.AppendMessagesResponse:
        """Stores messages."""
        key = request_key(request, "AppendMessages")
        done = await self._service.append_messages(_organization(), requests.batch(request, self._clock.now()), key)
        return rpc.AppendMessagesResponse(sequence_ids=done.sequence_ids, version=done.version)

    async def GetMessages(self, request: rpc.GetMessagesRequest, context: Call) -> rpc.GetMessagesResponse:
        """Messages by id."""
        ids = requests.message_ids(request.message_ids, "message_ids")
        found = await self._service.get_messages(_organization(), ids)
        return rpc.GetMessagesResponse(messages=[convert.message_out(message) for message in found])

    async def ListMessages(self, request: rpc.ListMessagesRequest, context: Call) -> rpc.ListMessagesResponse:
        """A page of messages."""
        query = requests.message_page(request)
        page = await self._service.list_messages(_organization(), requests.message_filter(request), query)
        return rpc.ListMessagesResponse(
            messages=[convert.message_out(message) for message in page.items],
            next_page_token=next_page_token(query, page),
        )

    async def UpdateMessage(self, request: rpc.UpdateMessageRequest, context: Call) -> rpc.UpdateMessageResponse:
        """Changes a stored message."""
        key = request_key(request, "UpdateMessage")
        require_id(request.message.id, "message", "message.id")
        changed = convert.changes_in(request.message, "message", self._clock.now())
        fields = frozenset(request.update_mask.paths)
        message = await self._service.update_message(_organization(), changed, fields, key)
        return rpc.UpdateMessageResponse(message=convert.message_out(message))

    async def DeleteMessage(self, request: rpc.DeleteMessageRequest, context: Call) -> rpc.DeleteMessageResponse:
        """Deletes a message everywhere."""
        message_id = require_id(request.message_id, "message", "message_id")
        await self._service.delete_message(_organization(), message_id, request_key(request, "DeleteMessage"))
        return rpc.DeleteMessageResponse()

    async def SearchMessages(self, request: rpc.SearchMessagesRequest, context: Call) -> rpc.SearchMessagesResponse:
        """Searches messages."""
        hits = await self._service.search_messages(requests.search(request, _organization()))
        return rpc.SearchMessagesResponse(hits=[convert.hit_out(hit) for hit in hits])

    async def EraseAgent(self, request: rpc.EraseAgentRequest, context: Call) -> rpc.EraseAgentResponse:
        """Forgets an agent."""
        agent_id = require_id(request.agent_id, "agent", "agent_id")
        gone = await self._service.erase_agent(_organization(), agent_id, request_key(request, "EraseAgent"))
        return rpc.EraseAgentResponse(deleted_messages=gone.messages, deleted_contexts=gone.contexts)


def _organization() -> str:
    return current_principal().organization_id
