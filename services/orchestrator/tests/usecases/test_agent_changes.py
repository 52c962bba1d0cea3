"""Changes of agents: revisions, tools, models."""

import pytest
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import AgentRevisionMismatch
from mnemesh_orchestrator.llm.errors import ModelUnknown
from mnemesh_orchestrator.model.agents import AgentFilter, AgentType, AttachedTool
from mnemesh_orchestrator.model.creation import AgentDraft

from ..support.world import ME, Process, World


async def test_update_with_a_stale_revision_is_refused(world: World, process: Process) -> None:
    agent = await world.agent(process)
    assert agent.revision == 1
    request = RequestKey(ME.organization_id, "UpdateAgent", "r-1", "f")
    for _ in range(2):
        changed = await process.agents.update(ME, request, agent.id, {"name": "One"}, if_revision=1)
        assert (changed.name, changed.revision) == ("One", 2)
    with pytest.raises(AgentRevisionMismatch) as refused:
        await process.agents.update(ME, None, agent.id, {"name": "Two"}, if_revision=1)
    assert (refused.value.reason, refused.value.metadata) == (
        "AGENT_REVISION_MISMATCH",
        {"resource_id": agent.id, "revision": "2"},
    )
    attached = await process.agents.attach_tool(ME, None, agent.id, None, "send_message")
    assert (attached.name, attached.revision) == ("One", 3)


async def test_tools_are_attached_and_detached_once_for_each_request(world: World, process: Process) -> None:
    agent = await world.agent(process)
    probe = world.tools.add("probe")
    attach = RequestKey(ME.organization_id, "AttachTool", "r-1", "f")
    detach = RequestKey(ME.organization_id, "DetachTool", "r-1", "f")
    for _ in range(2):
        changed = await process.agents.attach_tool(ME, attach, agent.id, probe.id, None)
        assert [tool.name for tool in changed.tools].count("probe") == 1
    await process.agents.attach_tool(ME, None, agent.id, None, "send_message")
    for _ in range(2):
        changed = await process.agents.detach_tool(ME, detach, agent.id, probe.id, None)
        assert changed.tool("probe") is None
    assert changed.tool("send_message") == AttachedTool("send_message")
    for wrong in (
        process.agents.detach_tool(ME, None, agent.id, None, "probe"),
        process.agents.attach_tool(ME, None, agent.id, None, "nobody_wrote_it"),
        process.agents.attach_tool(ME, None, new_id("agent"), None, "send_message"),
    ):
        with pytest.raises(NotFound):
            await wrong


async def test_built_in_tool_may_be_named_by_its_listed_id(world: World, process: Process) -> None:
    (listed,) = await world.tools.definitions((), ("memory_rethink",))
    foreign = world.tools.list_builtin("paint_picture")
    agent = await process.lifecycle.create(ME, None, AgentDraft(AgentType.LETTA_V1, tool_ids=(listed.id,)))
    assert agent.tool("memory_rethink") == AttachedTool("memory_rethink")
    agent = await process.agents.detach_tool(ME, None, agent.id, listed.id, None)
    assert agent.tool("memory_rethink") is None
    agent = await process.agents.attach_tool(ME, None, agent.id, listed.id, None)
    assert agent.tool("memory_rethink") == AttachedTool("memory_rethink")
    with pytest.raises(NotFound, match="no built-in tool paint_picture"):
        await process.agents.attach_tool(ME, None, agent.id, foreign.id, None)


async def test_deleted_tool_is_removed_from_the_agent(world: World, process: Process) -> None:
    """While the tools service does not answer, the agent is shown with all of its tools."""
    probe, kept = world.tools.add("probe"), world.tools.add("kept")
    draft = AgentDraft(AgentType.LETTA_V1, include_base_tools=False, tool_ids=(probe.id, kept.id))
    agent = await process.lifecycle.create(ME, None, draft)
    world.tools.delete(probe.id)
    world.faults.unavailable = {"tools.definitions": 1}
    assert [tool.name for tool in (await process.agents.get(ME, agent.id)).tools] == ["probe", "kept"]
    assert [tool.name for tool in (await process.agents.get(ME, agent.id)).tools] == ["kept"]
    page = await process.agents.list(ME, AgentFilter(), "created_at", PageQuery(10, ascending=True))
    assert [tool.name for tool in page.items[0].tools] == ["kept"]


async def test_update_to_an_unserved_model_is_refused(world: World, process: Process) -> None:
    agent = await world.agent(process)
    with pytest.raises(ModelUnknown):
        await process.agents.update(ME, None, agent.id, {"model": "gone/model"})
    assert (await process.agents.get(ME, agent.id)).model == "scripted/one"
