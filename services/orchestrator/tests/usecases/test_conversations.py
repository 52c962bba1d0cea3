"""Conversations: created completely or not at all, with separate windows and the shared memory of their agent."""

import asyncio
from dataclasses import replace

import pytest
from mnemesh_kit.errors import FailedPrecondition, MnemeshError, NotFound, RequestIdReused, Unavailable
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import ConversationBusy
from mnemesh_orchestrator.llm.errors import ModelUnknown
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.conversations import Conversation, ConversationDraft, ConversationFilter
from mnemesh_orchestrator.model.inputs import OnBusy
from mnemesh_types.agents import ModelSettings
from mnemesh_types.blocks import Block
from mnemesh_types.messages import Role

from ..support.faults import Crash, Faults
from ..support.model import Held, call, say
from ..support.world import ME, Process, World, crashed, kinds, lines

ALL = PageQuery(100, ascending=True)


def key(method: str = "CreateConversation", request_id: str = "r-1", fingerprint: str = "f") -> RequestKey:
    return RequestKey(ME.organization_id, method, request_id, fingerprint)


async def opened(process: Process, agent: Agent, **draft: object) -> Conversation:
    return await process.conversations.create(ME, None, ConversationDraft(agent.id, **draft))  # type: ignore[arg-type]


async def threads(process: Process, agent: Agent) -> list[Conversation]:
    """Returns the conversations of the agent except the default one."""
    page = await process.conversations.list(ME, ConversationFilter(agent_id=agent.id), "created_at", ALL)
    return [found for found in page.items if not found.is_default]


