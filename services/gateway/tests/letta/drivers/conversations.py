"""Conversations."""

import letta_client
import pytest

from ..lab import Lab, drives
from .agent_messages import user


@drives(
    "conversations.create",
    "conversations.retrieve",
    "conversations.update",
    "conversations.list",
    "conversations.delete",
)
def conversations(lab: Lab) -> None:
    agent = lab.agent()
    made = lab.client.conversations.create(agent_id=agent.id, summary="Plans")
    assert (made.agent_id, made.summary, made.archived) == (agent.id, "Plans", False)
    assert len(made.in_context_message_ids or ()) == 1, "its system message"
    assert lab.client.conversations.retrieve(made.id) == made
    changed = lab.client.conversations.update(made.id, summary="Other plans", archived=True)
    assert (changed.summary, changed.archived) == ("Other plans", True)
    second = lab.client.conversations.create(agent_id=agent.id)
    assert [each.id for each in lab.client.conversations.list(agent_id=agent.id)] == [second.id]
    every = lab.client.conversations.list(agent_id=agent.id, archive_status="all", order="asc")
    assert [each.id for each in every] == [made.id, second.id]
    lab.client.conversations.delete(made.id)
    with pytest.raises(letta_client.NotFoundError):
        lab.client.conversations.retrieve(made.id)
    with pytest.raises(letta_client.UnprocessableEntityError, match="conversation_id"):
        lab.client.conversations.retrieve("conv-1")


@drives(
    "conversations.messages.create",
    "conversations.messages.stream",
    "conversations.messages.list",
    "conversations.messages.compact",
    "conversations.fork",
    "conversations.recompile",
    "conversations.cancel",
)
def messages(lab: Lab) -> None:
    client, agent = lab.client, lab.agent()
    conversation = client.conversations.create(agent_id=agent.id)
    lab.fake.script = lambda _: "Hello."
    kinds = [chunk.message_type for chunk in client.conversations.messages.create(conversation.id, input="Hi")]
    assert kinds == ["ping", "assistant_message", "stop_reason", "usage_statistics"]
    more = client.conversations.messages.create(conversation.id, messages=[user("Again")], background=True)  # type: ignore[list-item]
    again = list(more)
    run_id = again[0].run_id  # type: ignore[union-attr]
    assert [chunk.message_type for chunk in again] == kinds
    assert list(client.conversations.messages.stream(conversation.id, run_id=run_id, starting_after=1)) == again[1:]
    with pytest.raises(letta_client.BadRequestError, match="No active runs found"):
        client.conversations.messages.stream(conversation.id)
    own = list(client.conversations.messages.create("default", agent_id=agent.id, input="To the agent"))
    assert own[1].message_type == "assistant_message"
    newest = client.conversations.messages.list(conversation.id, limit=2)
    assert [message.message_type for message in newest.items] == ["assistant_message", "user_message"]
    every = list(client.conversations.messages.list(conversation.id, order="asc", limit=2))
    assert [getattr(message, "content", None) for message in every[1:]] == ["Hi", "Hello.", "Again", "Hello."]
    fork = client.conversations.fork(conversation.id)
    shared = list(client.conversations.messages.list(fork.id, order="asc"))
    words = [message.id for message in shared if message.message_type != "system_message"]
    assert words == [message.id for message in every[1:]]
    assert len(shared) == len(every), "under a system message of its own"
    assert "Ada." in client.conversations.recompile(conversation.id, dry_run=True)
    with pytest.raises(letta_client.ConflictError, match="No active runs"):
        client.conversations.cancel(conversation.id)
    lab.fake.script = lambda _: "They met."
    compacted = client.conversations.messages.compact(conversation.id, compaction_settings={"mode": "all"})
    assert compacted.num_messages_before > compacted.num_messages_after
