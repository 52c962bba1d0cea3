"""Agents across the services: created or deleted completely, and invisible to other organizations."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, runs_service_pb2
from mnemesh.archival.v1 import archives_service_pb2, passages_service_pb2
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.tools.v1 import execution_service_pb2, tools_service_pb2
from mnemesh.types.v1 import audit_pb2
from mnemesh_client import Agent, Mnemesh
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import InvalidArgument, MnemeshError, NotFound, Unavailable
from mnemesh_testkit.fakes import server
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh import faulty_proxy
from mnemesh_testkit.mesh.in_process import REHEARSAL, Mesh
from mnemesh_testkit.mesh.turns import collect, turn
from mnemesh_testkit.timeouts import scaled

MEMORY = {"human": "The human.", "persona": "Kind."}
STRANGER = Principal("org-11111111-1111-4111-8111-111111111111", "user-11111111-1111-4111-8111-111111111111")


async def test_refused_creation_leaves_nothing(mesh: Mesh) -> None:
    cases: tuple[dict[str, Any], ...] = (
        {"tools": ["no_such_tool"]},
        {"block_ids": ["block-00000000-0000-4000-8000-00000000dead"]},
        {"archive_ids": ["archive-00000000-0000-4000-8000-00000000dead"]},
        {"blocks": [blocks_pb2.Block(label="same"), blocks_pb2.Block(label="same")]},
        {"model": "unknown/model"},
    )
    for broken in cases:
        with pytest.raises(MnemeshError) as refused:
            await mesh.client.agents.create(**{"blocks": MEMORY, **broken}, request_id="again")
        assert refused.value.reason in {"NOT_FOUND", "ARCHIVE_NOT_FOUND", "BLOCK_LABEL_TAKEN", "MODEL_UNKNOWN"}, broken
        assert [agent.id async for agent in mesh.client.agents.list()] == []
        assert [block.id async for block in mesh.client.blocks.list()] == []
        assert [message.id async for message in mesh.client.messages.list()] == []
        # the request_id is free for the corrected request
    agent = await mesh.client.agents.create(blocks=MEMORY, request_id="again")
    assert len((await agent.memory()).blocks) == 2


async def test_creation_answers_with_the_parts_of_a_view(mesh: Mesh) -> None:
    view = agents_service_pb2.AgentView(message_ids=True, blocks=True, groups=True)
    request = agents_service_pb2.CreateAgentRequest(
        agent=agents_pb2.Agent(type=agents_pb2.AGENT_TYPE_MEMGPT_V2, model=REHEARSAL, enable_sleeptime=True),
        blocks=[blocks_pb2.Block(label="human", value="Ada")],
        view=view,
    )
    created = await mesh.client.agents.stub.CreateAgent(request)
    read = agents_service_pb2.GetAgentRequest(agent_id=created.agent.id, view=view)
    shown = await mesh.client.agents.stub.GetAgent(read)
    assert (created.agent, created.core_memory) == (shown.agent, shown.core_memory)
    assert len(created.agent.message_ids) > 1
    assert len(created.agent.group_ids) == 1


async def test_window_above_that_of_the_model_is_refused_and_leaves_nothing(mesh: Mesh) -> None:
    settings = agents_pb2.ModelSettings(context_window=128_001)
    with pytest.raises(InvalidArgument, match="128,000") as refused:
        await mesh.client.agents.create(model=REHEARSAL, blocks=MEMORY, settings=settings)
    assert refused.value.field == "agent.model_settings.context_window"
    assert [block.id async for block in mesh.client.blocks.list()] == []


@pytest.mark.mesh(proxied=["blocks", "recall", "tools"])
@pytest.mark.parametrize(
    ("service", "method"),
    [("blocks", "CreateCoreMemory"), ("recall", "CreateContext"), ("tools", "BatchGetTools")],
    ids=["blocks", "recall", "tools"],
)
@pytest.mark.parametrize(
    "fault",
    [faulty_proxy.ExecuteThenTimeout(), pytest.param(faulty_proxy.Unavailable(), marks=pytest.mark.full)],
    ids=["answer-lost", "away"],
)
async def test_creation_during_an_outage_is_completed_by_its_repeat(
    mesh: Mesh, service: str, method: str, fault: faulty_proxy.Fault
) -> None:
    tool = await mesh.client.tools.create('def ping() -> str:\n    """Answers."""\n    return "pong"\n')
    arguments: dict[str, Any] = {"name": "ada", "blocks": MEMORY, "tools": [tool.name], "request_id": "birth-1"}
    mesh.proxies[service].inject(method, fault, times=100)
    async with Mnemesh(mesh.client.addresses, patience=0.1) as client:
        with pytest.raises(MnemeshError) as away:
            await client.agents.create(**arguments)
    assert away.value.reason in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
    mesh.proxies[service].clear()
    assert [agent.id async for agent in mesh.client.agents.list()] == [], "half an agent is visible"

    agent = await mesh.client.agents.create(**arguments)

    assert [agent.id async for agent in mesh.client.agents.list()] == [agent.id]
    assert sorted([block.label async for block in mesh.client.blocks.list()]) == ["human", "persona"]
    assert tool.name in [attached.name for attached in agent.proto.tools]
    assert "Your name" in (await turn(agent, "My name is Ada. What is my name?")).said


async def test_repeated_creation_returns_the_same_agent(mesh: Mesh) -> None:
    created = await asyncio.gather(
        *(mesh.client.agents.create(name="ada", blocks=MEMORY, request_id="birth-1") for _ in range(5))
    )
    assert len({agent.id for agent in created}) == 1
    assert len([block async for block in mesh.client.blocks.list()]) == 2


async def test_deleted_agent_is_erased_in_every_service(mesh: Mesh) -> None:
    other = await _with_memories(mesh)
    agent = await _with_memories(mesh)
    run_ids = [run.id async for run in mesh.client.runs.list(agent_id=agent.id)]
    await agent.delete()

    with pytest.raises(NotFound):
        await mesh.client.agents.get(agent.id)
    with pytest.raises(NotFound):
        await turn(agent, "Are you there?")
    with pytest.raises(NotFound):
        await mesh.client.messages.window(agent.proto.default_conversation_id)
    assert [message.id async for message in mesh.client.messages.list(agent_id=agent.id)] == []
    assert await mesh.client.messages.search("key", agent_id=agent.id) == []
    assert [p.text async for p in mesh.client.passages.list()] == ["the key is under the mat."]
    assert {block.label async for block in mesh.client.blocks.list()} == {"human", "persona"}
    assert len([block async for block in mesh.client.blocks.list()]) == 2
    for run_id in run_ids:
        with pytest.raises(NotFound):
            await mesh.client.runs.get(run_id)
    await agent.delete()  # once more is a success
    assert "under the mat" in (await turn(other, "What do you know about the key?")).said


async def test_late_write_for_a_deleted_agent_is_refused(mesh: Mesh) -> None:
    agent = await _with_memories(mesh)
    await agent.delete()
    for write in (
        lambda: mesh.client.passages.insert("Late.", agent_id=agent.id),
        lambda: mesh.client.blocks.create("late", "Late.", agent_ids=[agent.id]),
        lambda: mesh.stubs.messages.AppendMessages(
            messages_service_pb2.AppendMessagesRequest(agent_id=agent.id, messages=[_message()])
        ),
    ):
        with pytest.raises(MnemeshError) as refused:
            await write()
        assert refused.value.reason == "ERASED"


async def test_deletion_of_an_agent_ends_its_run(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = [server.hang()]
    agent = await mesh.client.agents.create(model="openai/fake-model", blocks=MEMORY)
    run = await mesh.client.runs.start(agent.id, "Think for ever.")
    following = asyncio.create_task(collect(mesh.client.runs.stream(run.id)))
    await agent.delete()
    async with asyncio.timeout(scaled(60)):
        with pytest.raises(NotFound):
            await following
    assert [message.id async for message in mesh.client.messages.list(agent_id=agent.id)] == []


@pytest.mark.mesh(proxied=["recall"])
async def test_deletion_during_an_outage_hides_the_agent_and_is_completed_later(mesh: Mesh) -> None:
    agent = await _with_memories(mesh)
    mesh.proxies["recall"].inject("EraseAgent", faulty_proxy.Unavailable(), times=100)
    async with Mnemesh(mesh.client.addresses, patience=0.1) as client:
        with pytest.raises(Unavailable):
            await client.agents.delete(agent.id)
    with pytest.raises(NotFound):
        await mesh.client.agents.get(agent.id)
    mesh.proxies["recall"].clear()
    await agent.delete()
    assert [message.id async for message in mesh.client.messages.list(agent_id=agent.id)] == []


async def test_list_of_agents_has_the_message_ids_of_their_windows(mesh: Mesh) -> None:
    agents = [await mesh.client.agents.create(name=name, blocks=MEMORY) for name in ("ada", "bob")]
    rpc = agents_service_pb2
    view = rpc.AgentView(message_ids=True)
    listed = (await mesh.stubs.agents.ListAgents(rpc.ListAgentsRequest(view=view))).agents
    assert {agent.id for agent in listed} == {agent.id for agent in agents}
    for agent in listed:
        window = await mesh.client.messages.window(agent.default_conversation_id)
        assert list(agent.message_ids) == [message.id for message in window.messages]
        one = (await mesh.stubs.agents.GetAgent(rpc.GetAgentRequest(agent_id=agent.id, view=view))).agent
        assert one.message_ids == agent.message_ids
    plain = (await mesh.stubs.agents.ListAgents(rpc.ListAgentsRequest())).agents
    assert not any(agent.message_ids for agent in plain)


async def test_agents_have_their_whole_blocks_if_the_view_asks_for_them(mesh: Mesh) -> None:
    whole = blocks_pb2.Block(
        label="plan",
        value="Rest.",
        description="What to do.",
        limit=50,
        read_only=True,
        name="A plan",
        tags=["kept"],
        metadata='{"from": "test"}',
        hidden=True,
        is_template=True,
        template_name="plans",
        preserve_on_migration=True,
        provenance=audit_pb2.Provenance(project_id="project-1"),
    )
    agent = await mesh.client.agents.create(name="ada", blocks=[whole, blocks_pb2.Block(label="plain")])
    stored = await mesh.client.blocks.core_memory(agent.id)
    assert {field.name for field, _ in whole.ListFields()} <= {field.name for field, _ in stored.blocks[0].ListFields()}
    rpc = agents_service_pb2
    view = rpc.AgentView(blocks=True)
    got = await mesh.stubs.agents.GetAgent(rpc.GetAgentRequest(agent_id=agent.id, view=view))
    assert got.core_memory == stored
    assert list((await mesh.stubs.agents.ListAgents(rpc.ListAgentsRequest(view=view))).core_memories) == [stored]


async def test_agents_have_their_groups_if_the_view_asks_for_them(mesh: Mesh) -> None:
    ada, bob, eve = [await mesh.client.agents.create(name=name) for name in ("ada", "bob", "eve")]
    one = await mesh.client.groups.create([ada.id, bob.id])
    two = await mesh.client.groups.create([bob.id], manager_type="supervisor", manager_agent_id=ada.id)
    rpc = agents_service_pb2
    view = rpc.AgentView(groups=True)
    listed = (await mesh.stubs.agents.ListAgents(rpc.ListAgentsRequest(view=view))).agents
    assert {agent.id: list(agent.group_ids) for agent in listed} == {
        ada.id: [one.id, two.id],
        bob.id: [one.id, two.id],
        eve.id: [],
    }
    got = (await mesh.stubs.agents.GetAgent(rpc.GetAgentRequest(agent_id=ada.id, view=view))).agent
    assert list(got.group_ids) == [one.id, two.id]
    await ada.delete()
    plain = (await mesh.stubs.agents.ListAgents(rpc.ListAgentsRequest())).agents
    assert not any(agent.group_ids for agent in plain)
    assert (await mesh.client.groups.get(one.id)).proto.agent_ids == [bob.id]


async def test_agents_of_another_organization_are_not_found(mesh: Mesh) -> None:
    agent = await _with_memories(mesh)
    conversation = agent.proto.default_conversation_id
    block = (await agent.memory()).blocks[0]
    message = (await mesh.client.messages.window(conversation)).messages[1]
    passage = await anext(agent.passages())
    run = await anext(mesh.client.runs.list(agent_id=agent.id))
    step = await anext(mesh.client.runs.steps(run.id))
    tool = await mesh.client.tools.create('def ping() -> str:\n    """Answers."""\n    return "pong"\n')
    stubs, runs = mesh.stubs, runs_service_pb2
    request: list[Callable[[], Any]] = [
        lambda: stubs.agents.GetAgent(agents_service_pb2.GetAgentRequest(agent_id=agent.id)),
        lambda: stubs.agents.GetContextWindow(agents_service_pb2.GetContextWindowRequest(agent_id=agent.id)),
        lambda: stubs.agents.ResetMessages(agents_service_pb2.ResetMessagesRequest(agent_id=agent.id)),
        lambda: stubs.agents.RecompileAgent(agents_service_pb2.RecompileAgentRequest(agent_id=agent.id)),
        lambda: stubs.agents.AttachTool(agents_service_pb2.AttachToolRequest(agent_id=agent.id, name="memory")),
        lambda: agent.update(name="stolen"),
        lambda: turn(agent, "Who are you?"),
        lambda: mesh.client.runs.start(agent.id, "Who are you?"),
        lambda: stubs.runs.GetRun(runs.GetRunRequest(run_id=run.id)),
        lambda: stubs.runs.RetryRun(runs.RetryRunRequest(run_id=run.id)),
        lambda: stubs.runs.DeleteRun(runs.DeleteRunRequest(run_id=run.id)),
        lambda: stubs.runs.GetStep(runs.GetStepRequest(step_id=step.id)),
        lambda: collect(mesh.client.runs.stream(run.id)),
        lambda: stubs.blocks.GetBlock(blocks_service_pb2.GetBlockRequest(block_id=block.id)),
        lambda: stubs.blocks.ListBlockRevisions(blocks_service_pb2.ListBlockRevisionsRequest(block_id=block.id)),
        lambda: stubs.blocks.ListBlockAgents(blocks_service_pb2.ListBlockAgentsRequest(block_id=block.id)),
        lambda: agent.append(block.label, "stolen"),
        lambda: stubs.messages.GetContext(messages_service_pb2.GetContextRequest(conversation_id=conversation)),
        lambda: stubs.messages.UpdateMessage(_rewriting(message.id)),
        lambda: stubs.archives.GetArchive(archives_service_pb2.GetArchiveRequest(archive_id=passage.archive_id)),
        lambda: stubs.passages.GetPassage(passages_service_pb2.GetPassageRequest(passage_id=passage.id)),
        lambda: stubs.tools.GetTool(tools_service_pb2.GetToolRequest(tool_id=tool.id)),
        lambda: stubs.execution.ExecuteTool(execution_service_pb2.ExecuteToolRequest(tool_id=tool.id, arguments="{}")),
        lambda: mesh.client.agents.create(block_ids=[block.id]),
        lambda: mesh.client.agents.create(tools=[tool.id]),
        lambda: mesh.client.agents.create(archive_ids=[passage.archive_id]),
    ]
    with as_principal(STRANGER):
        for ask in request:
            with pytest.raises(MnemeshError) as refused:
                await ask()
            assert refused.value.code.name == "NOT_FOUND", refused.value
        outcomes = await mesh.client.runs.cancel(run.id)
        assert outcomes == {run.id: runs.CANCEL_OUTCOME_NOT_FOUND}
        for nothing in (
            mesh.client.agents.list(),
            mesh.client.blocks.list(),
            mesh.client.messages.list(),
            mesh.client.messages.list(agent_id=agent.id),
            mesh.client.passages.list(),
            mesh.client.runs.list(),
            mesh.client.tools.list(names=[tool.name]),
        ):
            assert [item async for item in nothing] == []
        assert await mesh.client.messages.get(message.id) == []
        assert await mesh.client.messages.search("key") == []
        assert await mesh.client.passages.search("key") == []
        # what does not exist may be deleted: nothing happens
        for delete in (agent.delete(), mesh.client.blocks.delete(block.id), mesh.client.passages.delete(passage.id)):
            try:
                await delete
            except NotFound:
                continue
    assert (await mesh.client.agents.get(agent.id)).name == agent.name
    assert "under the mat" in (await turn(agent, "What do you know about the key?")).said
    assert (await mesh.client.blocks.get(block.id)).value == block.value


async def _with_memories(mesh: Mesh) -> Agent:
    agent = await mesh.client.agents.create(model=REHEARSAL, blocks=MEMORY)
    await turn(agent, "Remember that the key is under the mat.")
    return agent


def _message() -> Any:
    from mnemesh.types.v1 import message_pb2

    text = message_pb2.ContentPart(text=message_pb2.TextPart(text="Late."))
    return message_pb2.Message(
        id="message-00000000-0000-4000-8000-00000000beef", role=message_pb2.ROLE_USER, content=[text]
    )


def _rewriting(message_id: str) -> Any:
    request = messages_service_pb2.UpdateMessageRequest(message=_message())
    request.message.id = message_id
    request.update_mask.paths.append("content")
    return request
