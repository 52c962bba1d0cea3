"""Approvals that are withdrawn, expire or are answered late: cancellation, reset, deletion, timeouts, outages."""

import asyncio

import pytest
from mnemesh_kit.errors import MnemeshError
from mnemesh_orchestrator.errors import NoPendingApproval
from mnemesh_orchestrator.model.conversations import ApprovalFilter, ConversationDraft
from mnemesh_orchestrator.model.events import StopEvent
from mnemesh_orchestrator.model.inputs import RunConfig
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import CancelOutcome, RunFilter, RunStatus, StopReason
from mnemesh_types.messages import ToolStatus

from ..support.model import Held, call, say, together
from ..support.world import ME, Process, World, lines, require_valid, told
from .gated import approve, asked, gated, pending, shown


@pytest.mark.parametrize("target", ["run", "conversation", "agent"])
async def test_cancellation_withdraws_the_approval_request(world: World, process: Process, target: str) -> None:
    agent = await gated(world, process)
    world.model.follow(
        together(call("memory_insert", label="human", new_str="x"), call("archival_memory_insert", content="one")),
        say("Hello."),
    )
    first = await process.send(agent, "Keep one.")
    run_id = first[0].run_id
    where = RunFilter(conversation_id=agent.default_conversation_id)
    if target == "agent":
        where = RunFilter(agent_ids=(agent.id,))
    world.clock.advance(1)
    outcomes = await process.approvals.cancel(ME, where, [run_id] if target == "run" else [])
    assert outcomes == {run_id: CancelOutcome.CANCELLED}
    require_valid(world.window(agent).messages)
    returned = world.turn(agent)[-1].tool_returns
    assert [item.status for item in returned] == [ToolStatus.ERROR, ToolStatus.ERROR]
    assert "cancelled" in returned[0].text
    shown = [(tool, status) for tool, status, _ in world.recall.interactions(agent.id)]
    assert shown == [("memory_insert", "ERROR"), ("archival_memory_insert", "DENIED")]
    assert world.turn(agent)[-1] in world.recall.rows[agent.id]
    assert await pending(process, agent) is None
    with pytest.raises(NoPendingApproval):
        await process.answer(agent, *approve(*asked(first)))
    assert await world.archival.texts(agent.id) == []
    assert world.blocks.value(agent.id, "human") == "Nothing yet."
    assert (await process.outcome(agent)).status is RunStatus.CANCELLED
    await process.send(agent, "Hello?")
    require_valid(world.model.last.messages)


async def test_reset_withdraws_the_approval_request(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("Hello."))
    first = await process.send(agent, "Keep one.")
    await process.windows.reset(ME, None, agent.id, agent.default_conversation_id, add_default=False)
    with pytest.raises(NoPendingApproval, match="withdrawn"):
        await process.answer(agent, *approve(*asked(first)))
    await process.send(agent, "Hello?")
    assert lines(world.turn(agent)) == ["user text: Hello?", "assistant text: Hello."]


async def test_conversation_and_agent_are_deleted_with_their_approval_requests(world: World, process: Process) -> None:
    agent = await gated(world, process)
    thread = await process.conversations.create(ME, None, ConversationDraft(agent.id))
    world.model.follow(call("archival_memory_insert", content="one"), call("archival_memory_insert", content="two"))
    await process.send(agent, "Keep one.", to=thread.id)
    first = await process.send(agent, "Keep two.")
    await process.conversations.delete(ME, None, thread.id)
    assert await pending(process, agent) == shown(first, "approval_request").message_id
    await process.lifecycle.delete(ME, agent.id)
    with pytest.raises(MnemeshError):
        await process.answer(agent, *approve(*asked(first)))
    assert await process.approvals._store.list_pending(ApprovalFilter()) == ()


