"""What belongs to an agent: blocks, tools, passages, archives, identities, folders, files, window, schedules."""

import time
from datetime import datetime
from typing import Any

import letta_client
import pytest
from mnemesh.agents.v1 import identities_pb2, identities_service_pb2
from mnemesh.files.v1 import files_pb2, folders_service_pb2

from ..lab import MODEL, Lab, drives


@drives(
    "agents.blocks.list",
    "agents.blocks.retrieve",
    "agents.blocks.update",
    "agents.blocks.attach",
    "agents.blocks.detach",
)
def blocks(lab: Lab) -> None:
    agents = lab.client.agents
    agent, other = (
        lab.agent(),
        lab.agent(memory_blocks=[{"label": "plan", "value": "Rest.", "metadata": {"kept": True}, "tags": ["own"]}]),
    )
    held = agents.blocks.retrieve("human", agent_id=agent.id)
    assert (held.label, held.value, held.limit) == ("human", "Ada.", 100_000)
    changed = agents.blocks.update("human", agent_id=agent.id, value="Grace.")
    assert (changed.id, changed.value, changed.limit) == (held.id, "Grace.", 100_000)
    (block,) = other.blocks
    assert (block.metadata, block.tags, block.created_at is not None) == ({"kept": True}, ["own"], True)
    plan = str(block.id)
    assert {block.label for block in agents.blocks.attach(plan, agent_id=agent.id).blocks} == {"human", "plan"}
    assert {block.label for block in agents.blocks.list(agent.id)} == {"human", "plan"}
    assert [block.label for block in agents.blocks.detach(plan, agent_id=agent.id).blocks] == ["human"]
    with pytest.raises(letta_client.NotFoundError):
        agents.blocks.retrieve("plan", agent_id=agent.id)
    with pytest.raises(letta_client.UnprocessableEntityError, match="10"):
        agents.blocks.update("human", agent_id=agent.id, limit=10, value="Much longer than that.")
    assert agents.blocks.retrieve("human", agent_id=agent.id).value == "Grace."
    assert "Grace." in agents.recompile(agent.id)


@drives("agents.recompile")
def context(lab: Lab) -> None:
    agent = lab.agent(system="You are Ada. {CORE_MEMORY}")
    assert "You are Ada." in lab.client.agents.recompile(agent.id, dry_run=True)
    window: Any = lab.client.get(f"/v1/agents/{agent.id}/context", cast_to=object)
    assert window["num_messages"] == len(window["messages"]) >= 1
    assert 0 < window["num_tokens_core_memory"] < window["context_window_size_current"]
    preview: Any = lab.client.post(
        f"/v1/agents/{agent.id}/messages/preview-raw-payload", body={"input": "Hi"}, cast_to=object
    )
    assert preview["model"] == "fake-model"


@drives(
    "agents.tools.list",
    "agents.tools.attach",
    "agents.tools.detach",
    "agents.tools.update_approval",
    "agents.tools.run",
)
def tools(lab: Lab) -> None:
    agents = lab.client.agents
    agent = lab.agent()
    insert = next(tool.id for tool in agents.create(model=MODEL).tools if tool.name == "archival_memory_insert")
    assert [tool.id for tool in agents.tools.attach(insert, agent_id=agent.id).tools] == [insert]  # type: ignore[union-attr]
    assert [tool.id for tool in agents.tools.list(agent.id)] == [insert]
    result = agents.tools.run("archival_memory_insert", agent_id=agent.id, args={"content": "The key is blue."})
    assert result.status == "success"
    assert "blue" in agents.passages.list(agent.id)[0].text
    state = agents.tools.update_approval("archival_memory_insert", agent_id=agent.id, body_requires_approval=True)
    assert [tool.name for tool in state.tools] == ["archival_memory_insert"]  # type: ignore[union-attr]
    assert agents.tools.detach(insert, agent_id=agent.id).tools == []  # type: ignore[union-attr]
    with pytest.raises(letta_client.NotFoundError):
        agents.tools.run("archival_memory_insert", agent_id=agent.id, args={"content": "x"})


@drives("agents.passages.create", "agents.passages.list", "agents.passages.search", "agents.passages.delete")
def passages(lab: Lab) -> None:
    passages, agent = lab.client.agents.passages, lab.agent()
    texts = ["The cat is grey.", "The boat is red.", "Rain falls in Bonn."]
    made = [passages.create(agent.id, text=text, tags=[text[4:7]])[0] for text in texts]
    assert [(item.text, item.tags) for item in passages.list(agent.id)] == [(text, [text[4:7]]) for text in texts]
    assert [item.id for item in passages.list(agent.id, ascending=False, limit=2)] == [made[2].id, made[1].id]
    assert [item.text for item in passages.list(agent.id, search="OAT IS")] == [texts[1]], "a part of the text"
    found = passages.search(agent.id, query="red boat", top_k=1)
    assert (found.count, found.results[0].content) == (1, "The boat is red.")
    assert [item.content for item in passages.search(agent.id, query="grey", tags=["cat"]).results] == [texts[0]]
    with pytest.raises(letta_client.NotFoundError):
        passages.delete(str(made[0].id), agent_id=lab.agent().id)
    passages.delete(str(made[0].id), agent_id=agent.id)
    assert len(passages.list(agent.id)) == 2
    with pytest.raises(letta_client.NotFoundError):
        passages.delete(str(made[0].id), agent_id=agent.id)


