"""Partners are created with their agents, completely or not at all."""

from dataclasses import replace

import pytest
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from mnemesh_orchestrator.model.agents import AgentFilter, AgentType, AttachedTool, LinkKind
from mnemesh_orchestrator.model.core_memory import AgentAuthor
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.groups import ManagerConfig, ManagerType
from mnemesh_orchestrator.model.rules import ContinueLoop, ExitLoop
from mnemesh_testkit.plugin import sampled
from mnemesh_types.blocks import AppendEdit, Block
from mnemesh_types.provenance import Provenance

from ..support.faults import Crash, Faults
from ..support.pairs import (
    ALL,
    CALLS,
    DRAFT,
    SAMPLED,
    SHARDS,
    agents_of,
    create,
    finish_all,
    key,
    labels,
    nothing_is_left,
    pair,
    refusing,
    require_shared,
)
from ..support.world import ME, Process, World


async def test_partner_and_group_are_created_with_the_agent(world: World, process: Process) -> None:
    draft = replace(DRAFT, embedder="mnemesh/hashing-256", time_zone="Europe/Berlin")
    created = await process.lifecycle.create(ME, key(), draft)
    await require_shared(world, process, created.id)
    agent, partner, group = await pair(process, created.id)
    assert agent == created
    assert {found.id for found in await agents_of(process)} == {agent.id, partner.id}
    assert (partner.name, partner.type, partner.model) == ("Ada's-sleeptime", AgentType.SLEEPTIME, agent.model)
    assert (partner.embedder, partner.time_zone) == ("mnemesh/hashing-256", "Europe/Berlin")
    assert partner.provenance == Provenance(ME.subject_id, ME.subject_id, project_id="project-1")
    assert {tool.name for tool in partner.tools} == {
        "memory_replace", "memory_insert", "memory_rethink", "memory_finish_edits",
    }  # fmt: skip
    assert ExitLoop("memory_finish_edits") in partner.tool_rules
    assert (group.manager.type, group.manager.frequency, group.agent_ids) == (ManagerType.SLEEPTIME, 5, (partner.id,))
    prompt = world.window(partner).messages[0].text
    assert "Ada." in prompt
    assert "<memory_persona>" in prompt
    assert "memory_persona" not in world.window(agent).messages[0].text
    assert await process.lifecycle.create(ME, key(), draft) == agent


async def test_group_begins_with_the_count_of_turns_of_the_draft(process: Process) -> None:
    created = await process.lifecycle.create(ME, None, replace(DRAFT, sleeptime_turns_counter=-1))
    assert (await pair(process, created.id))[2].turns_counter == -1
    with pytest.raises(InvalidArgument, match="sleeptime_turns_counter"):
        await process.lifecycle.create(ME, None, replace(DRAFT, sleeptime_turns_counter=-2))


async def test_agent_and_partner_share_what_they_store(world: World, process: Process) -> None:
    agent, partner, _ = await pair(process, (await process.lifecycle.create(ME, None, DRAFT)).id)
    await world.blocks.create("r-1", agent.id, Block(label="plans", value="None."))
    await world.blocks.edit("r-2", AgentAuthor(partner.id), "plans", AppendEdit("Tea at five."))
    assert world.blocks.value(agent.id, "plans") == "None.\nTea at five."
    await world.blocks.detach("r-3", agent.id, "human")
    assert await labels(world, partner) == {"persona", "plans", "memory_persona"}
    await world.archival.insert("r-4", partner.id, "Ada plays the harp.")
    await world.archival.insert("r-5", agent.id, "Ada has a brother.")
    for searcher in (agent, partner):
        assert len(await world.archival.texts(searcher.id)) == 2


async def test_voice_agent_has_a_voice_partner(world: World, process: Process) -> None:
    draft = AgentDraft(AgentType.VOICE_CONVO, name="Phone", enable_sleeptime=True, include_base_tool_rules=True)
    agent, partner, group = await pair(process, (await process.lifecycle.create(ME, None, draft)).id)
    assert {tool.name for tool in agent.tools} == {"send_message", "search_memory"}
    assert partner.type is AgentType.VOICE_SLEEPTIME
    assert {tool.name for tool in partner.tools} == {
        "store_memories", "rethink_user_memory", "finish_rethinking_memory",
    }  # fmt: skip
    assert group.manager == ManagerConfig(
        ManagerType.VOICE_SLEEPTIME, agent.id, max_message_buffer_length=30, min_message_buffer_length=15
    )
    await require_shared(world, process, agent.id)


TALKS = {"send_message", "conversation_search", "archival_memory_search"}


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        (AgentDraft(AgentType.MEMGPT), TALKS),
        (AgentDraft(AgentType.MEMGPT_V2), TALKS),
        (AgentDraft(AgentType.SPLIT_THREAD), TALKS),
        (AgentDraft(AgentType.REACT), TALKS),
        (AgentDraft(AgentType.LETTA_V1), TALKS - {"send_message"}),
        (AgentDraft(AgentType.LETTA_V1, include_base_tools=False, tool_names=("memory_insert",)), {"memory_insert"}),
    ],
    ids=lambda value: str(value.type) if isinstance(value, AgentDraft) else "",
)
async def test_agent_with_a_partner_does_not_edit_its_memory(
    process: Process, draft: AgentDraft, expected: set[str]
) -> None:
    agent = await process.lifecycle.create(
        ME, None, replace(draft, enable_sleeptime=True, include_base_tool_rules=True)
    )
    assert {tool.name for tool in agent.tools} == expected
    assert (ContinueLoop("archival_memory_search") in agent.tool_rules) == ("archival_memory_search" in expected)