async def test_fork_of_a_waiting_conversation_accepts_messages(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("In the fork."), say("Kept."))
    first = await process.send(agent, "Keep one.")
    fork = await process.conversations.fork(ME, None, agent.default_conversation_id, None, None)
    await process.send(agent, "Hello?", to=fork.id)
    require_valid(world.model.last.messages)
    require_valid(world.recall.window(fork.id).messages)
    await process.answer(agent, *approve(*asked(first)))
    require_valid(world.window(agent).messages)
    assert await world.archival.texts(agent.id) == ["one"]


async def test_unanswered_approval_is_denied_after_its_timeout(world: World) -> None:
    world.approval_timeout = 60
    process = world.process()
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("Nobody was there."))
    first = await process.send(agent, "Keep one.")
    world.clock.advance(59)
    await process.approvals.expire()
    assert await pending(process, agent) is not None
    await process.worker.stop()
    process = world.process()
    world.clock.advance(2)
    await asyncio.gather(process.approvals.expire(), process.approvals.expire())
    await process.idle()
    assert "Nobody answered in time." in world.turn(agent)[4].tool_returns[0].text
    assert lines(world.turn(agent))[-1] == "assistant text: Nobody was there."
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    with pytest.raises(NoPendingApproval):
        await process.answer(agent, *approve(*asked(first)))
    require_valid(world.window(agent).messages)
    await process.worker.stop()


@pytest.mark.parametrize(("server", "own", "expires"), [(0, 60, True), (60, 0, False), (60, 3_600, False)])
async def test_agent_has_its_own_approval_timeout(world: World, server: float, own: float, *, expires: bool) -> None:
    world.approval_timeout = server
    process = world.process()
    agent = await gated(world, process)
    await process.agents.update(ME, None, agent.id, {"approval_timeout_seconds": own})
    world.model.follow(call("archival_memory_insert", content="one"), say("Nobody was there."))
    await process.send(agent, "Keep one.")
    world.clock.advance(61)
    await process.approvals.expire()
    await process.idle()
    assert (await pending(process, agent) is None) is expires
    await process.worker.stop()


async def test_rule_requires_approval_of_certain_arguments_only(world: World, process: Process) -> None:
    schema = '{"properties": {"content": {"minLength": 10}}}'
    rules = (RequiresApproval("archival_memory_insert", schema),)
    agent = await world.agent(process, tool_rules=rules)
    long = call("archival_memory_insert", content="a long passage")
    world.model.follow(call("archival_memory_insert", content="short"), long, say("Both."))
    asked_for = await process.send(agent, "Keep both.")
    assert await world.archival.texts(agent.id) == ["short"]
    await process.answer(agent, *approve(*asked(asked_for)))
    assert await world.archival.texts(agent.id) == ["short", "a long passage"]
    await process.agents.set_tool_approval(ME, None, agent.id, "archival_memory_insert", requires=True)
    world.model.follow(call("archival_memory_insert", content="short too"))
    await process.send(agent, "And this.")
    assert await pending(process, agent) is not None


async def test_rule_for_certain_arguments_does_not_weaken_one_for_every_call(world: World, process: Process) -> None:
    certain = RequiresApproval("archival_memory_insert", '{"properties": {"content": {"minLength": 10}}}')
    agent = await world.agent(process, tool_rules=(certain, RequiresApproval("archival_memory_insert")))
    world.model.follow(call("archival_memory_insert", content="short"))
    await process.send(agent, "Keep this.")
    assert await pending(process, agent) is not None
    assert await world.archival.texts(agent.id) == []


