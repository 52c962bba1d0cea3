"""Agent files."""

from __future__ import annotations

import json

import letta_client
import pytest

from ..lab import Lab, drives


@drives("agents.export_file", "agents.import_file")
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
    with pytest.raises(letta_client.UnprocessableEntityError, match="no JSON"):
        agents.import_file(file=("traveller.af", b"{"))
    with pytest.raises(letta_client.BadRequestError, match="no agents"):
        agents.import_file(file=("traveller.af", b"{}"))
    with pytest.raises(letta_client.InternalServerError, match="use_legacy_format"):
        agents.export_file(agent.id, use_legacy_format=True)
