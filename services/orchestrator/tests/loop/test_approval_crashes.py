"""A crash at every point between an approval request and the end of its answer: nothing is lost or repeated."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.conversations import ApprovalFilter
from mnemesh_orchestrator.model.events import MessageEvent, RunEvent
from mnemesh_orchestrator.model.inputs import ClientTool, InputMessage, RunConfig
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import RunFilter, RunRequest, RunStatus, StopReason
from mnemesh_testkit.plugin import Sample
from mnemesh_types.messages import (
    ApprovalDecision,
    Approve,
    ClientReturn,
    Deny,
    Role,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)

from ..support.faults import Crash, Faults
from ..support.model import by_place, call, say, together
from ..support.world import ME, Process, World, crashed, each, kinds, lines, opened, require_valid

ALL = PageQuery(9, ascending=True)
RULES = (RequiresApproval("archival_memory_insert"),)
CLIENT = ClientTool("open_file", '{"type": "object", "properties": {}}')
PLAIN = (
    together(
        call("memory_replace", label="human", old_str="Nothing yet.", new_str="Ada"),
        call("archival_memory_insert", content="one"),
        call("open_file"),
        call("archival_memory_insert", content="never"),
    ),
    call("memory_insert", label="human", new_str="of London"),
    say("All done."),
)
HEARTBEATS = (
    together(
        call("memory_replace", label="human", old_str="Nothing yet.", new_str="Ada", request_heartbeat=True),
        call("archival_memory_insert", content="one", request_heartbeat=True),
        call("open_file", request_heartbeat=True),
        call("archival_memory_insert", content="never", request_heartbeat=True),
    ),
    call("memory_insert", label="human", new_str="of London", request_heartbeat=True),
    call("send_message", message="All done."),
)


def in_order(*answers: LlmAnswer) -> Callable[[LlmRequest], LlmAnswer]:
    """Returns the same answer at the same position after the task, however often the model is called."""

    def choose(request: LlmRequest) -> LlmAnswer:
        begin = [message.text for message in request.messages].index("Do it all.")
        return answers[sum(message.role is Role.ASSISTANT for message in request.messages[begin:])]

    return choose


def decide(calls: tuple[ToolCall, ...]) -> list[ApprovalDecision]:
    """Approves calls with "one", denies calls with "never", and returns results for the client."""
    created: list[ApprovalDecision] = []
    for item in calls:
        if item.name == "open_file":
            created.append(ClientReturn(item.id, ToolReturn.from_text(item.id, "", ToolStatus.SUCCESS, "hello")))
        elif "never" in item.arguments:
            created.append(Deny(item.id, "no"))
        else:
            created.append(Approve(item.id))
    return created


async def whole(process: Process, agent: Agent) -> None:
    """Sends a message and answers the approval request. The next process may repeat it."""
    key = RequestKey(ME.organization_id, "SendMessage", agent.id, "f")
    await said(process, agent, key)
    await answered(process, agent)


async def said(process: Process, agent: Agent, key: RequestKey) -> list[RunEvent]:
    config = RunConfig(client_tools=(CLIENT,))
    stream = process.runs.send(ME, key, RunRequest(agent.id, "", [InputMessage((TextPart("Do it all."),))], config))
    return [event async for event in each(stream)]


async def answered(process: Process, agent: Agent) -> None:
    """Answers the approval request that is or was pending, under one request id."""
    runs = (await process.runs.list(ME, RunFilter(agent_ids=(agent.id,)), ALL)).items
    shown = [event.body for event in await process.follow(runs[0]) if isinstance(event.body, MessageEvent)]
    request = next(body for body in shown if body.kind == "approval_request")
    key = RequestKey(ME.organization_id, "AnswerApproval", agent.id, "f")
    await process.answer(agent, *decide(request.tool_calls), key=key, texts=["And greet me."])


def transcript(world: World, agent: Agent) -> list[str]:
    return [re.sub(r'"time": "[^"]*"', "", line) for line in lines(world.window(agent).messages[1:])]


async def live(world: World, agent: Agent, point: int | None) -> None:
    """Runs a process that crashes at a point."""
    world.faults = Faults()
    world.faults.crashes_at = point
    process = world.process()
    with suppress(Crash):
        await whole(process, agent)
    await crashed(process)


async def require_effects(world: World, agent: Agent) -> None:
    assert await world.archival.texts(agent.id) == ["one"]
    assert world.blocks.value(agent.id, "human") == "Ada\nof London"
    assert len(world.blocks.effects) == len(set(world.blocks.effects)) == 2


@pytest.mark.parametrize(
    ("kind", "script"),
    [(AgentType.LETTA_V1, PLAIN), (AgentType.MEMGPT_V2, HEARTBEATS)],
    ids=["plain", "heartbeats"],
)
async def test_approval_and_its_answer_survive_a_crash_at_every_point(
    tmp_path: Path, kind: AgentType, script: tuple[Any, ...], sample: Sample
) -> None:
    async with opened(tmp_path) as world:
        world.model.script = in_order(*script)

        async def born() -> Agent:
            world.faults, world.model.requests = Faults(), []
            world.blocks.effects.clear()
            process = world.process()
            return await world.agent(process, kind, include_base_tool_rules=False, tool_rules=RULES)

        agent = await born()
        await live(world, agent, None)
        await require_effects(world, agent)
        points, expected = world.faults.points, transcript(world, agent)
        assert points > 60
        assert len(world.model.requests) == len(script)
        for point in sample(range(points), 16, 2):
            agent = await born()
            await live(world, agent, point)
            where = f"point {point}, {world.faults.calls[-3:]}"
            world.faults = Faults()
            second = world.process()
            await second.recover()
            # A client that hears nothing asks again under the same request ids.
            await whole(second, agent)
            assert transcript(world, agent) == expected, where
            require_valid(world.window(agent).messages)
            await require_effects(world, agent)
            runs = (await second.runs.list(ME, RunFilter(agent_ids=(agent.id,)), ALL)).items
            assert sorted(run.stop_reason or "" for run in runs) == ["end_turn", "requires_approval"], where
            assert all(run.status is RunStatus.COMPLETED for run in runs), where
            for run in runs:
                assert kinds(await second.follow(run))[-2:] == ["StopEvent", "UsageEvent"], where
            assert len(world.recall.rows[agent.id]) == len(world.window(agent).messages), where
            assert await second.approvals._store.list_pending(ApprovalFilter()) == (), where
            await second.worker.stop()


async def test_approved_and_started_custom_tool_does_not_run_again(world: World) -> None:
    world.tools.add("launch", "launched", requires_approval=True)
    first = world.process()
    agent = await world.agent(first, tool_names=("launch",))
    world.model.script = by_place(call("launch"), say("I do not know."))
    await first.send(agent, "Go.")
    await die_at(world, first, "tools.execute", lambda: _approve_all(first, agent))
    assert len(world.tools.executed) == 1
    world.faults = Faults()
    second = world.process()
    await second.recover()
    assert len(world.tools.executed) == 1
    assert world.turn(agent)[4].tool_returns[0].text == INTERRUPTED
    assert (await second.outcome(agent)).stop_reason is StopReason.END_TURN
    require_valid(world.window(agent).messages)


async def test_cancellation_continues_after_a_crash(world: World) -> None:
    for place in ("runs.start", "recall.commit_step", "runs.finish"):
        world.faults = Faults()
        first = world.process()
        agent = await world.agent(first, tool_rules=RULES)
        world.model.script = by_place(call("archival_memory_insert", content="one"), say("Hello."))
        run = (await first.send(agent, "Keep one."))[0].run_id
        await die_at(world, first, place, lambda: first.approvals.cancel(ME, RunFilter(), [run]))  # noqa: B023
        world.faults = Faults()
        second = world.process()
        await second.recover()
        require_valid(world.window(agent).messages)
        assert await second.approvals._store.list_pending(ApprovalFilter()) == ()
        assert await world.archival.texts(agent.id) == []
        assert sum(message.role is Role.TOOL for message in world.turn(agent)) == 1
        await second.worker.stop()


async def _approve_all(process: Process, agent: Agent) -> None:
    waiting = (await process.approvals._store.list_pending(ApprovalFilter()))[0]
    await process.answer(agent, *(Approve(item.call.id) for item in waiting.asked.gated))


async def die_at(world: World, process: Process, name: str, act: Callable[[], Any]) -> None:
    """Crashes the process after the first call of a name took effect."""
    faults = world.faults = process.faults

    async def last(made: str) -> None:
        if made == name and faults.crashes_at is None:
            faults.crashes_at = faults.points - 1

    faults.on_call = last
    with suppress(Crash):
        await act()
    assert faults.has_crashed
    await crashed(process)


async def test_reset_of_a_waiting_conversation_survives_a_crash_at_every_point(tmp_path: Path, sample: Sample) -> None:
    async with opened(tmp_path) as world:
        world.model.script = by_place(call("archival_memory_insert", content="one"), say("Hello."))
        points: int | None = None
        for point in (None, *sample(range(30), 16, 2)):
            if point is not None and points is not None and point >= points:
                break
            world.faults = Faults()
            first = world.process()
            agent = await world.agent(first, tool_rules=RULES)
            await first.send(agent, "Keep one.")
            place = (
                ME,
                RequestKey(ME.organization_id, "ResetMessages", agent.id, "f"),
                agent.id,
                agent.default_conversation_id,
            )
            before = world.faults.points
            world.faults.crashes_at = None if point is None else before + point
            with suppress(Crash):
                await first.windows.reset(*place, add_default=False)
            await crashed(first)
            if point is None:
                points = world.faults.points - before
                assert 10 < points <= 30
            world.faults = Faults()
            second = world.process()
            await second.windows.reset(*place, add_default=False)
            assert await second.approvals._store.list_pending(ApprovalFilter()) == (), point
            assert lines(world.window(agent).messages[1:]) == [], point
            # A repeat leaves alone what was asked since.
            await second.send(agent, "Keep one.")
            await second.windows.reset(*place, add_default=False)
            assert len(await second.approvals._store.list_pending(ApprovalFilter())) == 1, point
            await second.approvals.cancel(ME, RunFilter(), [(await second.outcome(agent)).id])
            require_valid(world.window(agent).messages)
            await second.worker.stop()
