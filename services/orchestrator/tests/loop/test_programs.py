"""Code that models run, and the tools that it calls."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.rules import (
    ConstrainChildTools,
    ExitLoop,
    MaxCountPerStep,
    RequiredBeforeExit,
    ToolResult,
    ToolRule,
)
from mnemesh_orchestrator.model.runs import CancelOutcome, RunFilter, RunStatus
from mnemesh_sandbox.calls import Answer, ToolAnswer, ToolCall
from mnemesh_types.messages import ImagePart, ToolReturn, ToolStatus

from ..support.model import by_place, call, say
from ..support.world import ME, Process, World, require_valid
from .process_crashes import die_in, next_life

TOOLS = ("run_code", "run_code_with_tools", "archival_memory_insert", "send_message")


async def _agent(world: World, process: Process, *rules: ToolRule, names: tuple[str, ...] = TOOLS) -> Agent:
    return await world.agent(process, include_base_tools=False, tool_names=names, tool_rules=rules)


def _returned(world: World, agent: Agent) -> ToolReturn:
    return next(found for message in world.turn(agent) for found in message.tool_returns)


async def _call(answer: Answer, name: str, **arguments: Any) -> ToolAnswer:
    return await answer(ToolCall(1, name, arguments))


async def test_agent_runs_code(world: World, process: Process) -> None:
    agent = await _agent(world, process)
    world.model.follow(call("run_code", code="2 + 2", language="javascript"), say("Four."))
    await process.send(agent)
    returned = _returned(world, agent)
    assert (returned.status, json.loads(returned.text)) == (ToolStatus.SUCCESS, {"result": "4", "stdout": "out\n"})
    (task,) = world.tools.programs
    assert (task.source, task.language.value, task.tools) == ("export default (2 + 2);", "javascript", {})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"code": "1", "language": "r"}, "Code in r cannot be executed. Use python, javascript or typescript."),
        ({"code": "1", "language": "cobol"}, "Unknown language 'cobol'"),
        ({}, "code is required for run_code"),
    ],
)
async def test_code_that_cannot_run_is_an_error(
    world: World, process: Process, arguments: dict[str, str], text: str
) -> None:
    agent = await _agent(world, process)
    world.model.follow(call("run_code", **arguments), say("No."))
    await process.send(agent)
    returned = _returned(world, agent)
    assert returned.status is ToolStatus.ERROR
    assert text in returned.text
    assert world.tools.programs == []


async def test_code_calls_the_custom_tools_that_it_names(world: World, process: Process) -> None:
    world.tools.add("look", "seen")
    world.tools.add("listen", "heard")
    agent = await _agent(world, process, names=(*TOOLS, "look", "listen"))

    async def program(answer: Answer) -> str:
        return (await _call(answer, "look")).text

    world.tools.follow_program(program)
    world.model.follow(call("run_code", code="archival_memory_insert or looked or look()"), say("Seen."))
    await process.send(agent)
    assert json.loads(_returned(world, agent).text) == {"result": "seen", "called_tools": ["look"]}
    (task,) = world.tools.programs
    assert list(task.tools) == ["look"]


async def test_program_calls_the_tools_of_the_agent(world: World, process: Process) -> None:
    world.tools.add("look", "seen")
    agent = await _agent(world, process, names=(*TOOLS, "look"))

    async def program(answer: Answer) -> str:
        found = [await _call(answer, "look"), await _call(answer, "archival_memory_insert", content="tea")]
        assert all(one.ok for one in found), found
        return found[0].text

    world.tools.follow_program(program)
    world.model.follow(call("run_code_with_tools", code="look()"), say("Seen."))
    await process.send(agent)
    shown = json.loads(_returned(world, agent).text)
    assert shown == {"result": "seen", "called_tools": ["look", "archival_memory_insert"]}
    assert await world.archival.texts(agent.id) == ["tea"]
    (task,) = world.tools.programs
    assert task.tools["archival_memory_insert"][0] == "content"
    assert "run_code" not in task.tools
    require_valid(world.window(agent).messages)


async def test_images_of_called_tools_are_named_in_the_text(
    world: World, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program gets text, and the call that the model sees has no images that it did not ask for."""
    world.tools.add("look", "seen")
    agent = await _agent(world, process, names=(*TOOLS, "look"))
    execute = world.tools.execute

    async def with_image(*arguments: Any, **fields: Any) -> tuple[ToolResult, Mapping[str, str]]:
        result, changed = await execute(*arguments, **fields)
        return replace(result, images=(ImagePart(b"a picture", "image/png"),)), changed

    monkeypatch.setattr(world.tools, "execute", with_image)

    async def program(answer: Answer) -> str:
        return (await _call(answer, "look")).text

    world.tools.follow_program(program)
    world.model.follow(call("run_code_with_tools", code="look()"), say("Seen."))
    await process.send(agent)
    returned = _returned(world, agent)
    note = "[Images left out: 1. A program gets text; call look directly to see them.]"
    assert json.loads(returned.text)["result"] == f"seen\n{note}"
    assert [part for part in returned.content if isinstance(part, ImagePart)] == []


