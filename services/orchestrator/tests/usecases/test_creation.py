"""Agents are created completely or not at all, and deleted completely, whatever fails meanwhile."""

from dataclasses import replace
from typing import Any

import pytest
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import Internal, NotFound, Unavailable
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import EmbedderUnknown
from mnemesh_orchestrator.llm.errors import ModelUnknown
from mnemesh_orchestrator.model.agents import AgentFilter, AgentState, AgentType, AttachedTool
from mnemesh_orchestrator.model.creation import AgentDraft, ErasureScope
from mnemesh_orchestrator.model.rules import ContinueLoop, ExitLoop
from mnemesh_types.blocks import Block

from ..support.faults import Crash, Faults
from ..support.model import call, say
from ..support.world import ME, SYSTEM, Process, World

DRAFT = AgentDraft(
    AgentType.LETTA_V1,
    name="Ada's",
    system=SYSTEM,
    blocks=(Block(label="human", value="Ada."), Block(label="persona", value="A friend.", read_only=True)),
    tool_names=("probe",),
    tool_sources=('def shout(text: str):\n    """Shouts.\n\n    Args:\n        text: A text.\n    """',),
    tags=("b", "a", "b"),
)


def key(request_id: str = "r-1", fingerprint: str = "f") -> RequestKey:
    return RequestKey(ME.organization_id, "CreateAgent", request_id, fingerprint)


async def nobody_is_there(process: Process) -> None:
    assert await process.agents.count(ME, AgentFilter()) == 0
    assert await process.stores.agents.list_unfinished() == ()


async def test_agent_is_created_with_all_its_parts(world: World, process: Process) -> None:
    probe = world.tools.add("probe")
    agent = await process.lifecycle.create(ME, key(), DRAFT)
    assert agent == await process.agents.get(ME, agent.id)
    assert (agent.state, agent.name, agent.tags, agent.model) == (
        AgentState.ACTIVE,
        "Ada's",
        ("b", "a"),
        "scripted/one",
    )
    assert agent.tool("probe") == AttachedTool("probe", probe.id)
    assert {tool.name for tool in agent.tools if not tool.builtin} == {"probe", "shout"}
    assert {tool.name for tool in agent.tools if tool.builtin} == {
        "conversation_search", "archival_memory_insert", "archival_memory_search", "memory_replace", "memory_insert",
    }  # fmt: skip
    assert (agent.provenance.created_by_id, agent.provenance.last_updated_by_id) == (ME.subject_id, ME.subject_id)
    text = world.window(agent).messages[0].text
    assert text.startswith("You are a test.\n<memory_blocks>")
    assert "Ada." in text
    assert "A friend." in text
    assert "- read_only=true" in text
    assert f"- AGENT_ID: {agent.id}\n- CONVERSATION_ID: default\n" in text
    assert "- System prompt last recompiled: January 01, 2026" in text


async def test_repeated_creation_returns_the_same_agent(world: World, process: Process) -> None:
    world.tools.add("probe")
    first = await process.lifecycle.create(ME, key(), DRAFT)
    await process.agents.update(ME, None, first.id, {"name": "Changed"})
    again = await process.lifecycle.create(ME, key(), DRAFT)
    assert (again.id, again.name) == (first.id, "Changed")
    assert len(world.recall.windows) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool_names": ("nobody_wrote_it",)},
        {"tool_ids": (new_id("tool"),)},
        {"block_ids": (new_id("block"),)},
    ],
    ids=lambda value: next(iter(value)),
)
async def test_missing_resource_undoes_the_creation(world: World, process: Process, wrong: dict[str, Any]) -> None:
    world.tools.add("probe")
    with pytest.raises(NotFound) as raised:
        await process.lifecycle.create(ME, key(), replace(DRAFT, **wrong))
    assert raised.value.metadata["resource_id"] == next(iter(wrong.values()))[0]
    await nobody_is_there(process)
    assert world.recall.windows == {}
    assert world.blocks.held == {}
    assert len(world.blocks.erased) == len(world.recall.erased) == len(world.archival.erased) == 1
    # The key is free again, so that the client may correct itself.
    assert (await process.lifecycle.create(ME, key(fingerprint="corrected"), DRAFT)).name == "Ada's"