async def test_new_conversation_contains_only_its_system_message(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Hello."))
    await process.send(agent)
    block = world.blocks.blocks[world.blocks.held[agent.id][0]]
    world.blocks.put(replace(block, value="Ada"))
    thread = await opened(process, agent, summary="Tea")
    (system,) = world.recall.window(thread.id).messages
    assert system.role is Role.SYSTEM
    assert "Ada" in system.text
    assert "2 previous messages between you and the user" in system.text
    assert system.id != world.window(agent).messages[0].id
    assert await process.conversations.get(ME, thread.id) == thread
    assert (thread.is_default, thread.summary, thread.last_message_at) == (False, "Tea", None)
    assert await process.conversations.message_ids(ME, thread.id) == (system.id,)


async def test_each_conversation_has_its_own_window(world: World, process: Process) -> None:
    agent = await world.agent(process)
    thread = await opened(process, agent)
    world.model.follow(say("Here."), say("There."))
    await process.send(agent, "Where?", to=thread.id)
    assert lines(world.recall.window(thread.id).messages[1:]) == ["user text: Where?", "assistant text: Here."]
    assert world.turn(agent) == ()
    spoken = await process.outcome(agent)
    assert (await process.conversations.get(ME, thread.id)).last_message_at == spoken.completed_at
    await process.send(agent, "And here?")
    assert [message.text for message in world.model.last.messages[1:]] == ["And here?"]
    await process.windows.reset(ME, None, agent.id, thread.id, add_default=False)
    assert len(world.recall.window(thread.id).messages) == 1
    assert len(world.turn(agent)) == 2
    assert len(world.recall.rows[agent.id]) == 6


async def test_two_conversations_run_in_parallel_and_share_blocks(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.LETTA_V1)
    thread = await opened(process, agent)
    slow = Held(say("Slow."))
    world.model.follow(slow)
    first = await process.start(agent, "Slowly")
    await slow.asked.wait()
    world.model.follow(call("memory_insert", label="human", new_str="Ada"), say("Noted."))
    events = await process.send(agent, "I am Ada.", to=thread.id)
    assert "assistant" in kinds(events)
    assert not (await process.runs.get(ME, first.id)).status.ended
    slow.released.set()
    await process.follow(first)
    world.model.follow(say("Ada."))
    await process.send(agent, "Who am I?")
    assert "Ada" in world.model.last.messages[0].text


async def test_model_and_settings_of_a_conversation_override_those_of_the_agent(world: World, process: Process) -> None:
    agent = await world.agent(process, model_settings=ModelSettings(temperature=0.1, top_p=0.5))
    given = ModelSettings(temperature=0.9, context_window=9_000)
    thread = await opened(process, agent, model="anthropic/two", model_settings=given)
    world.model.follow(say("Hello."), say("Hello."))
    await process.send(agent, to=thread.id)
    request = world.model.last
    assert request.model.handle == "anthropic/two"
    assert (request.settings.temperature, request.settings.top_p, request.settings.context_window) == (0.9, 0.5, 9_000)
    settings = process.agents.effective_settings(agent, thread)
    assert (await process.windows.report(ME, agent, thread, settings)).size == 9_000
    await process.send(agent)
    assert (world.model.last.model.handle, world.model.last.settings.temperature) == ("scripted/one", 0.1)
    with pytest.raises(ModelUnknown):
        await opened(process, agent, model="nobody/knows")
    with pytest.raises(ModelUnknown):
        await process.conversations.update(ME, None, thread.id, {"model": "nobody/knows"})


async def test_fork_shares_messages_and_has_its_own_system_message(world: World, process: Process) -> None:
    agent = await world.agent(process)
    source = await opened(process, agent, summary="Tea", model_settings=ModelSettings(temperature=0.9))
    world.model.follow(say("One."), say("Two."), say("Three."))
    await process.send(agent, "1", to=source.id)
    await process.send(agent, "2", to=source.id)
    before = world.recall.window(source.id)
    fork = await process.conversations.fork(ME, key("ForkConversation"), source.id, None, None)
    again = await process.conversations.fork(ME, key("ForkConversation"), source.id, None, None)
    assert again == fork
    shown = world.recall.window(fork.id).messages
    assert shown[1:] == before.messages[1:]
    assert shown[0].id != before.messages[0].id
    assert (fork.forked_from_id, fork.summary, fork.model_settings) == (source.id, "Tea", source.model_settings)
    assert fork.last_message_at == before.messages[-1].created_at
    assert world.recall.window(source.id).messages == before.messages
    await process.send(agent, "3", to=fork.id)
    assert len(world.recall.window(fork.id).messages) == 7
    assert world.recall.window(source.id).messages == before.messages
    short = await process.conversations.fork(ME, None, source.id, before.messages[2].id, "Short")
    assert lines(world.recall.window(short.id).messages[1:]) == ["user text: 1", "assistant text: One."]
    assert short.summary == "Short"


async def test_refused_fork_leaves_nothing_and_releases_its_request_id(world: World, process: Process) -> None:
    agent = await world.agent(process)
    request = key("ForkConversation")
    with pytest.raises(NotFound):
        await process.conversations.fork(ME, request, agent.default_conversation_id, new_id("message"), None)
    assert await threads(process, agent) == []
    assert len(world.recall.windows) == 1
    world.model.follow(held := Held(say("Hello.")))
    run = await process.start(agent)
    await held.asked.wait()
    with pytest.raises(ConversationBusy) as raised:
        await process.conversations.fork(ME, request, agent.default_conversation_id, None, None, OnBusy.REJECT)
    assert raised.value.metadata["run_id"] == run.id
    held.released.set()
    await process.follow(run)
    await process.conversations.fork(ME, request, agent.default_conversation_id, None, None)
    assert len(await threads(process, agent)) == 1


async def test_creation_takes_place_once_for_each_request(world: World, process: Process) -> None:
    agent = await world.agent(process)
    draft = ConversationDraft(agent.id)
    created = await asyncio.gather(*(process.conversations.create(ME, key(), draft) for _ in range(4)))
    assert {thread.id for thread in created} == {created[0].id}
    assert len(world.recall.windows) == 2
    with pytest.raises(RequestIdReused):
        await process.conversations.create(ME, key(fingerprint="other"), draft)
    with pytest.raises(NotFound):
        await process.conversations.create(ME, None, ConversationDraft(new_id("agent")))


@pytest.mark.parametrize("lost", [True, False], ids=["answer-lost", "unavailable"])
async def test_creation_during_an_outage_is_completed_by_its_repeat(
    world: World, process: Process, *, lost: bool
) -> None:
    agent = await world.agent(process)
    fault = {"recall.create_context": 1}
    world.faults.lost, world.faults.unavailable = (fault, {}) if lost else ({}, fault)
    with pytest.raises(Exception, match=r"too slow|unavailable"):
        await process.conversations.create(ME, key(), ConversationDraft(agent.id))
    assert await threads(process, agent) == []
    block = world.blocks.blocks[world.blocks.held[agent.id][0]]
    world.blocks.put(replace(block, value="Changed in the meantime."))
    thread = await process.conversations.create(ME, key(), ConversationDraft(agent.id))
    assert await threads(process, agent) == [thread]
    assert len(world.recall.window(thread.id).messages) == 1


@pytest.mark.parametrize("forks", [False, True], ids=["new", "fork"])
async def test_crash_at_any_point_leaves_nothing_incomplete(world: World, *, forks: bool) -> None:
    agent = await world.agent(world.process())

    async def make(process: Process, request_id: str) -> Conversation:
        if forks:
            request = key("ForkConversation", request_id)
            return await process.conversations.fork(ME, request, agent.default_conversation_id, None, None)
        return await process.conversations.create(ME, key(request_id=request_id), ConversationDraft(agent.id))

    world.faults = Faults()
    await make(whole := world.process(), "r")
    assert whole.faults.points > 8
    for point in range(whole.faults.points):
        world.faults = Faults()
        world.faults.crashes_at = point
        with pytest.raises(Crash):
            await make(world.process(), f"r-{point}")
        world.faults = Faults()
        process = world.process()
        world.clock.advance(61)
        before = len(await threads(process, agent))
        await process.conversations.finish_all()
        thread = await make(process, f"r-{point}")
        assert len(await threads(process, agent)) in (before, before + 1), point
        assert len(world.recall.windows) == len(await threads(process, agent)) + 1, point
        assert await process.conversations.message_ids(ME, thread.id), point


async def test_deletion_of_a_conversation_deletes_only_its_window(world: World, process: Process) -> None:
    agent = await world.agent(process)
    thread = await opened(process, agent)
    world.model.follow(say("Hello."))
    await process.send(agent, "Remember", to=thread.id)
    fork = await process.conversations.fork(ME, None, thread.id, None, None)
    await process.conversations.delete(ME, key("DeleteConversation"), thread.id)
    await process.conversations.delete(ME, key("DeleteConversation"), thread.id)
    assert thread.id not in world.recall.windows
    assert lines(world.recall.window(fork.id).messages[1:]) == ["user text: Remember", "assistant text: Hello."]
    for gone in (
        process.conversations.get(ME, thread.id),
        process.conversations.delete(ME, None, thread.id),
        process.conversations.fork(ME, None, thread.id, None, None),
        process.windows.resolve(ME, agent.id, thread.id),
        process.start(agent, to=thread.id),
    ):
        with pytest.raises(NotFound):
            await gone
    with pytest.raises(FailedPrecondition):
        await process.conversations.delete(ME, None, agent.default_conversation_id)


async def test_busy_conversation_is_not_deleted(world: World, process: Process) -> None:
    agent = await world.agent(process)
    thread = await opened(process, agent)
    world.model.follow(held := Held(say("Hello.")))
    run = await process.start(agent, to=thread.id)
    await held.asked.wait()
    with pytest.raises(ConversationBusy):
        await process.conversations.delete(ME, None, thread.id)
    held.released.set()
    await process.follow(run)
    await process.conversations.delete(ME, None, thread.id)
    assert (await process.runs.get(ME, run.id)).status.ended, "its runs stay on record"


async def test_interrupted_deletion_is_completed(world: World, process: Process) -> None:
    agent = await world.agent(process)
    one, other = await opened(process, agent), await opened(process, agent)
    world.faults.unavailable = {"recall.delete_context": 2}
    for thread in (one, other):
        with pytest.raises(Unavailable):
            await process.conversations.delete(ME, key("DeleteConversation", thread.id), thread.id)
    assert await threads(process, agent) == []
    await process.conversations.delete(ME, key("DeleteConversation", one.id), one.id)
    await process.conversations.finish_all()
    assert list(world.recall.windows) == [agent.default_conversation_id]


async def test_runs_of_all_conversations_are_resumed_after_a_crash(world: World) -> None:
    process = world.process()
    agent = await world.agent(process)
    thread = await opened(process, agent)
    world.model.follow(held := Held(say("Hello.")), say("Hello again."))
    run = await process.start(agent, to=thread.id)
    await held.asked.wait()
    process.faults.has_crashed = True
    held.released.set()
    await crashed(process)
    world.faults = Faults()
    after = world.process()
    await after.recover()
    assert (await after.runs.get(ME, run.id)).conversation_id == thread.id
    assert lines(world.recall.window(thread.id).messages[1:]) == ["user text: Hello", "assistant text: Hello again."]


async def test_conversation_is_not_found_for_another_agent(world: World, process: Process) -> None:
    agent, other = await world.agent(process), await world.agent(process)
    thread = await opened(process, agent)
    with pytest.raises(NotFound):
        await process.windows.resolve(ME, other.id, thread.id)
    with pytest.raises(NotFound):
        await process.start(other, to=thread.id)
    await process.lifecycle.delete(ME, agent.id)
    with pytest.raises(NotFound):
        await process.conversations.get(ME, thread.id)
    assert list(world.recall.windows) == [other.default_conversation_id]


async def test_edits_of_isolated_blocks_do_not_leak(world: World, process: Process) -> None:
    agent = await world.agent(
        process, blocks=(Block(label="human", value="Nothing yet."), Block(label="task", value="None."))
    )
    thread = await opened(process, agent, isolated_block_labels=("task",))
    assert thread.isolated_block_ids == tuple(world.blocks.held[thread.id])
    world.model.follow(
        call("memory_replace", label="task", old_str="None.", new_str="Write."),
        call("memory_replace", label="human", old_str="Nothing yet.", new_str="Ada"),
        say("Done."),
    )
    await process.send(agent, to=thread.id)
    shown = world.recall.window(thread.id).messages[0].text
    assert "Write." in shown
    assert "Ada" in shown
    world.model.follow(say("Hello."))
    await process.send(agent)
    shared = world.window(agent).messages[0].text
    assert "Write." not in shared
    assert "Ada" in shared
    fork = await process.conversations.fork(ME, None, thread.id, None, None)
    assert "Write." in world.recall.window(fork.id).messages[0].text
    assert not {*fork.isolated_block_ids} & {*thread.isolated_block_ids}


@pytest.mark.parametrize(
    "command",
    [
        {"command": "delete", "path": "/memories/task"},
        {"command": "rename", "old_path": "/memories/task", "new_path": "/memories/plan"},
        {"command": "rename", "old_path": "/memories/human", "new_path": "/memories/task"},
    ],
    ids=["delete", "rename", "rename-to"],
)
async def test_isolated_block_is_neither_renamed_nor_deleted(
    world: World, process: Process, command: dict[str, str]
) -> None:
    blocks = (Block(label="human", value="Nothing yet."), Block(label="task", value="None."))
    agent = await world.agent(process, AgentType.MEMGPT, blocks=blocks)
    thread = await opened(process, agent, isolated_block_labels=("task",))
    held = {holder: list(ids) for holder, ids in world.blocks.held.items()}
    world.model.follow(call("memory", **command, request_heartbeat=True), call("send_message", message="No."))
    await process.send(agent, to=thread.id)
    returned = next(message for message in world.recall.window(thread.id).messages if message.tool_returns)
    assert "belongs to this conversation" in returned.tool_returns[0].text
    assert world.blocks.held == held


async def test_isolated_blocks_are_deleted_with_their_conversation(world: World, process: Process) -> None:
    agent = await world.agent(process)
    thread = await opened(process, agent, isolated_block_labels=("human",))
    assert thread.id in world.blocks.held
    await process.conversations.delete(ME, None, thread.id)
    assert thread.id not in world.blocks.held


async def test_unknown_isolated_label_leaves_nothing(world: World, process: Process) -> None:
    agent = await world.agent(process)
    with pytest.raises(MnemeshError) as refused:
        await opened(process, agent, isolated_block_labels=("unknown",))
    assert refused.value.reason == "BLOCK_LABEL_NOT_FOUND"
    assert await threads(process, agent) == []
