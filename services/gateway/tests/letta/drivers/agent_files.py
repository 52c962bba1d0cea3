"""Agent files."""

import json
from typing import Any

import letta_client
import pytest

from ..lab import Lab, drives


@drives("agents.import_file")
def agent_files(lab: Lab) -> None:
    agents = lab.client.agents
    agent = lab.agent(name="traveller", tags=["kept"])
    lab.client.agents.messages.create(agent.id, input="Where is the comet?")
    text = agents.export_file(agent.id)
    file = json.loads(text)
    assert ([item["name"] for item in file["agents"]], len(file["blocks"])) == (["traveller"], 1)

    made = agents.import_file(file=("traveller.af", text.encode()), name="double", model="openai/fake-model")
    (copy,) = made.agent_ids
    double = agents.retrieve(copy, include=["agent.tags", "agent.blocks"])
    assert (copy != agent.id, double.name, double.tags) == (True, "double", ["kept"])
    assert [(block.label, block.value) for block in double.blocks] == [("human", "Ada.")]
    kinds = [message.message_type for message in agents.messages.list(copy, order="asc")]
    assert kinds == [message.message_type for message in agents.messages.list(agent.id, order="asc")]

    bare = json.loads(agents.export_file(agent.id, scrub_messages=True))
    assert bare["agents"][0]["messages"] == []
    with pytest.raises(letta_client.UnprocessableEntityError, match="is not JSON"):
        agents.import_file(file=("traveller.af", b"{"))
    with pytest.raises(letta_client.BadRequestError, match="no agents"):
        agents.import_file(file=("traveller.af", b"{}"))
    with pytest.raises(letta_client.BadRequestError, match="Legacy format"):
        agents.export_file(agent.id, use_legacy_format=True)


@drives("agents.export_file")
def one_conversation(lab: Lab) -> None:
    agent = lab.agent(name="sailor")
    lab.client.agents.messages.create(agent.id, input="Alone on deck.")
    talk = lab.client.conversations.create(agent_id=agent.id, extra_body={"isolated_block_labels": ["human"]})
    list(lab.client.conversations.messages.create(talk.id, input="Below deck."))

    file = json.loads(lab.client.agents.export_file(agent.id, conversation_id=talk.id))
    text = json.dumps(file["agents"][0]["messages"])
    assert ("Below deck." in text, "Alone on deck." in text) == (True, False)
    ids = [message["id"] for message in file["agents"][0]["messages"]]
    assert file["agents"][0]["in_context_message_ids"] == ids
    assert [block["label"] for block in file["blocks"]] == ["human"]
    default = lab.client.agents.export_file(agent.id)
    assert ("Below deck." in default, "Alone on deck." in default) == (False, True)
    skill = {"name": "knots", "files": {"SKILL.md": "Tie."}}
    body = {"skills": [skill], "conversation_id": talk.id, "scrub_messages": True}
    bare: Any = lab.client.post(f"/v1/agents/{agent.id}/export", body=body, cast_to=object)
    assert (bare["skills"], bare["agents"][0]["messages"]) == ([skill], [])
    with pytest.raises(letta_client.NotFoundError, match="conversation"):
        lab.client.agents.export_file(agent.id, conversation_id="conv-123e4567-e89b-42d3-8456-426614174000")