async def test_program_obeys_rules_approvals_and_arguments(world: World, process: Process) -> None:
    world.tools.add("look", "seen")
    world.tools.add("launch", requires_approval=True)
    world.tools.add("leave")
    rules = (MaxCountPerStep("look", 1), ExitLoop("leave"), RequiredBeforeExit("look"))
    agent = await _agent(world, process, *rules, names=(*TOOLS, "look", "launch", "leave"))
    answers: list[ToolAnswer] = []

    async def program(answer: Answer) -> str:
        for name in ("look", "look", "launch", "leave", "send_message", "run_code", "absent", "archival_memory_insert"):
            answers.append(await _call(answer, name))
        return ""

    world.tools.follow_program(program)
    world.model.follow(call("run_code_with_tools", code="..."), say("Done."))
    await process.send(agent)
    assert [answer.ok for answer in answers] == [True] + [False] * 7
    texts = [answer.text for answer in answers]
    assert "look: at most 1 use(s) per response" in texts[1]
    assert texts[2] == "Error: launch needs a person's approval, which a program cannot request. Call it directly."
    for number, name in ((3, "leave"), (4, "send_message"), (5, "run_code")):
        assert name in texts[number]
    assert "there is no tool absent" in texts[6]
    assert "content is required" in texts[7]
    assert [name for name, _ in world.tools.executed] == ["look"]


async def test_calls_of_a_program_count_for_the_rules_of_the_turn(world: World, process: Process) -> None:
    world.tools.add("look", "seen")
    world.tools.add("act", "done")
    rules = (MaxCountPerStep("look", 1), ConstrainChildTools("run_code_with_tools", ("act", "look")))
    agent = await _agent(world, process, *rules, names=("run_code_with_tools", "look", "act"))

    async def program(answer: Answer) -> str:
        return (await _call(answer, "look")).text

    world.tools.follow_program(program)
    world.model.follow(call("run_code_with_tools", code="look()"), call("act"), say("Done."))
    await process.send(agent)
    assert [tool.name for tool in world.model.requests[1].tools] == ["act"]


async def _insert_twice(answer: Answer) -> str:
    for content in ("one", "two"):
        await _call(answer, "archival_memory_insert", content=content)
    return "both"


@pytest.mark.parametrize(
    ("point", "stored", "named"),
    [
        ("archival.insert", ["one"], " It was calling archival_memory_insert, whose outcome is unknown too."),
        (
            "tools.run_program",
            ["one", "two"],
            " Before that it had called: archival_memory_insert, archival_memory_insert.",
        ),
    ],
)
async def test_program_is_not_run_again_after_a_crash(world: World, point: str, stored: list[str], named: str) -> None:
    """Its calls had their effects once, and the model reads which of them it knows of."""
    first = world.process()
    agent = await _agent(world, first)
    world.tools.follow_program(_insert_twice)
    world.model.script = by_place(call("run_code_with_tools", code="..."), say("I do not know."))
    await die_in(world, first, agent, point)
    second = await next_life(world)
    assert len(world.tools.programs) == 1
    assert await world.archival.texts(agent.id) == stored
    returned = _returned(world, agent)
    assert (returned.status, returned.text) == (ToolStatus.ERROR, f"{INTERRUPTED}{named}")
    assert (await second.outcome(agent)).status is RunStatus.COMPLETED
    require_valid(world.window(agent).messages)


async def test_custom_tool_that_a_program_was_calling_is_named(world: World) -> None:
    """The orchestrator ends when the tool has run, and before it stores the result."""
    world.tools.add("act", "done")
    first = world.process()
    agent = await _agent(world, first, names=(*TOOLS, "act"))

    async def program(answer: Answer) -> str:
        await _call(answer, "archival_memory_insert", content="one")
        return (await _call(answer, "act")).text

    world.tools.follow_program(program)
    world.model.script = by_place(call("run_code_with_tools", code="..."), say("I do not know."))
    await die_in(world, first, agent, "tools.execute")
    await next_life(world)
    before, running = "Before that it had called: archival_memory_insert.", "It was calling act"
    assert _returned(world, agent).text == f"{INTERRUPTED} {before} {running}, whose outcome is unknown too."
    assert [name for name, _ in world.tools.executed] == ["act"]


async def test_tools_service_that_goes_away_leaves_the_outcome_unknown(world: World, process: Process) -> None:
    agent = await _agent(world, process)
    world.model.follow(call("run_code", code="1"), say("I do not know."))
    world.faults.unavailable = {"tools.run_program": 1}
    await process.send(agent)
    assert _returned(world, agent).text == INTERRUPTED


async def test_cancelled_run_ends_its_program(world: World, process: Process) -> None:
    agent = await _agent(world, process)
    started, ended = asyncio.Event(), asyncio.Event()

    async def program(_: Answer) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    world.tools.follow_program(program)
    world.model.follow(call("run_code_with_tools", code="..."))
    run = await process.start(agent)
    await started.wait()
    assert (await process.runs.cancel(ME, RunFilter(), [run.id]))[run.id] is CancelOutcome.CANCELLED
    await ended.wait()
    require_valid(world.window(agent).messages)