@drives("agents.folders.list", "agents.files.list", "agents.files.close_all")
def files(lab: Lab) -> None:
    agent = lab.agent()
    assert list(lab.client.agents.folders.list(agent.id)) == []
    assert list(lab.client.agents.files.list(agent.id)) == []
    assert lab.client.agents.files.close_all(agent.id) == []
    with pytest.raises(letta_client.NotFoundError):
        list(lab.client.agents.folders.list("agent-123e4567-e89b-42d3-8456-426614174000"))


@drives("agents.archives.attach", "agents.archives.detach")
def archives(lab: Lab) -> None:
    agents, owner, reader = lab.client.agents, lab.agent(), lab.agent()
    archive = str(agents.passages.create(owner.id, text="Shared.")[0].archive_id)
    agents.archives.attach(archive, agent_id=reader.id)
    assert [item.text for item in agents.passages.list(reader.id)] == ["Shared."]
    agents.archives.detach(archive, agent_id=reader.id)
    assert agents.passages.list(reader.id) == []


@drives("agents.identities.attach", "agents.identities.detach")
def identities(lab: Lab) -> None:
    identity = identities_pb2.Identity(identifier_key="ada", name="Ada", type=identities_pb2.IDENTITY_TYPE_USER)
    request = identities_service_pb2.CreateIdentityRequest(identity=identity)
    made = lab.call("mnemesh.agents.v1.IdentityService", "CreateIdentity", request).identity
    agent = lab.agent()
    lab.client.agents.identities.attach(made.id, agent_id=agent.id)
    (held,) = lab.client.agents.retrieve(agent.id, include=["agent.identities"]).identities or ()
    assert (held.id, held.identifier_key, held.identity_type) == (made.id, "ada", "user")
    assert [each.id for each in lab.client.agents.list(identifier_keys=["ada"])] == [agent.id]
    lab.client.agents.identities.detach(made.id, agent_id=agent.id)
    assert lab.client.agents.retrieve(agent.id).identity_ids == []


@drives("agents.folders.attach", "agents.folders.detach", "agents.files.open", "agents.files.close")
def folders(lab: Lab) -> None:
    request = folders_service_pb2.CreateFolderRequest(folder=files_pb2.Folder(name="postcards"))
    folder = lab.call("mnemesh.files.v1.FolderService", "CreateFolder", request).folder
    agent = lab.agent()
    state = lab.client.agents.folders.attach(folder.id, agent_id=agent.id)
    assert [source.name for source in state.sources] == ["postcards"]  # type: ignore[union-attr]
    assert [held.id for held in lab.client.agents.folders.list(agent.id)] == [folder.id]
    unknown = "file-123e4567-e89b-42d3-8456-426614174000"
    for act in (lab.client.agents.files.open, lab.client.agents.files.close):
        with pytest.raises(letta_client.NotFoundError):
            act(unknown, agent_id=agent.id)
    assert lab.client.agents.folders.detach(folder.id, agent_id=agent.id).sources == []  # type: ignore[union-attr]


@drives("agents.schedule.create", "agents.schedule.retrieve", "agents.schedule.list", "agents.schedule.delete")
def schedule(lab: Lab) -> None:
    agent, schedule = lab.agent(), lab.client.agents.schedule
    in_an_hour = (time.time() + 3_600) * 1_000
    once = schedule.create(
        agent.id,
        messages=[{"role": "user", "content": "Look at the oven."}],
        schedule={"type": "one-time", "scheduled_at": in_an_hour},
        max_steps=3,
    )
    daily = schedule.create(
        agent.id,
        messages=[{"role": "system", "content": "Good morning"}],
        schedule={"type": "recurring", "cron_expression": "0 9 * * *"},
        callback_url="https://hooks.example/done",
    )
    assert datetime.fromisoformat(once.next_scheduled_at or "").timestamp() == pytest.approx(in_an_hour / 1_000, abs=1)
    page = schedule.list(agent.id, limit="1")
    assert (page.has_next_page, [each.id for each in page.scheduled_messages]) == (True, [once.id])
    rest = schedule.list(agent.id, after=once.id)
    assert (rest.has_next_page, [each.id for each in rest.scheduled_messages]) == (False, [daily.id])
    seen = schedule.retrieve(daily.id, agent_id=agent.id)
    assert seen.id == daily.id
    assert (seen.schedule.type, seen.message.callback_url) == ("recurring", "https://hooks.example/done")
    assert [(each.role, each.content) for each in seen.message.messages] == [("system", "Good morning")]
    assert schedule.retrieve(once.id, agent_id=agent.id).message.max_steps == 3
    with pytest.raises(letta_client.BadRequestError, match="cron"):
        schedule.create(
            agent.id,
            messages=[{"role": "user", "content": "Hi"}],
            schedule={"type": "recurring", "cron_expression": "often"},
        )
    assert schedule.delete(once.id, agent_id=agent.id).success
    for gone in (once.id, daily.id):
        other = agent.id if gone == once.id else lab.agent().id
        with pytest.raises(letta_client.NotFoundError):
            schedule.retrieve(gone, agent_id=other)
