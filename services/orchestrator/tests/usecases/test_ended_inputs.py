"""Inputs are kept and shown, however their run ended."""

import asyncio

import pytest
from mnemesh_kit.errors import StorageFull
from mnemesh_orchestrator.llm.errors import ProviderRefused
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import MessageEvent, RunEvent
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunRequest, RunStatus
from mnemesh_types.messages import Role, TextPart

from ..support.faults import Faults
from ..support.model import Held, call, say
from ..support.world import ME, Process, World, crashed, lines, require_valid

NO = ProviderRefused("No.", provider="scripted", status=400)


def listed(world: World, agent: Agent) -> list[str]:
    return [message.text for message in world.recall.rows[agent.id] if message.role is Role.USER]


async def cancel(process: Process, *runs: Run) -> None:
    await process.runs.cancel(ME, RunFilter(), [run.id for run in runs])


async def retried(process: Process, run: Run) -> None:
    await process.follow(await process.runs.retry(ME, None, run.id))


async def test_input_of_a_failed_run_is_recorded_outside_the_window(world: World, process: Process) -> None:
    agent = await world.agent(process, initial_messages=())
    world.model.follow(NO, say("Hello."), say("Tea it is."))
    await process.send(agent, "I like tea.")
    failed = await process.outcome(agent)
    assert (listed(world, agent), world.turn(agent)) == (["I like tea."], ())
    await process.send(agent, "Hi.")
    assert "I like tea." not in [message.text for message in world.model.last.messages]
    await retried(process, failed)
    require_valid(world.window(agent).messages)
    assert listed(world, agent) == ["I like tea.", "Hi."]
    assert lines(world.turn(agent))[-2:] == ["user text: I like tea.", "assistant text: Tea it is."]


async def test_input_of_a_failed_run_is_recorded_once_the_disk_of_recall_has_space(
    world: World, process: Process
) -> None:
    agent = await world.agent(process, initial_messages=())
    world.model.follow(NO)
    world.faults.error, world.faults.unavailable = StorageFull, {"recall.append": 1}
    await process.send(agent, "I like tea.")
    assert listed(world, agent) == []
    await process.orchestrator.inputs.record_missing()
    assert listed(world, agent) == ["I like tea."]


async def test_input_of_a_cancelled_turn_stays_in_the_window(world: World, process: Process) -> None:
    agent = await world.agent(process, initial_messages=())
    held = Held(say("Too late."))
    world.model.follow(held, say("Noted."), say("Tea it is."))
    run = await process.start(agent, "I like tea.")
    await held.asked.wait()
    await cancel(process, run)
    await process.send(agent, "Hi.")
    assert [message.text for message in world.model.last.messages][1:] == ["I like tea.", "Hi."]
    await retried(process, run)
    require_valid(world.window(agent).messages)
    assert listed(world, agent) == ["I like tea.", "Hi."]


@pytest.mark.parametrize("is_away", [False, True])
async def test_inputs_of_cancelled_queued_runs_are_kept_in_order(
    world: World, process: Process, *, is_away: bool
) -> None:
    agent = await world.agent(process, initial_messages=())
    held = Held(say("One."))
    world.model.follow(held)
    first, *waiting = [await process.start(agent, text) for text in ("One?", "Two?", "Three?")]
    await held.asked.wait()
    if is_away:
        world.faults.unavailable = {"recall.append": 2}
    await cancel(process, *reversed(waiting))
    held.released.set()
    await process.follow(first)
    assert listed(world, agent) == ["One?"], "the others would stand before or between the messages of the first"
    await process.orchestrator.inputs.record_missing()
    await process.orchestrator.inputs.record_missing()
    await process.orchestrator.inputs.record_missing()
    assert listed(world, agent) == ["One?", "Two?", "Three?"]
    assert await process.stores.runs.list_unrecorded_inputs(10) == ()
    assert lines(world.turn(agent)) == ["user text: One?", "assistant text: One."]


async def test_input_of_a_run_that_failed_without_recall_is_stored_later(world: World, process: Process) -> None:
    agent = await world.agent(process, initial_messages=())
    world.faults.unavailable = {"recall.get_context": 10_000, "recall.append": 1}
    await process.follow(await process.start(agent, "I like tea."))
    failed = await process.outcome(agent)
    assert (failed.status, failed.input_unrecorded) == (RunStatus.FAILED, True)
    world.faults.unavailable = {}
    assert listed(world, agent) == []
    await process.orchestrator.inputs.record_missing()
    assert listed(world, agent) == ["I like tea."]
    assert not (await process.outcome(agent)).input_unrecorded


