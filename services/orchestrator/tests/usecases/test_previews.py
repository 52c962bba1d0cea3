"""Previews of requests, and tools that run outside of turns."""

import json
from dataclasses import replace

import pytest
from mnemesh_kit.errors import InvalidArgument, NotFound, RequestIdReused, Unavailable
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.llm.errors import ModelUnknown
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.conversations import ConversationDraft
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.rules import ToolResult
from mnemesh_orchestrator.model.runs import RunFilter
from mnemesh_types.messages import TextPart, ToolReturn, ToolStatus

from ..support.model import say
from ..support.world import ME, Process, World

ALL = PageQuery(100, ascending=True)
HELLO = (InputMessage((TextPart("Hello"),)),)


def key(request_id: str = "r-1", fingerprint: str = "f") -> RequestKey:
    return RequestKey(ME.organization_id, "RunTool", request_id, fingerprint)


async def run(
    process: Process, agent: Agent, name: str, request: RequestKey | None = None, **arguments: object
) -> ToolReturn:
    return await process.tool_runner.run(ME, request, agent.id, name, json.dumps(arguments))


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2, AgentType.WORKFLOW])
async def test_preview_equals_the_next_request(world: World, process: Process, kind: AgentType) -> None:
    tools = ("archival_memory_search",) if kind is AgentType.WORKFLOW else ()  # it has none by default, and needs one
    before = (InputMessage((TextPart("Before"),)),)
    agent = await world.agent(process, kind, initial_messages=before, tool_names=tools)
    block = world.blocks.blocks[world.blocks.held[agent.id][0]]
    world.blocks.put(replace(block, value="Ada"))
    windows, rows = dict(world.recall.windows), {id_: list(found) for id_, found in world.recall.rows.items()}
    shown = await process.previews.render(ME, agent.id, agent.default_conversation_id, HELLO, RunConfig())
    assert (world.recall.windows, world.recall.rows, world.model.requests) == (windows, rows, [])
    assert (await process.runs.list(ME, RunFilter(agent_ids=(agent.id,)), ALL)).items == ()
    world.model.follow(say("Hello."))
    await process.send(agent, "Hello")
    assert shown == world.model.render(world.model.last)
    assert ("Before" in shown) == (kind is not AgentType.WORKFLOW), "its turns begin with an empty window"
    assert ("Ada" in shown) == (kind is not AgentType.WORKFLOW), "it has no blocks"


async def test_preview_uses_its_conversation_and_config(world: World, process: Process) -> None:
    agent = await world.agent(process)
    thread = await process.conversations.create(ME, None, ConversationDraft(agent.id, model="anthropic/two"))
    config = RunConfig(override_system="Only for now.")
    shown = await process.previews.render(ME, agent.id, thread.id, (), config)
    assert "Only for now." in shown
    assert "anthropic/two" in shown
    with pytest.raises(ModelUnknown):
        await process.previews.render(ME, agent.id, thread.id, (), RunConfig(override_model="nobody/knows"))
    with pytest.raises(NotFound):
        await process.previews.render(ME, agent.id, new_id("conv"), (), RunConfig())


async def test_built_in_tool_takes_effect_once_for_each_request(world: World, process: Process) -> None:
    agent = await world.agent(process)
    for _ in range(2):
        returned = await run(process, agent, "archival_memory_insert", key(), content="The key is under the mat.")
        assert (returned.name, returned.status) == ("archival_memory_insert", ToolStatus.SUCCESS)
    assert await world.archival.texts(agent.id) == ["The key is under the mat."]
    with pytest.raises(RequestIdReused):
        await run(process, agent, "archival_memory_insert", key(fingerprint="other"), content="Other.")
    for _ in range(2):
        await run(process, agent, "archival_memory_insert", content="Twice.")
    assert len(await world.archival.texts(agent.id)) == 3
    edited = await run(process, agent, "memory_insert", label="human", new_str="Ada")
    assert edited.status is ToolStatus.SUCCESS
    assert "Ada" in world.blocks.value(agent.id, "human")


async def test_refusal_of_a_tool_is_an_error_return(world: World, process: Process) -> None:
    agent = await world.agent(process)
    for arguments in ({}, {"content": "x", "surplus": 1}, {"content": 7}):
        returned = await run(process, agent, "archival_memory_insert", **arguments)
        assert returned.status is ToolStatus.ERROR
    assert await world.archival.texts(agent.id) == []
    for text in ("[1]", "{", '{"content": '):
        with pytest.raises(InvalidArgument) as raised:
            await process.tool_runner.run(ME, None, agent.id, "archival_memory_insert", text)
        assert raised.value.field == "arguments"
    for name in ("send_message", "no_such_tool"):
        with pytest.raises(NotFound):
            await run(process, agent, name)


async def test_custom_tool_runs_once_with_the_blocks_of_the_agent(world: World, process: Process) -> None:
    world.tools.add("probe", lambda given, blocks: (ToolResult(True, blocks["human"]), {"human": f"n={given['n']}"}))
    agent = await world.agent(process, tool_names=("probe",))
    returned = await run(process, agent, "probe", key(), n=7)
    assert (returned.status, returned.text) == (ToolStatus.SUCCESS, "Nothing yet.")
    assert world.blocks.value(agent.id, "human") == "n=7"
    again = await run(process, agent, "probe", key(), n=7)
    assert (again.status, again.text) == (ToolStatus.ERROR, INTERRUPTED)
    assert world.tools.executed == [("probe", {"n": 7})]


async def test_unavailable_service_runs_nothing(world: World, process: Process) -> None:
    world.tools.add("probe")
    agent = await world.agent(process, tool_names=("probe",))
    world.faults.unavailable = {"tools.definitions": 1}
    with pytest.raises(Unavailable):
        await run(process, agent, "probe", key())
    assert (await run(process, agent, "probe", key())).status is ToolStatus.SUCCESS
