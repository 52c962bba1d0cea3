"""The RPCs of MessageService."""

from typing import Any

from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1 import messages_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import Aborted
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.paging import (
    bounded,
    bounded_hits,
    next_page_token,
    offset_from_token,
    page_query,
    version_from_token,
)
from mnemesh_kit.time import Clock
from mnemesh_types.convert import message_to_proto

from mnemesh_recall.rpc.convert import messages as convert
from mnemesh_recall.usecases.messages import MessageService

Call = Any
"""The gRPC context of a call, which no RPC here uses."""


class MessagesServicer(messages_service_pb2_grpc.MessageServiceServicer):
    def __init__(self, service: MessageService, clock: Clock) -> None:
        self._service = service
        self._clock = clock

    async def CreateContext(self, request: rpc.CreateContextRequest, context: Call) -> rpc.CreateContextResponse:
        new = convert.new_context_from_proto(request, self._clock.now())
        window = await self._service.create_context(current_principal(), new, request_key(request, "CreateContext"))
        return rpc.CreateContextResponse(context=convert.context_to_proto(window))

    async def GetContext(self, request: rpc.GetContextRequest, context: Call) -> rpc.GetContextResponse:
        """Returns a context window, or says that it is not modified."""
        offset = offset_from_token(request)
        if_version = request.if_version if request.HasField("if_version") else None
        window = await self._service.get_context(current_principal(), request.conversation_id, if_version)
        version = str(window.version)
        if offset and version_from_token(request) != version:
            raise Aborted("The window has changed since its first page. Read it again.")
        shown = convert.context_to_proto(window)
        messages, token = bounded_hits(request, shown.messages[offset:], version)
        if token or offset:
            del shown.messages[:]
            shown.messages.extend(messages)
        return rpc.GetContextResponse(not_modified=window.messages is None, context=shown, next_page_token=token)

    async def BatchGetContextIds(
        self, request: rpc.BatchGetContextIdsRequest, context: Call
    ) -> rpc.BatchGetContextIdsResponse:
        left = tuple(request.conversation_ids)[offset_from_token(request) :]
        found = await self._service.get_context_ids(current_principal(), left)
        by_id = {window.conversation_id: window.to_proto() for window in found}
        contexts, token = bounded_hits(request, [by_id.get(id_) for id_ in left])
        return rpc.BatchGetContextIdsResponse(contexts=contexts, next_page_token=token)

    async def CommitStep(self, request: rpc.CommitStepRequest, context: Call) -> rpc.CommitStepResponse:
        step = convert.step_from_proto(request, self._clock.now())
        result = await self._service.commit_step(current_principal(), step)
        return rpc.CommitStepResponse(
            version=result.version,
            rebased=result.rebased,
            replayed=result.replayed,
            context=None if result.context is None else convert.context_to_proto(result.context),
            sequence_ids=result.sequence_ids,
            agent_message_count=result.agent_message_count,
        )

    async def ReplaceContext(self, request: rpc.ReplaceContextRequest, context: Call) -> rpc.ReplaceContextResponse:
        new = convert.replacement_from_proto(request, self._clock.now())
        window = await self._service.replace_context(current_principal(), new, request_key(request, "ReplaceContext"))
        return rpc.ReplaceContextResponse(context=convert.context_to_proto(window))

    async def ForkContext(self, request: rpc.ForkContextRequest, context: Call) -> rpc.ForkContextResponse:
        fork = convert.fork_from_proto(request, self._clock.now())
        window = await self._service.fork_context(current_principal(), fork, request_key(request, "ForkContext"))
        return rpc.ForkContextResponse(context=convert.context_to_proto(window))

    async def DeleteContext(self, request: rpc.DeleteContextRequest, context: Call) -> rpc.DeleteContextResponse:
        deleted = await self._service.delete_context(
            current_principal(),
            request.conversation_id,
            request_key(request, "DeleteContext"),
            delete_messages=request.delete_messages,
        )
        return rpc.DeleteContextResponse(deleted_messages=deleted)

    async def AppendMessages(self, request: rpc.AppendMessagesRequest, context: Call) -> rpc.AppendMessagesResponse:
        batch = convert.batch_from_proto(request, self._clock.now())
        result = await self._service.append_messages(current_principal(), batch, request_key(request, "AppendMessages"))
        return rpc.AppendMessagesResponse(sequence_ids=result.sequence_ids, version=result.version)

    async def GetMessages(self, request: rpc.GetMessagesRequest, context: Call) -> rpc.GetMessagesResponse:
        left = tuple(request.message_ids)[offset_from_token(request) :]
        found = await self._service.get_messages(current_principal(), left)
        by_id = {message.id: message_to_proto(message) for message in found}
        messages, token = bounded_hits(request, [by_id.get(id_) for id_ in left])
        return rpc.GetMessagesResponse(messages=messages, next_page_token=token)

    async def ListMessages(self, request: rpc.ListMessagesRequest, context: Call) -> rpc.ListMessagesResponse:
        query = page_query(request)
        filter_ = convert.message_filter_from_proto(request)
        found = await self._service.list_messages(current_principal(), filter_, query)
        page = bounded(query, found.map(message_to_proto))
        return rpc.ListMessagesResponse(messages=page.items, next_page_token=next_page_token(query, page))

    async def UpdateMessage(self, request: rpc.UpdateMessageRequest, context: Call) -> rpc.UpdateMessageResponse:
        changed = convert.changes_from_proto(request.message, "message", self._clock.now())
        fields = frozenset(request.update_mask.paths)
        key = request_key(request, "UpdateMessage")
        message = await self._service.update_message(current_principal(), changed, fields, key)
        return rpc.UpdateMessageResponse(message=message_to_proto(message))

    async def DeleteMessage(self, request: rpc.DeleteMessageRequest, context: Call) -> rpc.DeleteMessageResponse:
        key = request_key(request, "DeleteMessage")
        await self._service.delete_message(current_principal(), request.message_id, key)
        return rpc.DeleteMessageResponse()

    async def SearchMessages(self, request: rpc.SearchMessagesRequest, context: Call) -> rpc.SearchMessagesResponse:
        search = convert.search_from_proto(request, offset_from_token(request))
        found = await self._service.search_messages(current_principal(), search)
        hits, token = bounded_hits(request, [convert.hit_to_proto(hit) for hit in found.hits])
        return rpc.SearchMessagesResponse(
            hits=hits,
            next_page_token=token,
            degraded=found.degraded,
            reranked=found.reranked,
            time_ranges=[convert.TIME_RANGE.to_proto(each) for each in found.time_ranges],
        )

    async def EraseAgent(self, request: rpc.EraseAgentRequest, context: Call) -> rpc.EraseAgentResponse:
        key = request_key(request, "EraseAgent")
        erasure = await self._service.erase_agent(current_principal(), request.agent_id, key)
        return rpc.EraseAgentResponse(
            deleted_messages=erasure.messages,
            deleted_contexts=erasure.contexts,
            deleted_episodes=erasure.episodes,
            deleted_facts=erasure.facts,
        )

    async def EraseSender(self, request: rpc.EraseSenderRequest, context: Call) -> rpc.EraseSenderResponse:
        """Deletes messages of a sender, with what derives from them."""
        erasure = await self._service.erase_sender(current_principal(), request.sender_id)
        return rpc.EraseSenderResponse(
            deleted_messages=erasure.messages,
            deleted_episodes=erasure.episodes,
            deleted_facts=erasure.facts,
            remaining=erasure.remaining,
        )
