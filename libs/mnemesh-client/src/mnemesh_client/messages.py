"""Recall memory: all messages, and their search."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Literal

from google.protobuf import field_mask_pb2
from mnemesh.recall.v1 import contexts_pb2, messages_service_pb2, messages_service_pb2_grpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.ids import new_id

from mnemesh_client.inputs import SearchModeName, optional_timestamp
from mnemesh_client.paging import Order, paginate, sort_order, whole_answer
from mnemesh_client.results import Hits
from mnemesh_client.transport import Channel

RoleName = Literal["system", "user", "assistant", "tool", "approval", "summary"]


class MessagesClient:
    """Calls of MessageService, as `client.messages`. Errors: NotFound; InvalidArgument for a bad date, role or page."""

    def __init__(self, channel: Channel) -> None:
        self.stub = messages_service_pb2_grpc.MessageServiceStub(channel)

    async def get(self, *message_ids: str) -> list[message_pb2.Message]:
        """Returns messages by id, in the order of the arguments. Unknown ids are left out."""
        request = messages_service_pb2.GetMessagesRequest(message_ids=message_ids)
        return list((await whole_answer(self.stub.GetMessages, request, "messages")).messages)

    def list(
        self,
        *,
        agent_id: str | None = None,
        conversation_id: str | None = None,
        roles: Sequence[RoleName] = (),
        run_id: str | None = None,
        after_id: str | None = None,
        before_id: str | None = None,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[message_pb2.Message]:
        """Yields messages, oldest first unless `order` is "desc"."""
        request = messages_service_pb2.ListMessagesRequest(
            agent_ids=[agent_id] if agent_id else (),
            conversation=_scope(conversation_id),
            roles=role_values(roles),
            run_id=run_id,
            after_id=after_id,
            before_id=before_id,
            order=sort_order(order),
        )
        return paginate(self.stub.ListMessages, request, "messages", limit)

    async def search(
        self,
        query: str,
        *,
        further_queries: Sequence[str] = (),
        agent_id: str | None = None,
        conversation_id: str | None = None,
        roles: Sequence[RoleName] = (),
        speakers: Sequence[str] = (),
        sender_ids: Sequence[str] = (),
        mode: SearchModeName = "hybrid",
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str | None = None,
        reference_time: datetime | None = None,
        before: int = 0,
        after: int = 0,
        rerank: bool | None = None,
        limit: int = 0,
    ) -> Hits[messages_service_pb2.MessageHit]:
        """Searches messages by words and meaning, best first. A blank query returns the newest messages.

        Args:
            query: the words to search for, at most 10,000 characters.
            further_queries: at most 9 others, such as other wordings. A message counts with its best score.
            agent_id: only messages of this agent; None searches the organization.
            conversation_id: only messages of this conversation.
            roles: only messages with these roles: "user", "assistant" or "tool"; all three if empty.
            speakers: only messages of these names, compared without case.
            sender_ids: only messages of these senders.
            mode: "hybrid", "text" or "vector".
            start_date: "YYYY-MM-DD" or "YYYY-MM-DDTHH:MM[:SS][offset]"; a time without an offset is in `time_zone`.
            end_date: the same; a bare date includes that whole day.
            time_zone: an IANA name; None is UTC.
            reference_time: the time from which expressions in queries such as "last week" are resolved, so that
                messages of that time rank higher. None recognises complete dates only.
            before: the number of messages of the conversation to return before each hit, at most 10.
            after: the number after each hit.
            rerank: whether the reranker orders the best hits; None is the default of the service.
            limit: the maximum number of hits, at most 100; 0 is 10.
        """
        request = messages_service_pb2.SearchMessagesRequest(
            query=query,
            further_queries=further_queries,
            mode=messages_service_pb2.SearchMode.Value(f"SEARCH_MODE_{mode.upper()}"),
            limit=limit,
            agent_id=agent_id,
            conversation=_scope(conversation_id),
            roles=role_values(roles),
            start_date=start_date,
            end_date=end_date,
            time_zone=time_zone,
            speakers=speakers,
            sender_ids=sender_ids,
            reference_time=optional_timestamp(reference_time),
            messages_before=before,
            messages_after=after,
            rerank=rerank,
        )
        response = await whole_answer(self.stub.SearchMessages, request)
        return Hits(response.hits, response)

    async def window(self, conversation_id: str) -> contexts_pb2.Context:
        """Returns the context window of a conversation: the system message and the messages that the model receives."""
        request = messages_service_pb2.GetContextRequest(conversation_id=conversation_id)
        answer: messages_service_pb2.GetContextResponse
        answer = await whole_answer(self.stub.GetContext, request, "context.messages")
        return answer.context

    async def window_ids(self, conversation_ids: Sequence[str]) -> Sequence[messages_service_pb2.ContextIds]:
        """Returns the ids of the messages in up to 1000 windows, in their order. Unknown conversations are left out."""
        request = messages_service_pb2.BatchGetContextIdsRequest(conversation_ids=conversation_ids)
        return list((await whole_answer(self.stub.BatchGetContextIds, request, "contexts")).contexts)

    async def append(
        self,
        agent_id: str,
        messages: Sequence[message_pb2.Message],
        *,
        conversation_id: str | None = None,
        request_id: str = "",
    ) -> Sequence[int]:
        """Stores up to 1000 messages, all or none. Returns their sequence ids, in order.

        Args:
            agent_id: the agent.
            messages: messages of the roles USER and SYSTEM, which get an id if they have none. `TracesClient.import_`
                stores a whole history.
            conversation_id: the conversation to whose window they are appended; None appends them to none.
            request_id: the idempotency key; empty creates a new one.

        Raises:
            PermissionDenied: a message has another role, or fields that only services write.
        """
        request = messages_service_pb2.AppendMessagesRequest(
            request_id=request_id, agent_id=agent_id, conversation_id=conversation_id, messages=messages
        )
        for message in request.messages:
            message.id = message.id or new_id("message")
        return (await self.stub.AppendMessages(request)).sequence_ids

    async def update(self, message: message_pb2.Message, *paths: str) -> message_pb2.Message:
        """Updates fields of a message. `message` has the id and the new values, `paths` names the fields."""
        request = messages_service_pb2.UpdateMessageRequest(
            message=message, update_mask=field_mask_pb2.FieldMask(paths=paths)
        )
        return (await self.stub.UpdateMessage(request)).message

    async def delete(self, message_id: str) -> None:
        """Deletes a message from recall and from all windows."""
        await self.stub.DeleteMessage(messages_service_pb2.DeleteMessageRequest(message_id=message_id))


def _scope(conversation_id: str | None) -> messages_service_pb2.ConversationScope | None:
    if conversation_id is None:
        return None
    return messages_service_pb2.ConversationScope(conversation_id=conversation_id)


def role_values(names: Sequence[RoleName]) -> Sequence[message_pb2.Role.ValueType]:
    """Returns the enum values of roles."""
    return [message_pb2.Role.Value(f"ROLE_{name.upper()}") for name in names]
