"""Taking back the last turn of a conversation: by a fork that ends before it."""

from __future__ import annotations

from mnemesh.agents.v1 import conversations_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client.inputs import new_request_id, text_of
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import NotFound


async def before_last_message(mnemesh: Mnemesh, conversation_id: str) -> tuple[str, str]:
    """Forks a conversation before the last message of its user.

    The conversation itself, its messages in recall, and what the turn changed in memory stay.

    Returns:
        The text of that message, and the id of the new conversation.

    Raises:
        NotFound: the context window has no message of the user.
    """
    messages = (await mnemesh.messages.window(conversation_id)).messages
    users = [number for number, message in enumerate(messages) if message.role == message_pb2.ROLE_USER]
    if not users or users[-1] == 0:
        raise NotFound("There is no message to take back.", resource_id=conversation_id)
    request = conversations_service_pb2.ForkConversationRequest(
        request_id=new_request_id(),
        conversation_id=conversation_id,
        until_message_id=messages[users[-1] - 1].id,
    )
    forked = (await mnemesh.conversations.stub.ForkConversation(request)).conversation
    return text_of(messages[users[-1]].content), forked.id
