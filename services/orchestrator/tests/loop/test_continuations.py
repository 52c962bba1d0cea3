"""The continuation message that follows the returns of tools, for agents that have one."""

from pathlib import Path

import pytest
from mnemesh_kit.errors import InvalidArgument
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.rules import ExitLoop
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_orchestrator.prompt.assembly import NON_USER_MSG_PREFIX
from mnemesh_types.messages import Approve, Deny, Role
from msgspec import structs

from ..support.faults import Crash, Faults
from ..support.model import by_place, call, say, together
from ..support.world import ME, Process, World, crashed, kinds, lines, opened, require_valid

TEXT = "All tools finished. Continue."
SCRIPT = (
    together(call("archival_memory_insert", content="one"), call("archival_memory_insert", content="two")),
    call("memory_replace", label="human", old_str="Nothing yet.", new_str="Ada"),
    say("Done."),
)


def shape(world: World, agent: Agent) -> list[str]:
    """Returns the roles of the window after the system message, with events by their kind."""
    return ["heartbeat" if message.is_event else message.role.value for message in world.turn(agent)]


async def test_continuation_follows_the_returns_of_each_step_but_the_last(world: World, process: Process) -> None:
    agent = await world.agent(process, continuation_message=TEXT)
    world.model.follow(*SCRIPT)
    calls = len(world.faults.calls)
    events = await process.send(agent)
    assert shape(world, agent) == ["user", *["assistant", "tool", "heartbeat"] * 2, "assistant"]
    received = world.turn(agent)[3]
    assert received.role is Role.USER
    assert NON_USER_MSG_PREFIX + TEXT in received.text
    assert received.step_id == world.turn(agent)[2].step_id
    assert kinds(events) == [
        *["tool_call", "tool_return", "tool_return"],
        *["tool_call", "tool_return"],
        *["assistant", "StopEvent", "UsageEvent"],
    ]
    assert [request.messages[-1].text for request in world.model.requests[1:]] == [
        message.text for message in world.turn(agent) if message.is_event
    ]
    assert world.faults.calls[calls:].count("recall.commit_step") == 3, "with the commit of its step"


async def test_no_continuation_without_the_setting(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(*SCRIPT)
    await process.send(agent)
    assert shape(world, agent) == ["user", *["assistant", "tool"] * 2, "assistant"]


@pytest.mark.parametrize(
    ("rules", "config", "stop"),
    [((ExitLoop("archival_memory_insert"),), {}, StopReason.TOOL_RULE), ((), {"max_steps": 1}, StopReason.MAX_STEPS)],
    ids=["terminal tool", "last step"],
)
async def test_no_continuation_after_the_last_step(
    world: World, process: Process, rules: tuple[ExitLoop, ...], config: dict[str, int], stop: StopReason
) -> None:
    agent = await world.agent(process, continuation_message=TEXT, tool_rules=rules, include_base_tool_rules=False)
    world.model.follow(SCRIPT[0])
    await process.send(agent, **config)
    assert shape(world, agent) == ["user", "assistant", "tool"]
    assert (await process.outcome(agent)).stop_reason is stop


@pytest.mark.parametrize("decision", [Approve(""), Deny("", "not now")])
async def test_continuation_follows_a_decided_approval(
    world: World, process: Process, decision: Approve | Deny
) -> None:
    agent = await world.agent(process, continuation_message=TEXT)
    agent = await process.agents.set_tool_approval(ME, None, agent.id, "archival_memory_insert", requires=True)
    world.model.follow(call("archival_memory_insert", content="one"), say("Done."))
    await process.send(agent)
    assert shape(world, agent) == ["user", "assistant", "approval"], "a request is followed by nothing"
    tool_call = world.turn(agent)[1].tool_calls[0]
    await process.answer(agent, structs.replace(decision, tool_call_id=tool_call.id))
    assert shape(world, agent)[3:] == ["approval", "tool", "heartbeat", "assistant"]
    require_valid(world.window(agent).messages)


async def test_agent_types_with_heartbeats_refuse_a_continuation(world: World, process: Process) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await world.agent(process, AgentType.MEMGPT_V2, continuation_message=TEXT)
    assert refused.value.field == "agent.continuation_message"
    agent = await world.agent(process, AgentType.MEMGPT_V2)
    with pytest.raises(InvalidArgument):
        await process.agents.update(ME, None, agent.id, {"continuation_message": TEXT})
    assert (await process.agents.get(ME, agent.id)).continuation_message is None


async def test_turn_with_a_continuation_survives_a_crash_at_every_point(tmp_path: Path, is_full: bool) -> None:
    async with opened(tmp_path) as world:
        world.model.script = by_place(*SCRIPT)
        whole, point = 1, 0
        while point < whole:
            world.faults = Faults()
            agent = await world.agent(world.process(), continuation_message=TEXT, include_base_tool_rules=False)
            world.faults = faults = Faults()
            faults.crashes_at = point if point else None
            first = world.process()
            stored = True
            try:
                await first.send(agent)
            except Crash:
                stored = False
            await crashed(first)
            world.faults = Faults()
            await (again := world.process()).recover()
            if point == 0:
                whole = faults.points
                expected = lines(world.turn(agent))
                assert shape(world, agent).count("heartbeat") == 2
                assert whole > 20
            elif stored or world.turn(agent):
                texts = [line for line in lines(world.turn(agent)) if "heartbeat" not in line]
                assert texts == [line for line in expected if "heartbeat" not in line], point
                assert shape(world, agent) == ["user", *["assistant", "tool", "heartbeat"] * 2, "assistant"], point
                require_valid(world.window(agent).messages)
                assert len(world.recall.rows[agent.id]) == len(world.window(agent).messages), point
                assert (await again.outcome(agent)).stop_reason is StopReason.END_TURN, point
            point += 2 if is_full else 16  # after a call is the same as before the next one
