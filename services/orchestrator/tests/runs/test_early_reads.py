"""The reads of a turn begin while its start is being stored, and count only if nothing was written in between.

Those of a turn whose events are shown meanwhile begin afterwards.
"""

import asyncio

import pytest
from mnemesh_kit.sql import DatabaseUnavailable
from mnemesh_orchestrator.model.agents import Agent

from ..support.model import Held, say
from ..support.world import ME, Process, World, lines

READS = ("recall.get_context", "blocks.get")
TURN = sorted((*READS, "recall.commit_step"))


@pytest.fixture
def other(world: World) -> Process:
    return world.process("instance-2")


async def sent_before(world: World, process: Process) -> Agent:
    """Returns an agent that this process has answered once."""
    agent = await world.agent(process)
    world.model.follow(say("Before."))
    await process.send(agent, "First")
    return agent


def calls_to_memory(process: Process, since: int) -> list[str]:
    """Returns the names of the calls to recall and blocks after the first `since` calls, sorted."""
    return sorted(name for name in process.faults.calls[since:] if name.startswith(("recall.", "blocks.")))


def calls_before_the_run_is_stored(process: Process) -> list[list[str]]:
    """Returns a list that gets the calls to memory that begin while a run is being stored, for each run."""
    since, found = len(process.faults.calls), []

    async def note(name: str) -> None:
        if name == "runs.start":
            for _ in range(50):  # other tasks go on meanwhile
                await asyncio.sleep(0)
            found.append(calls_to_memory(process, since))

    process.faults.on_effect = note
    return found


async def test_reads_begin_before_the_run_is_stored_and_are_not_repeated(world: World, process: Process) -> None:
    agent = await sent_before(world, process)
    begun, since = asyncio.Event(), len(process.faults.calls)

    async def store_after_the_reads(name: str) -> None:
        if name == READS[-1]:
            begun.set()
        elif name == "runs.start":
            await begun.wait()

    process.faults.on_call = store_after_the_reads
    world.model.follow(say("After."))
    async with asyncio.timeout(30):
        await process.send(agent, "Second")
    assert lines(world.turn(agent))[-1] == "assistant text: After."
    assert calls_to_memory(process, since) == TURN


async def test_first_turn_of_a_conversation_reads_before_its_run_is_stored_and_does_not_repeat_it(
    world: World, process: Process
) -> None:
    agent, since = await world.agent(process), len(process.faults.calls)
    world.model.follow(say("Hi."))

    async def calls_so_far(name: str) -> None:
        if name == "runs.start":
            assert calls_to_memory(process, since) == sorted(READS)

    process.faults.on_call = calls_so_far
    await process.send(agent)
    assert calls_to_memory(process, since) == TURN


async def test_model_is_not_called_before_the_run_is_stored(world: World, process: Process) -> None:
    agent = await sent_before(world, process)
    reached, stored = asyncio.Event(), asyncio.Event()

    async def hold_the_result(name: str) -> None:
        if name == "runs.start":
            reached.set()
            await stored.wait()

    process.faults.on_effect = hold_the_result
    held = Held(say("After."))
    world.model.follow(held)
    sending = asyncio.ensure_future(process.send(agent, "Second"))
    await reached.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not held.asked.is_set()
    stored.set()
    await held.asked.wait()
    held.released.set()
    await sending


async def test_turn_of_another_process_between_the_reads_and_the_claim_is_seen(
    world: World, process: Process, other: Process
) -> None:
    agent = await sent_before(world, process)

    async def answer_elsewhere(name: str) -> None:
        if name == "runs.start":
            process.faults.on_call = None
            world.model.follow(say("Elsewhere."), say("After."))
            await other.send(agent, "In between")

    process.faults.on_call = answer_elsewhere
    await process.send(agent, "Second")
    answers = [line for line in lines(world.turn(agent)) if line.startswith("assistant")]
    assert answers == ["assistant text: Before.", "assistant text: Elsewhere.", "assistant text: After."]
    assert "assistant text: Elsewhere." in lines(world.model.requests[-1].messages)


async def test_reset_between_two_turns_is_seen(world: World, process: Process) -> None:
    agent = await sent_before(world, process)
    await process.windows.reset(ME, None, agent.id, agent.default_conversation_id, add_default=False)
    since = len(process.faults.calls)
    world.model.follow(say("After."))
    await process.send(agent, "Second")
    assert [line for line in lines(world.turn(agent)) if line.startswith("assistant")] == ["assistant text: After."]
    assert calls_to_memory(process, since) == TURN


async def test_reads_of_a_run_that_does_not_start_have_no_effect(world: World, process: Process) -> None:
    agent = await sent_before(world, process)
    process.faults.unavailable = {"runs.start": 1}
    with pytest.raises(DatabaseUnavailable):
        await process.send(agent, "Second")
    world.model.follow(say("After."))
    await process.send(agent, "Third")
    assert lines(world.turn(agent))[-1] == "assistant text: After."
    assert process.orchestrator.worker.active_runs == 0


async def test_message_to_a_busy_conversation_reads_when_its_turn_comes(world: World, process: Process) -> None:
    agent = await sent_before(world, process)
    held = Held(say("Second answer."))
    world.model.follow(held, say("Third answer."))
    first = asyncio.ensure_future(process.send(agent, "Second"))
    await held.asked.wait()
    since = len(process.faults.calls)
    await process.start(agent, "Third")
    assert calls_to_memory(process, since) == []
    held.released.set()
    await first
    await process.recover()
    assert "assistant text: Second answer." in lines(world.model.requests[-1].messages)


async def test_failed_early_read_is_repeated_like_any_other(world: World, process: Process) -> None:
    agent = await sent_before(world, process)
    process.faults.unavailable = {"recall.get_context": 1}
    world.model.follow(say("After."))
    await process.send(agent, "Second")
    assert len(world.waits) == 1
    assert lines(world.turn(agent))[-1] == "assistant text: After."
