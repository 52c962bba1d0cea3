"""If an answering run fails before its calls ran, the next run or its retry executes the decision."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import MessageEvent, RunEvent
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunStatus, StopReason
from mnemesh_testkit.plugin import sampled
from mnemesh_types.messages import ApprovalDecision, Approve, Deny

from ..support.faults import Crash, Faults
from ..support.model import call, say, together
from ..support.world import ME, Process, World, crashed, lines, require_valid

GATED = ("archival_memory_insert", "launch")
FOR_EVER = 10_000


async def asked(world: World, process: Process, *answers: Any, **draft: Any) -> tuple[Agent, list[RunEvent]]:
    """Creates an agent that waits for the decision about these calls."""
    world.tools.add("launch", "launched")
    rules = tuple(RequiresApproval(name) for name in GATED)
    agent = await world.agent(process, include_base_tool_rules=False, tool_rules=rules, tool_names=("launch",), **draft)
    world.model.follow(together(*answers))
    return agent, await process.send(agent, "Do it.")


def approved(events: list[RunEvent]) -> list[ApprovalDecision]:
    request = next(e.body for e in events if isinstance(e.body, MessageEvent) and e.body.kind == "approval_request")
    return [Approve(created.id) for created in request.tool_calls]


async def failed(process: Process, agent: Agent, decisions: list[ApprovalDecision], *unavailable: str) -> Run:
    """Runs an answer while services are unavailable for longer than it waits."""
    process.faults.unavailable = dict.fromkeys(unavailable, FOR_EVER)
    await process.answer(agent, *decisions)
    process.faults.unavailable = {}
    run = await process.outcome(agent)
    assert run.status is RunStatus.FAILED
    return run


async def retried(process: Process, run: Run) -> Run:
    again = await process.runs.retry(ME, None, run.id)
    await process.follow(again)
    return await process.runs.get(ME, again.id)


def returns(world: World, agent: Agent) -> list[str]:
    return [line for line in lines(world.window(agent).messages) if line.startswith("tool ")]


@pytest.mark.parametrize(
    "unavailable", sampled(["archival.", "recall.get_context", "blocks.", "recall.commit_step"], 3)
)
async def test_next_run_executes_the_decision_before_its_own_input(
    world: World, process: Process, unavailable: str
) -> None:
    agent, events = await asked(world, process, call("launch"), call("archival_memory_insert", content="one"))
    if unavailable in ("recall.get_context", "blocks."):
        process = world.process()  # one that has not seen the window
    await failed(process, agent, approved(events), unavailable)
    world.model.follow(say("Kept, and hello."))
    await process.send(agent, "Hello?")
    assert await world.archival.texts(agent.id) == ["one"]
    assert [name for name, _ in world.tools.executed] == ["launch"]
    window = world.window(agent).messages
    require_valid(window)
    require_valid(world.model.last.messages)
    assert lines(window)[-4:] == [
        "tool success of launch: launched",
        "tool success of archival_memory_insert: ",
        "user text: Hello?",
        "assistant text: Kept, and hello.",
    ]
    assert len(world.model.requests) == 2


async def test_retry_executes_the_decision(world: World, process: Process) -> None:
    agent, events = await asked(world, process, call("launch"), call("archival_memory_insert", content="one"))
    run = await failed(process, agent, approved(events), "archival.")
    world.model.follow(say("Kept."))
    assert (await retried(process, run)).stop_reason is StopReason.END_TURN
    assert await world.archival.texts(agent.id) == ["one"]
    assert [name for name, _ in world.tools.executed] == ["launch"]
    require_valid(world.window(agent).messages)
    assert lines(world.window(agent).messages)[-1] == "assistant text: Kept."


async def test_decision_may_fail_more_than_once(world: World, process: Process) -> None:
    agent, events = await asked(world, process, call("launch"), call("archival_memory_insert", content="one"))
    await failed(process, agent, approved(events), "blocks.edit", "archival.")
    process.faults.unavailable = {"archival.": FOR_EVER}
    await process.send(agent, "Hello?")
    second = await process.outcome(agent)
    assert second.status is RunStatus.FAILED
    process.faults.unavailable = {}
    world.model.follow(say("Kept, and hello."))
    await retried(process, second)
    assert await world.archival.texts(agent.id) == ["one"]
    assert [name for name, _ in world.tools.executed] == ["launch"]
    require_valid(world.window(agent).messages)
    assert lines(world.window(agent).messages)[-2:] == ["user text: Hello?", "assistant text: Kept, and hello."]


async def test_denial_is_kept(world: World, process: Process) -> None:
    agent, events = await asked(world, process, call("launch"))
    denied = [Deny(item.tool_call_id, "not now") for item in approved(events)]
    await failed(process, agent, denied, "recall.commit_step")
    world.model.follow(say("All right."))
    await process.send(agent, "Hello?")
    assert returns(world, agent) == ["tool error of launch: Error: request to call tool denied. User reason: not now"]
    assert world.tools.executed == []


async def test_call_with_unknown_outcome_does_not_run_again(world: World) -> None:
    first = world.process()
    agent, events = await asked(world, first, call("archival_memory_insert", content="one"), call("launch"))

    async def die(name: str) -> None:
        if name == "tools.execute":
            world.faults.has_crashed = True

    world.faults.on_effect = die
    with suppress(Crash):
        await first.answer(agent, *approved(events))
    await crashed(first)
    assert len(world.tools.executed) == 1
    world.faults = Faults()
    world.faults.unavailable = {"blocks.": FOR_EVER}
    second = world.process()
    await second.recover()
    assert (await second.outcome(agent)).status is RunStatus.FAILED
    world.faults.unavailable = {}
    world.model.follow(say("I do not know."))
    await second.send(agent, "And?")
    assert len(world.tools.executed) == 1
    assert await world.archival.texts(agent.id) == ["one"]
    assert returns(world, agent)[-1] == f"tool error of launch: {INTERRUPTED}"
    require_valid(world.window(agent).messages)


async def test_autoclear_keeps_an_undone_decision(world: World, process: Process) -> None:
    agent, events = await asked(world, process, call("launch"), message_buffer_autoclear=True)
    await failed(process, agent, approved(events), "recall.commit_step")
    world.model.follow(say("Done."))
    await process.send(agent, "Hello?")
    assert returns(world, agent) == ["tool success of launch: launched"]
    require_valid(world.window(agent).messages)


async def test_decision_that_another_run_executed_is_not_retried(world: World, process: Process) -> None:
    agent, events = await asked(world, process, call("launch"))
    run = await failed(process, agent, approved(events), "recall.commit_step")
    world.model.follow(say("Done."), say("Nothing is left to do."))
    await process.send(agent, "Hello?")
    assert (await retried(process, run)).stop_reason is StopReason.END_TURN
    assert len(world.tools.executed) == 1
    require_valid(world.window(agent).messages)


async def test_reset_withdraws_an_undone_decision(world: World, process: Process) -> None:
    agent, events = await asked(world, process, call("launch"))
    run = await failed(process, agent, approved(events), "blocks.get")
    await process.windows.reset(ME, None, agent.id, agent.default_conversation_id, add_default=False)
    world.model.follow(say("I begin again."))
    await retried(process, run)
    assert world.tools.executed == []
    require_valid(world.window(agent).messages)


async def test_cancelling_the_run_that_takes_it_over_closes_it(world: World, process: Process) -> None:
    agent, events = await asked(world, process, call("launch"), call("archival_memory_insert", content="one"))
    await failed(process, agent, approved(events), "archival.")
    process.faults.unavailable = {"archival.": FOR_EVER}
    cancelling: list[asyncio.Task[Any]] = []

    async def cancel() -> None:
        world.on_wait = None  # what is closed then must not wait
        cancelling.append(asyncio.create_task(process.runs.cancel(ME, RunFilter(agent_ids=(agent.id,)), [])))
        await asyncio.Future()

    world.on_wait = cancel
    await process.send(agent, "Hello?")
    await cancelling[0]
    process.faults.unavailable = {}
    assert (await process.outcome(agent)).stop_reason is StopReason.CANCELLED
    require_valid(world.window(agent).messages)
    assert returns(world, agent) == [
        "tool success of launch: launched",
        "tool error of archival_memory_insert: The run was cancelled before this tool was run.",
    ]
