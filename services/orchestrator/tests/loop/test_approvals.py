"""Calls that need approval: requested, approved, denied, held, decided concurrently, withdrawn and timed out."""

import asyncio
from dataclasses import replace

import pytest
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import ApprovalMismatch, NoPendingApproval, PendingApproval
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.conversations import ConversationDraft, open_request
from mnemesh_orchestrator.model.events import Delta, StopEvent
from mnemesh_orchestrator.model.rules import ConstrainChildTools, RequiresApproval, RunFirst
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus, StopReason
from mnemesh_types.messages import Role, ToolStatus

from ..support.model import Held, call, say, together
from ..support.world import ME, Process, World, kinds, lines, require_valid, told
from .gated import DENIED, KEEP, approve, asked, deny, gated, pending, shown


async def test_gated_call_stops_the_run_with_an_approval_request(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"))
    events = await process.send(agent, "Keep one.")
    assert kinds(events) == ["approval_request", "StopEvent", "UsageEvent"]
    assert told(events)[-2] == StopEvent(StopReason.REQUIRES_APPROVAL, RunStatus.COMPLETED)
    run = await process.outcome(agent)
    assert (run.status, run.stop_reason) == (RunStatus.COMPLETED, StopReason.REQUIRES_APPROVAL)
    assert await world.archival.texts(agent.id) == []
    said, called, request = world.turn(agent)
    assert (said.role, called.role, request.role) == (Role.USER, Role.ASSISTANT, Role.APPROVAL)
    assert request.tool_calls == called.tool_calls
    body = shown(events, "approval_request")
    assert (body.message_id, body.tool_calls) == (request.id, request.tool_calls)
    assert await pending(process, agent) == request.id
    assert (await process.agents.get(ME, agent.id)).last_stop_reason == "requires_approval"
    window = open_request(world.window(agent).messages)
    assert window is not None
    assert (window.index, window.caller, window.calls) == (2, called, called.tool_calls)


async def test_approved_call_runs_and_the_turn_continues(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("Kept."))
    first = await process.send(agent, "Keep one.")
    events = await process.answer(agent, *approve(*asked(first)))
    assert kinds(events) == ["approval_response", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    assert shown(events, "approval_response").approval_request_id == shown(first, "approval_request").message_id
    assert await world.archival.texts(agent.id) == ["one"]
    assert [message.role.value for message in world.turn(agent)] == [
        "user",
        "assistant",
        "approval",
        "approval",
        "tool",
        "assistant",
    ]
    require_valid(world.window(agent).messages)
    require_valid(world.model.last.messages)
    run = await process.outcome(agent)
    assert run.id != events[0].run_id or run.status is RunStatus.COMPLETED
    assert (run.stop_reason, run.step_count) == (StopReason.END_TURN, 1)
    assert await pending(process, agent) is None
    assert open_request(world.window(agent).messages) is None


async def test_the_answer_to_a_background_run_keeps_its_tokens_for_who_comes_later(
    world: World, process: Process
) -> None:
    """It is in the background, too. One that answers a run that was not stores none."""
    agent = await gated(world, process)
    for is_background in (True, False):
        world.model.follow(call("archival_memory_insert", content="one"), say("Kept."))
        if is_background:
            first = await process.follow(await process.start(agent, "Keep one.", stream_tokens=True))
        else:
            first = await process.send(agent, "Keep one.", stream_tokens=True)
        await process.answer(agent, *approve(*asked(first)))
        run = await process.outcome(agent)
        assert run.background is is_background
        replayed = await process.follow(run, deltas=True)
        assert any(isinstance(event.body, Delta) for event in replayed) is is_background


async def test_denial_is_an_error_return_with_its_reason(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("All right."))
    first = await process.send(agent, "Keep one.")
    await process.answer(agent, *deny(*asked(first)))
    assert await world.archival.texts(agent.id) == []
    returned = world.turn(agent)[4].tool_returns[0]
    assert (returned.status, returned.text) == (ToolStatus.ERROR, DENIED)
    assert world.recall.interactions(agent.id) == [("archival_memory_insert", "DENIED", DENIED)]
    assert world.turn(agent)[4] in world.recall.rows[agent.id]
    assert lines(world.turn(agent))[-1] == "assistant text: All right."
    require_valid(world.window(agent).messages)


async def test_denial_returns_control_with_a_heartbeat(world: World, process: Process) -> None:
    agent = await gated(world, process, AgentType.MEMGPT_V2)
    world.model.follow(call("archival_memory_insert", content="one"), call("send_message", message="As you like."))
    since = len(world.window(agent).messages)
    first = await process.send(agent, "Keep one.")
    events = await process.answer(agent, *deny(*asked(first)))
    turn = world.turn(agent, since)
    assert turn[4].tool_returns[0].text == DENIED
    assert "Continuing: user denied request to call tool." in turn[5].text
    assert kinds(events) == ["approval_response", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


@pytest.mark.parametrize("heartbeat", [True, False])
async def test_approved_call_continues_with_the_requested_heartbeat(
    world: World, process: Process, heartbeat: bool
) -> None:
    agent = await gated(world, process, AgentType.MEMGPT_V2)
    world.model.follow(
        call("archival_memory_insert", content="one", request_heartbeat=heartbeat),
        call("send_message", message="Kept."),
    )
    since = len(world.window(agent).messages)
    first = await process.send(agent, "Keep one.")
    assert '"request_heartbeat"' not in shown(first, "approval_request").tool_calls[0].arguments
    await process.answer(agent, *approve(*asked(first)))
    assert await world.archival.texts(agent.id) == ["one"]
    assert len(world.model.requests) == (2 if heartbeat else 1)
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    require_valid(world.window(agent).messages)
    assert world.turn(agent, since)[4].tool_returns[0].status is ToolStatus.SUCCESS


async def test_ungated_calls_wait_and_run_in_order(world: World, process: Process) -> None:
    agent = await gated(world, process)
    script = together(
        call("memory_replace", label="human", old_str="Nothing yet.", new_str="Ada"),
        call("archival_memory_insert", content="one"),
        call("conversation_search", query="zebra"),
        call("archival_memory_insert", content="two"),
        text="Let me see.",
    )
    world.model.follow(script, say("Done."))
    first = await process.send(agent, "Do it all.")
    assert kinds(first) == ["assistant", "tool_call", "approval_request", "StopEvent", "UsageEvent"]
    assert [created.name for created in shown(first, "tool_call").tool_calls] == [
        "memory_replace",
        "conversation_search",
    ]
    ids = asked(first)
    assert len(ids) == 2
    assert world.blocks.value(agent.id, "human") == "Nothing yet."
    await process.answer(agent, *approve(ids[0]), *deny(ids[1]))
    assert world.blocks.value(agent.id, "human") == "Ada"
    assert await world.archival.texts(agent.id) == ["one"]
    _, called, request, _, returned, _ = world.turn(agent)
    assert [created.name for created in called.tool_calls] == [created.name for created in script.tool_calls]
    assert [item.tool_call_id for item in returned.tool_returns] == [created.id for created in called.tool_calls]
    assert [item.status.value for item in returned.tool_returns] == ["success", "success", "success", "error"]
    assert [created.id for created in request.tool_calls] == list(ids)
    require_valid(world.model.last.messages)


async def test_decisions_must_match_the_pending_calls(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(
        together(call("archival_memory_insert", content="one"), call("archival_memory_insert", content="two")),
        say("Done."),
    )
    one, two = asked(await process.send(agent, "Keep both."))
    for given in ([one], [one, two, "call_other"], [one, one], ["call_other"]):
        with pytest.raises(ApprovalMismatch) as raised:
            await process.answer(agent, *approve(*given))
        assert raised.value.metadata["expected"] == f"{one},{two}"
        assert raised.value.metadata["received"] == ",".join(given)
        assert f"Expected '['{one}', '{two}']'" in raised.value.message
    assert await pending(process, agent) is not None
    assert len((await process.runs.list(ME, RunFilter(), PageQuery(9, ascending=True))).items) == 1
    await process.answer(agent, *approve(two, one))
    assert await world.archival.texts(agent.id) == ["one", "two"]


async def test_message_is_refused_while_an_approval_is_pending(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"))
    first = await process.send(agent, "Keep one.")
    before = world.window(agent)
    for refused in (process.send(agent, "And now?"), process.start(agent, "And now?")):
        with pytest.raises(PendingApproval) as raised:
            await refused
        assert raised.value.metadata == {"approval_request_id": shown(first, "approval_request").message_id}
    assert world.window(agent).messages == before.messages
    assert len((await process.runs.list(ME, RunFilter(), PageQuery(9, ascending=True))).items) == 1


async def test_other_conversations_of_the_agent_continue(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("Here I am."))
    await process.send(agent, "Keep one.")
    fork = await process.conversations.create(ME, None, ConversationDraft(agent.id))
    assert kinds(await process.send(agent, "Hello?", to=fork.id))[0] == "assistant"


async def test_decision_without_an_approval_request_is_refused(world: World, process: Process) -> None:
    agent = await gated(world, process)
    with pytest.raises(NoPendingApproval, match="No tool call is currently awaiting approval"):
        await process.answer(agent, *approve("call_x"))
    world.model.follow(call("archival_memory_insert", content="one"))
    first = await process.send(agent, "Keep one.")
    with pytest.raises(NoPendingApproval):
        await process.answer(agent, *approve(*asked(first)), request="message-00000000-0000-4000-8000-000000000000")
    assert await pending(process, agent) is not None


@pytest.mark.parametrize("named", [True, False])
async def test_repeated_decision_returns_the_same_run(world: World, process: Process, named: bool) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("Kept."), say("Hello."))
    first = await process.send(agent, "Keep one.")
    request = shown(first, "approval_request").message_id if named else None
    events = await process.answer(agent, *approve(*asked(first)), request=request)
    await process.send(agent, "Hello")
    again = await process.answer(agent, *approve(*asked(first)), request=request)
    assert told(again) == told(events)
    assert again[0].run_id == events[0].run_id
    with pytest.raises(NoPendingApproval, match="decided differently"):
        await process.answer(agent, *deny(*asked(first)), request=request)
    assert await world.archival.texts(agent.id) == ["one"]


async def test_repeated_request_returns_the_same_run(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("Kept."))
    first = await process.send(agent, "Keep one.")
    key = RequestKey(ME.organization_id, "AnswerApproval", "r-1", "f")
    events = await process.answer(agent, *approve(*asked(first)), key=key)
    assert told(await process.answer(agent, *approve(*asked(first)), key=key)) == told(events)


async def test_one_of_many_concurrent_decisions_wins(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(call("archival_memory_insert", content="one"), say("So be it."))
    ids = asked(await process.send(agent, "Keep one."))
    answers = [approve(*ids) if place % 2 else deny(*ids, reason=str(place)) for place in range(12)]
    came = await asyncio.gather(*(process.answer(agent, *item) for item in answers), return_exceptions=True)
    won = {item[0].run_id for item in came if isinstance(item, list)}
    assert len(won) == 1
    assert all(isinstance(item, list | NoPendingApproval) for item in came)
    require_valid(world.window(agent).messages)
    assert len(world.model.requests) == 2
    assert len(await world.archival.texts(agent.id)) <= 1


async def test_further_messages_follow_the_tool_returns(world: World, process: Process) -> None:
    agent = await gated(world, process, AgentType.MEMGPT_V2)
    world.model.follow(call("archival_memory_insert", content="one"), call("send_message", message="Both."))
    since = len(world.window(agent).messages)
    first = await process.send(agent, "Keep one.")
    await process.answer(agent, *approve(*asked(first)), texts=["And say so."])
    turn = world.turn(agent, since)
    assert [message.role.value for message in turn[3:7]] == ["approval", "tool", "user", "assistant"]
    assert turn[5].text == "And say so."
    assert turn[6].tool_calls[0].name == "send_message"


async def test_queued_runs_wait_for_the_approval(world: World, process: Process) -> None:
    agent = await gated(world, process)
    held = Held(call("archival_memory_insert", content="one"))
    world.model.follow(held, say("Kept."), say("Second."))
    first = await process.start(agent, "Keep one.")
    await held.asked.wait()
    second = await process.start(agent, "And then?")
    held.released.set()
    await process.idle()
    await process.recover()
    assert (await process.runs.get(ME, second.id)).status is RunStatus.CREATED
    await process.answer(agent, *approve(*asked(await process.follow(first))))
    await process.idle()
    assert (await process.runs.get(ME, second.id)).status is RunStatus.COMPLETED
    assert [line for line in lines(world.turn(agent)) if "text" in line] == [
        "user text: Keep one.",
        "assistant text: Kept.",
        "user text: And then?",
        "assistant text: Second.",
    ]


async def test_setting_of_the_agent_overrides_rules_and_defaults(world: World, process: Process) -> None:
    world.tools.add("launch", "launched", requires_approval=True)
    agent = await gated(world, process, tool_names=("launch",))
    world.model.follow(
        call("launch"), say("Off."), call("archival_memory_insert", content="one"), say("Kept."), call("memory_insert")
    )
    first = await process.send(agent, "Launch.")
    assert asked(first)
    await process.answer(agent, *approve(*asked(first)))
    assert len(world.tools.executed) == 1
    await process.agents.set_tool_approval(ME, None, agent.id, "archival_memory_insert", requires=False)
    await process.send(agent, "Keep one.")
    assert await world.archival.texts(agent.id) == ["one"]
    await process.agents.set_tool_approval(ME, None, agent.id, "memory_insert", requires=True)
    agent = await process.agents.attach_tool(ME, None, agent.id, None, "memory_insert")
    assert agent.tool("memory_insert") is not None
    assert agent.tool("memory_insert").requires_approval is True  # type: ignore[union-attr]
    with pytest.raises(MnemeshError, match="no tool nothing"):
        await process.agents.set_tool_approval(ME, None, agent.id, "nothing", requires=True)


async def test_forbidden_or_invalid_call_is_refused_without_an_approval_request(world: World, process: Process) -> None:
    rules = (KEEP, RunFirst("conversation_search"))
    agent = await gated(world, process, tool_rules=rules)
    world.model.follow(
        call("archival_memory_insert", content="one"), call("conversation_search", query="x"), say("I may not.")
    )
    events = await process.send(agent, "Keep one.")
    assert "approval_request" not in kinds(events)
    assert "[ToolConstraintError]" in world.turn(agent)[2].tool_returns[0].text
    world.model.follow(call("conversation_search", query="x"), call("archival_memory_insert"), say("Hm."))
    assert "approval_request" not in kinds(await process.send(agent, "Keep it."))


async def test_rules_of_the_turn_continue_after_the_approval(world: World, process: Process) -> None:
    rules = (KEEP, ConstrainChildTools("archival_memory_insert", ("conversation_search",)))
    agent = await gated(world, process, tool_rules=rules)
    world.model.follow(
        call("archival_memory_insert", content="one"), call("conversation_search", query="x"), say("Done.")
    )
    first = await process.send(agent, "Keep one.")
    await process.answer(agent, *approve(*asked(first)))
    assert [tool.name for tool in world.model.requests[1].tools] == ["conversation_search"]
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_approval_rules_do_not_disable_parallel_calls(world: World, process: Process) -> None:
    world.settings = replace(world.settings, parallel_tool_calls=True)
    fresh = world.process()
    agent = await gated(world, fresh)
    world.model.follow(say("Hi."))
    await fresh.send(agent)
    assert world.model.last.parallel_tool_calls


async def test_text_of_an_approved_send_message_is_shown(world: World, process: Process) -> None:
    agent = await gated(world, process, AgentType.MEMGPT_V2, tool_rules=(RequiresApproval("send_message"),))
    world.model.follow(call("send_message", message="A secret."))
    first = await process.send(agent, "Tell me.", stream_tokens=True)
    assert "assistant" not in kinds(first)
    events = await process.answer(agent, *approve(*asked(first)))
    assert kinds(events) == ["approval_response", "assistant", "StopEvent", "UsageEvent"]
    assert "A secret." in str(shown(events, "assistant").content)


async def test_turn_may_request_approval_twice(world: World, process: Process) -> None:
    agent = await gated(world, process)
    world.model.follow(
        call("archival_memory_insert", content="one"), call("archival_memory_insert", content="two"), say("Both.")
    )
    first = await process.send(agent, "Keep both.")
    second = await process.answer(agent, *approve(*asked(first)))
    assert kinds(second) == ["approval_response", "tool_return", "approval_request", "StopEvent", "UsageEvent"]
    await process.answer(agent, *approve(*asked(second)))
    assert await world.archival.texts(agent.id) == ["one", "two"]
    require_valid(world.window(agent).messages)