async def test_unknown_model_leaves_nothing(world: World, process: Process) -> None:
    with pytest.raises(ModelUnknown):
        await process.lifecycle.create(ME, key(), replace(DRAFT, model="gone/model"))
    await nobody_is_there(process)


async def test_refusal_is_returned_although_the_undo_is_delayed_by_an_outage(world: World, process: Process) -> None:
    world.faults.unavailable = {"archival.erase_agent": 1}
    with pytest.raises(NotFound):
        await process.lifecycle.create(ME, key(), DRAFT)
    assert await process.agents.count(ME, AgentFilter()) == 0
    assert [agent.state for agent, _ in await process.stores.agents.list_unfinished()] == [AgentState.DELETING]
    await process.lifecycle.finish_all()
    await nobody_is_there(process)


TIERS = ["tools.definitions", "tools.upsert_source", "blocks.create_core_memory", "recall.create_context"]


@pytest.mark.parametrize("call", [*TIERS, "agents.activate"])
async def test_creation_during_an_outage_continues_with_its_repeat(world: World, process: Process, call: str) -> None:
    world.tools.add("probe")
    world.faults.unavailable = {call: 1}
    with pytest.raises(Unavailable):
        await process.lifecycle.create(ME, key(), DRAFT)
    assert await process.agents.count(ME, AgentFilter()) == 0
    world.clock.advance(86_400)
    agent = await process.lifecycle.create(ME, key(), DRAFT)
    assert [found.id for found, _ in await process.stores.agents.list_unfinished()] == []
    assert [block.label for block in world.blocks.blocks.values()] == ["human", "persona"]
    assert len(world.recall.rows[agent.id]) == 1


@pytest.mark.parametrize("call", [*TIERS, "agents.activate"])
async def test_effect_with_a_lost_response_is_not_repeated(world: World, process: Process, call: str) -> None:
    world.tools.add("probe")
    world.faults.lost = {call: 1}
    with pytest.raises(Exception, match="too slow"):
        await process.lifecycle.create(ME, key(), DRAFT)
    shared = world.blocks.blocks
    for block in list(shared.values()):
        world.blocks.put(replace(block, value=block.value + " Changed in the meantime."))
    agent = await process.lifecycle.create(ME, key(), DRAFT)
    assert [block.label for block in world.blocks.blocks.values()] == ["human", "persona"]
    assert len(world.recall.rows[agent.id]) == 1
    assert agent.state is AgentState.ACTIVE


async def test_crash_at_any_point_leaves_nothing_incomplete(world: World) -> None:
    world.tools.add("probe")
    whole = world.process()
    await whole.lifecycle.create(ME, None, DRAFT)
    for point in range(whole.faults.points):
        faults = world.faults = Faults()
        faults.crashes_at = point
        dying = world.process()
        with pytest.raises(Crash):
            await dying.lifecycle.create(ME, key(f"r-{point}"), DRAFT)
        world.faults = Faults()
        process = world.process()
        world.clock.advance(61)
        before = await process.agents.count(ME, AgentFilter())
        await process.lifecycle.finish_all()
        assert await process.stores.agents.list_unfinished() == (), point
        agent = await process.lifecycle.create(ME, key(f"r-{point}"), DRAFT)
        assert await process.agents.count(ME, AgentFilter()) in (before, before + 1), point
        assert len(world.recall.rows[agent.id]) == 1, point
        assert len(world.blocks.held[agent.id]) == 2, point


async def test_sweeper_completes_old_creations_and_deletions(world: World, process: Process) -> None:
    world.tools.add("probe")
    world.faults.unavailable = {"recall.create_context": 1}
    with pytest.raises(Unavailable):
        await process.lifecycle.create(ME, None, DRAFT)
    await process.lifecycle.finish_all()
    assert await process.agents.count(ME, AgentFilter()) == 0
    world.clock.advance(61)
    await process.lifecycle.finish_all()
    assert await process.agents.count(ME, AgentFilter()) == 1


