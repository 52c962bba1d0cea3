"""The execution of runs: one at a time in a conversation, in order, and resumed after a restart."""

import asyncio

import pytest
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import DatabaseUnavailable
from mnemesh_orchestrator.errors import ConversationBusy, RunEnded, RunUnderWay
from mnemesh_orchestrator.llm.errors import ProviderRefused
from mnemesh_orchestrator.model.events import RunAccepted
from mnemesh_orchestrator.model.inputs import OnBusy
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_types.messages import Role

from ..support.faults import Faults
from ..support.model import Held, by_place, call, say
from ..support.world import ME, Process, World, each, kinds, lines, require_valid


async def test_fifty_concurrent_messages_are_fifty_turns_in_order(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.script = lambda request: say(f"Answer to {request.messages[-1].text}.")
    sent = await asyncio.gather(*(process.send(agent, f"Message {number}") for number in range(50)))
    assert all(kinds(events) == ["assistant", "StopEvent", "UsageEvent"] for events in sent)
    turn = world.turn(agent)
    assert [message.role for message in turn] == [Role.USER, Role.ASSISTANT] * 50
    assert {message.text for message in turn[::2]} == {f"Message {number}" for number in range(50)}
    assert all(answer.text == f"Answer to {said.text}." for said, answer in zip(turn[::2], turn[1::2], strict=True))


async def test_runs_wait_in_order(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held, say("Two."), say("Three."))
    runs = [await process.start(agent, text) for text in ("First", "Second", "Third")]
    await held.asked.wait()
    assert [(await process.runs.get(ME, run.id)).status for run in runs] == ["running", "created", "created"]
    held.released.set()
    for run in runs:
        await process.follow(run)
    assert [message.text for message in world.turn(agent)] == ["First", "One.", "Second", "Two.", "Third", "Three."]


async def test_run_may_be_rejected_instead_of_queued(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held)
    run = await process.start(agent)
    with pytest.raises(ConversationBusy) as raised:
        await process.send(agent, on_busy=OnBusy.REJECT)
    assert raised.value.metadata["run_id"] == run.id
    held.released.set()
    await process.follow(run)
    assert process.event_broker._followers == {}


async def test_agents_run_in_parallel(world: World, process: Process) -> None:
    first, second = await world.agent(process), await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held, say("Two."))
    run = await process.start(first)
    await held.asked.wait()
    assert kinds(await process.send(second)) == ["assistant", "StopEvent", "UsageEvent"]
    held.released.set()
    await process.follow(run)


