"""Edits that depend on the content of a block: an agent never overwrites a change that it has not seen."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_testkit.plugin import Sample
from mnemesh_types.blocks import Block
from mnemesh_types.messages import ToolReturn

from ..support.faults import Crash, Faults
from ..support.model import by_place, call, say, together
from ..support.world import Process, World, crashed, opened

RETHINK = call("memory_rethink", label="human", new_memory="Ada, who likes tea")
INSERT = call("memory_insert", label="human", new_str="Likes tea", insert_line=1)
COMMAND = call("memory", command="insert", path="/memories/human", insert_text="Likes tea", insert_line=1)
TOOLS = ("memory_rethink", "memory_insert", "memory", "memory_replace", "core_memory_append")


def somebody_writes(world: World, agent: Agent, value: str, label: str = "human") -> None:
    held = (world.blocks.blocks[block_id] for block_id in world.blocks.held[agent.id])
    block = next(block for block in held if block.label == label)
    world.blocks.put(replace(block, value=value))


def returns(world: World, agent: Agent) -> list[ToolReturn]:
    return [item for message in world.turn(agent) for item in message.tool_returns]


def while_asked(*answers: LlmAnswer, meanwhile: Callable[[], None]) -> Callable[[LlmRequest], LlmAnswer]:
    """The answers of a turn. `meanwhile` runs between the first request and its answer."""
    choose, received = by_place(*answers), []

    def answer(request: LlmRequest) -> LlmAnswer:
        if not received:
            received.append(request)
            meanwhile()
        return choose(request)

    return answer


@pytest.mark.parametrize("edit", [RETHINK, INSERT, COMMAND], ids=["rethink", "insert", "command"])
async def test_change_of_another_writer_is_shown_and_not_overwritten(
    world: World, process: Process, edit: LlmAnswer
) -> None:
    agent = await world.agent(process, tool_names=TOOLS)
    long = "Ada, of London\n" + "and so on " * 500  # more than an error carries
    world.model.script = while_asked(
        edit,
        edit,
        say("Done."),
        meanwhile=lambda: somebody_writes(world, agent, long),
    )
    await process.send(agent)

    refused, done = returns(world, agent)
    assert refused.status == "error"
    assert "another author changed" in refused.text
    assert long in refused.text
    assert long in world.model.requests[1].messages[0].text, "the next step shows the fresh block"
    assert done.status == "success", done.text
    value = world.blocks.value(agent.id, "human")
    assert value == ("Ada, who likes tea" if edit is RETHINK else long.replace("\n", "\nLikes tea\n"))
    assert len(world.blocks.effects) == 1


@pytest.mark.parametrize(
    ("calls", "value"),
    [
        ((INSERT, call("memory_insert", label="human", new_str="Likes rye", insert_line=2)), "Nothing yet.\n{}\n{}"),
        ((call("core_memory_append", label="human", content="Likes tea"), INSERT), "Nothing yet.\n{}\n{}"),
        ((INSERT, RETHINK), "Ada, who likes tea"),
        (
            (
                call("memory", command="rename", old_path="/memories/human", new_path="/memories/person"),
                call("memory_rethink", label="person", new_memory="Ada"),
            ),
            "Ada",
        ),
        (
            (
                call("memory", command="rename", path="/memories/human", description="Who it is"),
                RETHINK,
            ),
            "Ada, who likes tea",
        ),
        (
            (
                call("memory", command="delete", path="/memories/human"),
                call("memory", command="create", path="/memories/human", description="Anew", file_text="One"),
                call("memory_rethink", label="human", new_memory="Two"),
            ),
            "Two",
        ),
    ],
    ids=["inserts", "append-insert", "insert-rethink", "rename", "describe", "created-again"],
)
async def test_calls_of_one_answer_build_on_each_other(
    world: World, process: Process, calls: tuple[LlmAnswer, ...], value: str
) -> None:
    agent = await world.agent(process, tool_names=TOOLS)
    world.model.follow(together(*calls), say("Done."))
    await process.send(agent)
    assert [item.status for item in returns(world, agent)] == ["success"] * len(calls), returns(world, agent)
    (held,) = world.blocks.held[agent.id]
    written = world.blocks.blocks[held].value
    if "{}" in value:
        assert written.splitlines()[0] == "Nothing yet."
        assert len(written.splitlines()) == 3
    else:
        assert written == value


async def test_own_edit_does_not_hide_an_earlier_change_of_another_writer(world: World, process: Process) -> None:
    agent = await world.agent(process, tool_names=TOOLS)
    append = call("core_memory_append", label="human", content="Likes tea")
    world.model.script = while_asked(
        together(append, RETHINK), say("Done."), meanwhile=lambda: somebody_writes(world, agent, "Ada")
    )
    await process.send(agent)
    assert [item.status for item in returns(world, agent)] == ["success", "error"]
    assert world.blocks.value(agent.id, "human") == "Ada\nLikes tea"


async def test_unseen_block_is_not_overwritten(world: World, process: Process) -> None:
    agent = await world.agent(process, tool_names=TOOLS)
    given = Block(label="plan", value="Ship on Friday.")
    other = await world.agent(process, blocks=(given,))
    (plan,) = world.blocks.held[other.id]

    def attach() -> None:
        world.blocks.give(agent.id, plan)

    world.model.script = while_asked(
        call("memory_rethink", label="plan", new_memory="x"), say("I see."), meanwhile=attach
    )
    await process.send(agent)
    (refused,) = returns(world, agent)
    assert refused.status == "error"
    assert "Ship on Friday." in refused.text
    assert world.blocks.value(agent.id, "plan") == "Ship on Friday."


async def test_append_does_not_need_the_seen_revision(world: World, process: Process) -> None:
    agent = await world.agent(process, tool_names=TOOLS)
    world.model.script = while_asked(
        call("memory_insert", label="human", new_str="Likes tea"),
        say("Done."),
        meanwhile=lambda: somebody_writes(world, agent, "Ada"),
    )
    await process.send(agent)
    assert world.blocks.value(agent.id, "human") == "Ada\nLikes tea"


async def test_crash_at_any_point_changes_neither_edits_nor_refusals(tmp_path: Path, sample: Sample) -> None:
    """Two own inserts in one answer, and one block that another writer changes before the model answers."""
    edits = together(
        INSERT,
        call("memory_insert", label="human", new_str="Likes rye", insert_line=2),
        call("memory_rethink", label="shared", new_memory="Mine"),
    )

    async def life(world: World, point: int | None) -> tuple[Any, ...]:
        world.faults, world.model.requests = Faults(), []
        world.blocks.effects.clear()
        given = (Block(label="human", value="Nothing yet."), Block(label="shared", value="Ours"))
        agent = await world.agent(world.process(), tool_names=TOOLS, blocks=given)
        world.faults = Faults()
        world.faults.crashes_at = point
        process = world.process()
        world.model.script = while_asked(
            edits, say("Done."), meanwhile=lambda: somebody_writes(world, agent, "Theirs", "shared")
        )
        with suppress(Crash):
            await process.send(agent)
        await crashed(process)
        counted, world.faults = world.faults.points, Faults()
        again = world.process()
        await again.recover()
        outcomes = [item.status for item in returns(world, agent)]
        if outcomes:
            assert (await again.outcome(agent)).status is RunStatus.COMPLETED
            # Somebody else wrote it before a journalled answer, or before the model was asked again.
            assert world.blocks.value(agent.id, "shared") in ("Theirs", "Mine")
        return counted, outcomes, world.blocks.value(agent.id, "human"), list(world.blocks.effects), agent

    async with opened(tmp_path) as world:
        points, outcomes, value, effects, _ = await life(world, None)
        assert outcomes == ["success", "success", "error"]
        assert value == "Nothing yet.\nLikes tea\nLikes rye"
        assert len(effects) == 2
        for point in sample(range(points), 16, 2):
            _, outcomes, human, effects, agent = await life(world, point)
            if not outcomes:
                continue
            assert outcomes[:2] == ["success", "success"], point
            assert human == value, point
            assert len(effects) == len(set(effects)), point
            refused = outcomes[2] == "error"
            assert (world.blocks.value(agent.id, "shared") == "Theirs") is refused, point


@pytest.mark.parametrize("is_changed", [False, True])
async def test_memory_is_read_after_an_edit_only_if_others_changed_it(
    world: World, process: Process, *, is_changed: bool
) -> None:
    blocks = (Block(label="human", value="Ada."), Block(label="persona", value="I am brief."))
    agent = await world.agent(process, tool_names=TOOLS, blocks=blocks)

    async def before_edit(name: str) -> None:
        if is_changed and name == "blocks.edit":
            somebody_writes(world, agent, "I am kind.", "persona")

    world.faults.calls.clear()
    world.faults.on_call = before_edit
    world.model.script = by_place(call("memory_insert", label="human", new_str="Likes tea"), say("Done."))
    await process.send(agent, "I like tea.")
    world.faults.on_call = None
    prompt = world.model.requests[-1].messages[0].text
    assert "Likes tea" in prompt
    assert ("I am kind." in prompt) is is_changed
    assert world.faults.calls.count("blocks.get") == (2 if is_changed else 1)
    world.model.script = by_place(say("Tea."))
    await process.send(agent, "What do I like?")
    assert world.model.requests[-1].messages[0].text == prompt