async def test_sweeper_continues_after_one_that_fails(world: World, process: Process) -> None:
    world.faults.unavailable = {"tools.": 1}
    with pytest.raises(Unavailable):
        await process.lifecycle.create(ME, None, DRAFT)
    world.faults.unavailable = {"recall.create_context": 1}
    with pytest.raises(Unavailable):
        await process.lifecycle.create(ME, None, replace(DRAFT, name="Bob's", tool_names=()))
    world.clock.advance(61)
    await process.lifecycle.finish_all()  # the tool of the first draft does not exist
    agents = (await process.agents.list(ME, AgentFilter(), "created_at", PageQuery(10, ascending=True))).items
    assert [agent.name for agent in agents] == ["Bob's"]
    assert await process.stores.agents.list_unfinished() == ()


async def test_creation_that_a_service_always_fails_is_undone(
    world: World, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal error of a service is retried for a limited time."""
    attempts: list[str] = []

    async def fail(request_id: str, source_code: str) -> None:
        attempts.append(source_code)
        raise Internal("Internal error.")

    world.tools.add("probe")
    monkeypatch.setattr(world.tools, "upsert_source", fail)
    with pytest.raises(Internal):
        await process.lifecycle.create(ME, key(), DRAFT)
    world.clock.advance(61)
    await process.lifecycle.finish_all()
    assert len(await process.stores.agents.list_unfinished()) == 1
    world.clock.advance(900)
    for _ in range(3):
        await process.lifecycle.finish_all()
    assert len(attempts) == 3
    await nobody_is_there(process)


async def test_agent_activated_by_a_concurrent_repeat_is_kept(world: World, process: Process) -> None:
    world.tools.add("probe")

    async def another_is_faster(name: str) -> None:
        if name == "agents.activate":
            world.faults.on_call = None
            created = await process.lifecycle.create(ME, key(), DRAFT)
            await process.agents.update(ME, None, created.id, {"name": "Changed"})

    world.faults.on_call = another_is_faster
    agent = await process.lifecycle.create(ME, key(), DRAFT)
    assert (agent.name, agent.state) == ("Changed", AgentState.ACTIVE)
    assert world.blocks.erased == []


async def test_each_type_has_its_tools_and_rules(world: World, process: Process) -> None:
    memgpt = await process.lifecycle.create(ME, None, AgentDraft(AgentType.MEMGPT))
    assert {tool.name for tool in memgpt.tools} == {
        "send_message", "conversation_search", "core_memory_append", "core_memory_replace", "memory",
        "memory_apply_patch",
    }  # fmt: skip
    assert ExitLoop("send_message") in memgpt.tool_rules
    assert ContinueLoop("conversation_search") in memgpt.tool_rules
    react = await process.lifecycle.create(ME, None, AgentDraft(AgentType.REACT))
    assert react.tools == ()
    assert not react.message_buffer_autoclear
    workflow = await process.lifecycle.create(ME, None, AgentDraft(AgentType.WORKFLOW, message_buffer_autoclear=False))
    assert workflow.message_buffer_autoclear
    sleeper = await process.lifecycle.create(ME, None, AgentDraft(AgentType.SLEEPTIME, include_base_tool_rules=None))
    assert ExitLoop("memory_finish_edits") in sleeper.tool_rules
    plain = await process.lifecycle.create(ME, None, AgentDraft(AgentType.LETTA_V1))
    assert plain.tool_rules == ()
    ruled = await process.lifecycle.create(ME, None, AgentDraft(AgentType.LETTA_V1, include_base_tool_rules=True))
    assert ContinueLoop("memory_insert") in ruled.tool_rules
    bare = await process.lifecycle.create(ME, None, AgentDraft(AgentType.MEMGPT_V2, include_base_tools=False))
    assert bare.tools == ()


async def test_deletion_erases_the_agent_in_every_service(world: World, process: Process) -> None:
    agent, other = await world.agent(process), await world.agent(process)
    world.model.follow(say("Hello."))
    await process.send(agent)
    await process.lifecycle.delete(Principal(new_id("org"), new_id("user")), agent.id)
    assert (await process.agents.get(ME, agent.id)).id == agent.id
    await process.lifecycle.delete(ME, agent.id)
    for erased in (world.blocks.erased, world.recall.erased, world.archival.erased):
        assert erased == [agent.id]
    with pytest.raises(NotFound):
        await process.agents.get(ME, agent.id)
    with pytest.raises(NotFound):
        await process.send(agent)
    assert (await process.agents.get(ME, other.id)).id == other.id
    await process.lifecycle.delete(ME, agent.id)
    await process.lifecycle.delete(ME, new_id("agent"))


@pytest.mark.parametrize("scope", [ErasureScope(), ErasureScope(unshared_blocks=True, unshared_archives=True)])
@pytest.mark.parametrize("interrupted", [False, True], ids=["at once", "later"])
async def test_deletion_keeps_resources_that_existed_before_the_agent(
    world: World, process: Process, scope: ErasureScope, *, interrupted: bool
) -> None:
    owner = await world.agent(process, blocks=(Block(label="rules", value="Be kind."),))
    await world.archival.insert("r-1", owner.id, "The team's passage.")
    (lent,), (archive,) = world.blocks.held[owner.id], world.archival.archives()
    agent = await world.agent(process, block_ids=(lent,), archive_ids=(archive.id,))
    await world.blocks.detach("r-2", owner.id, "rules")
    world.archival.take(owner.id, archive.id)
    if interrupted:
        world.faults.unavailable = {"blocks.erase_agent": 1}
        with pytest.raises(Unavailable):
            await process.lifecycle.delete(ME, agent.id, scope)
        await process.lifecycle.finish_all()
    else:
        erased = await process.lifecycle.delete(ME, agent.id, scope)
        kept = int(not scope.unshared_blocks)
        assert (erased.deleted_blocks, erased.detached_blocks, erased.archives) == (2 - kept, kept, 1 - kept)
    assert await process.stores.agents.list_unfinished() == ()
    assert list(world.blocks.blocks) == ([] if scope.unshared_blocks else [lent])
    assert [left.id for left in world.archival.archives()] == ([] if scope.unshared_archives else [archive.id])


async def test_own_archive_has_the_embedder_of_the_agent(world: World, process: Process) -> None:
    agent = await world.agent(process, embedder="mnemesh/wordllama-256")
    world.model.follow(call("archival_memory_insert", content="Tea."), say("Noted."))
    await process.send(agent)
    assert [archive.embedder for archive in world.archival.archives()] == ["mnemesh/wordllama-256"]
    await process.lifecycle.delete(ME, agent.id)
    assert world.archival.archives() == []


async def test_unknown_embedder_is_refused(world: World, process: Process) -> None:
    agent = await world.agent(process)
    for refused in (
        world.agent(process, embedder="nonsense/xyz"),
        process.agents.update(ME, None, agent.id, {"embedder": "mnemesh/none"}),
    ):
        with pytest.raises(EmbedderUnknown) as raised:
            await refused
        assert (raised.value.field, raised.value.reason) == ("agent.embedder", "EMBEDDER_UNKNOWN")
    assert await process.agents.count(ME, AgentFilter()) == 1


@pytest.mark.parametrize("tier", ["blocks", "recall", "archival"])
async def test_deletion_is_completed_after_an_outage(world: World, process: Process, tier: str) -> None:
    agent = await world.agent(process)
    world.faults.unavailable = {f"{tier}.erase_agent": 1}
    with pytest.raises(Unavailable):
        await process.lifecycle.delete(ME, agent.id)
    with pytest.raises(NotFound):
        await process.agents.get(ME, agent.id)
    await process.lifecycle.finish_all()
    assert await process.stores.agents.list_unfinished() == ()
    assert getattr(world, tier).erased == [agent.id]