@pytest.mark.parametrize("kind", [AgentType.SLEEPTIME, AgentType.VOICE_SLEEPTIME])
async def test_partner_has_no_partner(world: World, process: Process, kind: AgentType) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await process.lifecycle.create(ME, None, AgentDraft(kind, enable_sleeptime=True))
    assert refused.value.field == "agent.enable_sleeptime"
    plain = await world.agent(process, kind, enable_sleeptime=False)
    with pytest.raises(InvalidArgument) as refused:
        await process.agents.update(ME, None, plain.id, {"enable_sleeptime": True})
    assert refused.value.field == "agent.enable_sleeptime"
    assert [agent.id for agent in await agents_of(process)] == [plain.id]


async def test_agent_without_a_partner_makes_no_further_calls(world: World, process: Process) -> None:
    await process.lifecycle.create(ME, None, replace(DRAFT, enable_sleeptime=None))
    calls = [name for name in world.faults.calls if not name.endswith(".get")]
    assert calls == [
        "agents.begin_creation",
        "blocks.create_core_memory",
        "recall.create_context",
        "agents.activate",
    ]


async def test_own_block_of_the_agent_under_the_label_of_the_partner_is_shared(world: World, process: Process) -> None:
    draft = replace(DRAFT, blocks=(Block(label="memory_persona", value="Mine."),))
    agent, partner, _ = await pair(process, (await process.lifecycle.create(ME, None, draft)).id)
    assert world.blocks.value(partner.id, "memory_persona") == "Mine."
    assert await labels(world, partner) == await labels(world, agent) == {"memory_persona"}


async def test_name_of_a_partner_is_no_longer_than_a_name_may_be(process: Process) -> None:
    agent = await process.lifecycle.create(ME, None, replace(DRAFT, name="x" * 512))
    _, partner, _ = await pair(process, agent.id)
    assert len(partner.name) == 512
    assert partner.name.endswith("x-sleeptime")


@pytest.mark.parametrize("shard", SAMPLED)
@pytest.mark.parametrize("continues", ["repeat", "sweeper"])
async def test_crash_at_any_point_of_a_creation_leaves_nothing_incomplete(
    world: World, continues: str, shard: int
) -> None:
    whole = world.process()
    await create(whole, "whole")
    for point in range((shard + 3 * (continues == "repeat")) % SHARDS, whole.faults.points, SHARDS):
        before = await whole.agents.count(ME, AgentFilter())
        world.faults = Faults()
        world.faults.crashes_at = point
        with pytest.raises(Crash):
            await create(world.process(), f"r-{point}")
        world.faults = Faults()
        process = world.process()
        assert await process.agents.count(ME, AgentFilter()) in (before, before + 2), point
        if continues == "sweeper":
            world.clock.advance(61)
            await process.lifecycle.finish_all()
            assert await process.stores.agents.list_unfinished() == (), point
        agent = await create(process, f"r-{point}")
        await require_shared(world, process, agent.id)
        assert await process.agents.count(ME, AgentFilter()) == before + 2, point


@pytest.mark.parametrize("fault", ["unavailable", "lost"])
@pytest.mark.parametrize(
    "call", sampled(["blocks.create_core_memory", *CALLS, "recall.create_context", "agents.activate"], 3)
)
async def test_creation_during_an_outage_continues_with_its_repeat(
    world: World, process: Process, call: str, fault: str
) -> None:
    setattr(world.faults, fault, {call: 1})
    with pytest.raises(Exception, match=r"unavailable|too slow"):
        await create(process)
    assert await process.agents.count(ME, AgentFilter()) in ((0, 2) if call == "agents.activate" else (0,))
    agent = await create(process)
    await require_shared(world, process, agent.id)
    assert len(await agents_of(process)) == 2
    assert len(world.blocks.blocks) == 3


@pytest.mark.parametrize("interrupted", [False, True], ids=["at once", "later"])
async def test_refused_partner_undoes_the_creation(
    world: World, process: Process, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    monkeypatch.setattr(world.archival, "attach", refusing(FailedPrecondition("Not now.")))
    if interrupted:
        world.faults.unavailable = {"recall.erase_agent": 1}
    with pytest.raises(FailedPrecondition, match="Not now"):
        await create(process)
    await finish_all(process)
    await nothing_is_left(world, process)
    monkeypatch.undo()
    await require_shared(world, process, (await create(process)).id)


async def test_new_agent_is_found_by_its_tools(world: World, process: Process) -> None:
    probe = world.tools.add("probe")
    agent = await process.lifecycle.create(ME, None, replace(DRAFT, enable_sleeptime=None, tool_ids=(probe.id,)))
    assert agent.tool("probe") == AttachedTool("probe", probe.id)
    found = await process.agents.list(ME, AgentFilter(links=((LinkKind.TOOL, probe.id),)), "created_at", ALL)
    assert [each.id for each in found.items] == [agent.id]


async def test_new_agent_can_have_the_tools_that_send_messages_to_agents(process: Process) -> None:
    draft = AgentDraft(AgentType.MEMGPT_V2, include_base_tools=False, include_multi_agent_tools=True)
    agent = await process.lifecycle.create(ME, None, draft)
    assert [tool.name for tool in agent.tools] == [
        "send_message_to_agent_and_wait_for_reply",
        "send_message_to_agent_async",
        "send_message_to_agents_matching_tags",
    ]