async def test_next_run_starts_after_a_failed_run(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(ProviderRefused("No.", provider="scripted", status=400), say("Two."))
    first, second = await process.start(agent, "First"), await process.start(agent, "Second")
    await process.follow(first)
    await process.follow(second)
    assert lines(world.turn(agent)) == ["user text: Second", "assistant text: Two."]


async def test_stop_releases_runs_for_any_process(world: World) -> None:
    first = world.process()
    agent = await world.agent(first)
    world.model.script = by_place(call("archival_memory_insert", content="tea"), say("Kept."))
    held = Held(say("Kept."))
    world.model.follow(call("archival_memory_insert", content="tea"), held)
    run = await first.start(agent)
    waiting = await first.start(agent, "And then?")
    following = asyncio.ensure_future(first.follow(run))
    await held.asked.wait()
    await first.worker.stop()
    assert kinds(await following) == ["tool_call", "tool_return"]
    assert (await first.runs.get(ME, run.id)).status is RunStatus.RUNNING
    late = await first.start(agent, "Too late?")
    assert not first.worker._tasks

    world.model.follow(say("Kept."), say("Nothing."), say("No."))
    second = world.process("instance-2")
    await second.recover()
    assert [(await second.runs.get(ME, one.id)).status for one in (run, waiting, late)] == ["completed"] * 3
    assert [message.text for message in world.turn(agent) if message.text] == [
        "Hello", "Kept.", "And then?", "Nothing.", "Too late?", "No.",
    ]  # fmt: skip
    assert await world.archival.texts(agent.id) == ["tea"]
    require_valid(world.window(agent).messages)


async def test_another_instance_resumes_an_expired_run_and_the_first_stops_writing(world: World) -> None:
    first, second = world.process(), world.process("instance-2")
    agent = await world.agent(first)
    held = Held(say("From the first."))
    world.model.follow(held, say("From the second."))
    run = await first.start(agent)
    await held.asked.wait()
    world.clock.advance(31)
    await second.recover()
    held.released.set()
    await first.idle()
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: From the second."]
    assert kinds(await second.follow(run)) == ["assistant", "StopEvent", "UsageEvent"]


async def test_expired_lease_commits_nothing_twice(world: World) -> None:
    first, second = world.process(), world.process("instance-2")
    agent = await world.agent(first)
    held = Held(say("Kept by the first."))
    world.model.follow(call("archival_memory_insert", content="tea"), held, say("Kept by the second."))
    await first.start(agent)
    await held.asked.wait()
    world.clock.advance(31)
    await second.recover()
    held.released.set()
    await first.idle()
    assert await world.archival.texts(agent.id) == ["tea"]
    assert lines(world.turn(agent))[-1] == "assistant text: Kept by the second."
    require_valid(world.window(agent).messages)


async def test_concurrent_claims_start_a_run_once(world: World) -> None:
    first = world.process()
    agent = await world.agent(first)
    held = Held(say("Never."))
    world.model.follow(held)
    run = await first.start(agent)
    await held.asked.wait()
    await first.worker.stop()
    second = world.process()
    world.model.follow(say("Once."))
    await asyncio.gather(*(second.worker.claim_and_run(agent.default_conversation_id) for _ in range(5)))
    await second.follow(run)
    assert len(world.model.requests) == 2
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: Once."]


async def test_run_can_be_retried_after_a_failure_and_not_while_it_runs(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held)
    run = await process.start(agent)
    with pytest.raises(RunUnderWay):
        await process.runs.retry(ME, None, run.id)
    held.released.set()
    await process.follow(run)
    with pytest.raises(RunEnded):
        await process.runs.retry(ME, None, run.id)


async def test_retry_continues_where_the_failed_run_stopped(world: World, process: Process) -> None:
    agent = await world.agent(process)
    refusal = ProviderRefused("No.", provider="scripted", status=400)
    world.model.follow(call("archival_memory_insert", content="tea"), refusal, refusal, say("Kept."))
    await process.send(agent, "Keep tea in mind.")
    for _ in range(2):
        failed = await process.outcome(agent)
        world.clock.advance(1)
        again = await process.runs.retry(ME, None, failed.id)
        await process.follow(again)
    assert again.retried_run_ids[0] == failed.id
    # What was said and done is neither said nor done again.
    assert [line.partition(":")[0] for line in lines(world.turn(agent))] == [
        "user text",
        'assistant calls archival_memory_insert{"content"',
        "tool success of archival_memory_insert",
        "assistant text",
    ]
    require_valid(world.window(agent).messages)


async def test_ended_run_can_be_deleted_and_its_messages_are_kept(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Hello."))
    await process.send(agent)
    run = await process.outcome(agent)
    await process.runs.delete(ME, run.id)
    with pytest.raises(NotFound):
        await process.runs.get(ME, run.id)
    assert len(world.turn(agent)) == 2


async def test_deleted_agent_loses_its_runs(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("Never."))
    world.model.follow(held)
    runs = [await process.start(agent), await process.start(agent)]
    await held.asked.wait()
    following = [each(process.runs.follow(ME, run.id, 0, 30)) for run in runs]
    for stream in following:
        assert isinstance((await anext(stream)).body, RunAccepted)
    await process.lifecycle.delete(ME, agent.id)
    for stream in following:
        assert kinds([event async for event in stream]) == []
    for run in runs:
        with pytest.raises(NotFound):
            await process.runs.get(ME, run.id)
    assert not process.worker._tasks
    assert process.event_broker._followers == {}


@pytest.mark.parametrize("fault", ["unavailable", "lost"])
@pytest.mark.parametrize("name", ["runs.write", "runs.finish", "runs.journal"])
async def test_short_outage_of_the_database_neither_fails_a_run_nor_repeats_anything(
    world: World, process: Process, name: str, fault: str
) -> None:
    agent = await world.agent(process)
    world.model.script = by_place(call("archival_memory_insert", content="Once."), say("Done."))
    run = await process.start(agent)
    if name == "runs.journal":  # which is read at a takeover
        process.faults.unavailable = {"runs.write": 1_000}
        await process.idle()
        process.faults.unavailable = {}
    setattr(process.faults, fault, {name: 1})
    await process.idle()
    await process.recover()
    await process.recover()
    assert kinds(await process.follow(run)) == ["tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    assert await world.archival.texts(agent.id) == ["Once."]
    require_valid(world.window(agent).messages)


async def test_run_is_resumed_if_its_end_could_not_be_stored(world: World) -> None:
    first = world.process()
    agent = await world.agent(first)
    world.model.follow(say("Hello."))
    first.faults.unavailable = {"runs.finish": 1_000}
    run = await first.start(agent)
    await first.idle()
    assert (await first.runs.get(ME, run.id)).status is RunStatus.RUNNING
    world.faults = Faults()
    second = world.process()
    await second.recover()
    assert kinds(await second.follow(run)) == ["assistant", "StopEvent", "UsageEvent"]
    assert len(world.model.requests) == 1
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: Hello."]


@pytest.mark.parametrize("refused", [1, 2])
async def test_end_of_a_run_is_stored_in_a_smaller_form_if_it_is_refused(
    world: World, process: Process, refused: int
) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Hello."), say("Again."))
    left = refused

    async def refuse(name: str) -> None:
        nonlocal left
        if name == "runs.finish" and left:
            left -= 1
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    process.faults.on_call = refuse
    events = await process.send(agent)
    assert kinds(events) == ["assistant", "StopEvent", "UsageEvent"]
    run = await process.outcome(agent)
    assert run.status is RunStatus.COMPLETED
    await process.send(agent)
    assert lines(world.turn(agent))[-1] == "assistant text: Again."
    assert len(world.model.requests) == 2


async def test_run_that_makes_no_progress_ends_after_ten_takeovers(world: World) -> None:
    process = world.process()
    agent = await world.agent(process)
    world.model.script = lambda request: say("Hello.")

    async def refuse(name: str) -> None:
        if name == "recall.commit_step":
            raise DatabaseUnavailable("The process loses its database at this place each time.")

    process.faults.on_call = refuse
    run = await process.start(agent)
    await process.idle()
    for _ in range(9):
        await process.recover()
    assert (await process.runs.get(ME, run.id)).status is RunStatus.RUNNING
    await process.recover()
    ended = await process.runs.get(ME, run.id)
    assert ended.error is not None
    assert (ended.status, ended.stop_reason, ended.error.reason) == ("failed", "error", "RUN_STALLED")
    assert len(world.model.requests) == 10
    process.faults.on_call = None
    await process.send(agent, "Next")
    assert lines(world.turn(agent)) == ["user text: Next", "assistant text: Hello."]


async def test_takeovers_with_progress_do_not_end_a_run(world: World) -> None:
    process = world.process()
    agent = await world.agent(process)
    steps = [call("archival_memory_insert", content=f"Fact {number}.") for number in range(14)]
    world.model.script = by_place(*steps, say("Done."))

    async def interrupt(name: str) -> None:
        if name == "model.stream" and process.faults.calls.count("model.stream") % 2:
            raise DatabaseUnavailable("Each step is interrupted once.")

    process.faults.on_call = interrupt
    run = await process.start(agent)
    await process.idle()
    for _ in range(16):
        await process.recover()
    assert (await process.runs.get(ME, run.id)).status is RunStatus.COMPLETED


@pytest.mark.parametrize("ahead", [3, 1 << 40])
async def test_higher_epoch_in_recall_is_exceeded_at_once(world: World, process: Process, ahead: int) -> None:
    agent = await world.agent(process)
    world.model.script = lambda request: say("Hello.")
    window = world.window(agent)
    ids = [message.id for message in window.messages]
    conversation = agent.default_conversation_id
    await world.recall.replace_context(
        new_id("request"), agent.id, conversation, window.version, ids, run_id=new_id("run"), epoch=ahead
    )
    await process.send(agent)
    assert (await process.outcome(agent)).status is RunStatus.COMPLETED
    assert len(world.model.requests) == 1
    commits = process.faults.calls.count("recall.commit_step")
    await process.send(agent)
    assert process.faults.calls.count("recall.commit_step") == commits + 1, "later leases begin above it"
    await process.windows.reset(ME, None, agent.id, agent.default_conversation_id, add_default=False)
    assert len(world.window(agent).messages) == 1