async def test_cancelling_the_answering_run_leaves_a_return_for_each_call(world: World, process: Process) -> None:
    agent = await gated(world, process)
    calls = [call("archival_memory_insert", content=text) for text in ("one", "two")]
    world.model.follow(together(*calls), say("Hello."))
    first = await process.send(agent, "Keep both.")
    stuck, go = asyncio.Event(), asyncio.Event()

    async def hold(name: str) -> None:
        if name == "archival.insert" and await world.archival.texts(agent.id):
            stuck.set()
            await go.wait()

    process.faults.on_call = hold
    answering = asyncio.ensure_future(process.answer(agent, *approve(*asked(first))))
    await stuck.wait()
    outcomes = await process.approvals.cancel(ME, RunFilter(agent_ids=(agent.id,)), [])
    process.faults.on_call = None
    events = await answering
    assert list(outcomes.values()) == [CancelOutcome.CANCELLED]
    assert told(events)[-2] == StopEvent(StopReason.CANCELLED, RunStatus.CANCELLED)
    require_valid(world.window(agent).messages)
    assert [item.status.value for item in world.turn(agent)[-1].tool_returns] == ["success", "error"]
    again = await process.answer(agent, *approve(*asked(first)))
    assert told(again) == told(events)
    await process.send(agent, "Hello?")
    require_valid(world.model.last.messages)


async def test_unavailable_service_delays_the_answer(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("Kept."))
    first = await process.send(agent, "Keep one.")
    process.faults.unavailable = {"recall.": 3, "blocks.": 2, "archival.insert": 2}
    await process.answer(agent, *approve(*asked(first)))
    assert await world.archival.texts(agent.id) == ["one"]
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_approved_tool_that_was_deleted_meanwhile(world: World, process: Process) -> None:
    world.tools.add("launch", "launched", requires_approval=True)
    agent = await gated(world, process, tool_names=("launch",))
    world.model.follow(call("launch"), say("It is gone."))
    first = await process.send(agent, "Launch.")
    await process.agents.detach_tool(ME, None, agent.id, None, "launch")
    await process.answer(agent, *approve(*asked(first)))
    assert world.tools.executed == []
    assert "no tool launch any more" in world.turn(agent)[4].tool_returns[0].text


async def test_autoclear_keeps_an_approval_request(world: World, process: Process) -> None:
    agent = await gated(world, process, message_buffer_autoclear=True)
    world.model.follow(say("Hi."), call("archival_memory_insert", content="one"), say("Kept."), say("Anew."))
    await process.send(agent, "Hello")
    first = await process.send(agent, "Keep one.")
    await process.answer(agent, *approve(*asked(first)))
    require_valid(world.model.last.messages)
    assert lines(world.turn(agent))[0] == "user text: Keep one."
    assert lines(world.turn(agent))[-1] == "assistant text: Kept."
    await process.send(agent, "Again")
    assert lines(world.turn(agent)) == ["user text: Again", "assistant text: Anew."]


async def test_answering_run_keeps_the_config_of_the_requesting_run(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("Kept."), say("no"))
    first = await process.send(agent, "Keep one.", override_model="anthropic/other", max_steps=3)
    await process.answer(agent, *approve(*asked(first)))
    run = await process.outcome(agent)
    assert (run.config.override_model, run.config.max_steps) == ("anthropic/other", 3)
    world.model.follow(call("archival_memory_insert", content="two"), say("Kept."))
    first = await process.send(agent, "Keep two.", override_model="anthropic/other")
    await process.answer(agent, *approve(*asked(first)), config=RunConfig(max_steps=7))
    run = await process.outcome(agent)
    assert (run.config.override_model, run.config.max_steps) == (None, 7)


async def test_reset_withdraws_an_approval_that_other_runs_wait_for(world: World, process: Process) -> None:
    agent = await gated(world, process)
    held = Held(call("archival_memory_insert", content="one"))
    world.model.follow(held)
    await process.start(agent, "Keep one.")
    await held.asked.wait()
    waiting = await process.start(agent, "And then?")
    held.released.set()
    await process.idle()
    assert await pending(process, agent) is not None
    world.model.follow(say("This."))
    await process.windows.reset(ME, None, agent.id, agent.default_conversation_id, add_default=False)
    assert await pending(process, agent) is None
    await process.follow(waiting)
    assert lines(world.turn(agent)) == ["user text: And then?", "assistant text: This."]