async def test_input_that_recall_does_not_have_is_stored_before_the_next_one(world: World, process: Process) -> None:
    agent = await world.agent(process, initial_messages=())
    world.faults.unavailable = {"recall.get_context": 10_000, "recall.append": 1}
    await process.follow(await process.start(agent, "First."))
    world.faults.unavailable = {}

    async def retries_meanwhile(name: str) -> None:
        if name in ("archival.insert", "recall.commit_step"):
            await process.orchestrator.inputs.record_missing()

    world.faults.on_call = retries_meanwhile
    world.model.follow(call("archival_memory_insert", content="tea"), say("Second it is."))
    await process.send(agent, "Second.")
    assert listed(world, agent) == ["First.", "Second."]
    assert await process.stores.runs.list_unrecorded_inputs(10) == ()
    own = [message.run_id for message in world.recall.rows[agent.id] if message.run_id is not None]
    assert own == sorted(own, key=own.index), "messages of a run stand together"


async def test_input_of_a_run_that_was_cancelled_in_the_queue_is_stored_after_the_run_before_it(
    world: World, process: Process
) -> None:
    agent = await world.agent(process, initial_messages=())
    held = Held(say("One."))
    world.model.follow(call("archival_memory_insert", content="tea"), held, say("Three."))
    first = await process.start(agent, "One?")
    second = await process.start(agent, "Two?")
    await held.asked.wait()
    await cancel(process, second)
    held.released.set()
    await process.follow(first)
    await process.send(agent, "Three?")
    assert listed(world, agent) == ["One?", "Two?", "Three?"]


async def test_cancellation_lost_in_a_crash_stores_the_input_once(world: World) -> None:
    first = world.process()
    agent = await world.agent(first, initial_messages=())
    held = Held(say("Too late."))
    world.model.follow(held, say("Hello yourself."))
    run = await first.start(agent)
    await held.asked.wait()

    async def die(name: str) -> None:
        if name == "runs.finish":
            first.faults.crashes_at = first.faults.points - 2
            first.faults.at(first.faults.points - 2)

    first.faults.on_call = die
    first.worker.interrupt(run.id)
    await crashed(first)
    world.faults = Faults()
    second = world.process()
    await second.recover()
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: Hello yourself."]
    assert (await second.outcome(agent)).status is RunStatus.COMPLETED
    await second.worker.stop()


def shown(events: list[RunEvent]) -> list[tuple[int | None, str, str]]:
    return [
        (event.sequence, event.body.kind, event.body.content[0].text)  # type: ignore[union-attr]
        for event in events
        if isinstance(event.body, MessageEvent) and event.body.content
    ]


async def test_stream_of_a_second_client_contains_the_input(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("Here."))
    world.model.follow(held, say("And here."))
    messages = [
        InputMessage((TextPart("It is noon."),), Role.SYSTEM),
        InputMessage((TextPart("I was asleep."),), Role.ASSISTANT),
        InputMessage((TextPart("Hello?"),), name="Ada", otid="o-1", sender_id="identity-1"),
    ]
    run = await process.runs.start(ME, None, RunRequest(agent.id, "", messages, RunConfig()))
    waiting = await process.start(agent, "And now?")
    await held.asked.wait()
    stream = process.runs.follow(ME, waiting.id, 0, 30)
    assert shown(await anext(stream)) == [(1, "user", "And now?")]
    await stream.aclose()
    held.released.set()
    events = await process.follow(run)
    expected = [(1, "system", "It is noon."), (2, "user", "Hello?"), (3, "assistant", "Here.")]
    assert shown(events) == expected
    assert shown(await process.follow(run, 1)) == expected[1:]
    bodies = [event.body for event in events if isinstance(event.body, MessageEvent)]
    assert (bodies[1].otid, bodies[1].name, bodies[1].sender_id) == ("o-1", "Ada", "identity-1")
    ids = {message.id for message in world.turn(agent)}
    assert {body.message_id for body in bodies} <= ids
    ended = await process.runs.get(ME, run.id)
    assert [event.sequence for event in events if event.sequence] == list(range(1, ended.last_sequence + 1))


@pytest.mark.parametrize("stream_tokens", [False, True])
async def test_sequence_numbers_continue_after_a_crash(world: World, *, stream_tokens: bool) -> None:
    first = world.process()
    agent = await world.agent(first)
    held = Held(say("Never."))
    world.model.follow(call("archival_memory_insert", content="tea"), held)
    run = await first.start(agent, stream_tokens=stream_tokens)
    await held.asked.wait()
    first.faults.has_crashed = True
    held.released.set()
    await crashed(first)
    world.faults = Faults()
    second = world.process()
    world.model.follow(say("Done."))
    following = asyncio.ensure_future(second.follow(run, deltas=True))
    await second.recover()
    events = await following
    assert shown(events) == [(1, "user", "Hello"), (4, "assistant", "Done.")]
    assert [event.sequence for event in events if event.sequence] == list(range(1, 7))
    await second.worker.stop()
