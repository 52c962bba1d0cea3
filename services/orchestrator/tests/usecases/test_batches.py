"""Batches and callbacks: runs that start together, once, also if a process crashes."""

from dataclasses import replace
from typing import Any

import pytest
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.inputs import InputMessage, OnBusy, RunConfig
from mnemesh_orchestrator.model.runs import Batch, Run, RunFilter, RunRequest, RunStatus
from mnemesh_types.messages import TextPart

from ..support.faults import Crash, Faults
from ..support.model import Held, say
from ..support.world import ME, Process, World, lines

URL = "https://hooks.example/done"
KEY = RequestKey(ME.organization_id, "StartBatch", "batch-1", "f")


def _request(agent: Agent, text: str = "Hello", **config: Any) -> RunRequest:
    message = InputMessage((TextPart(text),), otid="same")
    return RunRequest(agent.id, "", (message,), RunConfig(**config))


async def _runs(process: Process, batch: Batch) -> tuple[Run, ...]:
    page = PageQuery(100, ascending=True)
    return (await process.runs.list(ME, RunFilter(batch_id=batch.id), page)).items


async def test_a_batch_answers_each_request(world: World, process: Process) -> None:
    ada, bob = await world.agent(process), await world.agent(process)
    world.model.script = lambda request: say(f"Answer to {request.messages[-1].text}.")
    requests = [_request(ada, "one"), _request(bob, "two"), _request(ada, "three")]
    batch = await process.orchestrator.batches.start(ME, None, requests, None)
    await process.idle()
    await process.recover()
    done = await process.orchestrator.batches.get(ME, batch.id)
    assert (done.status, dict(done.runs)) == (RunStatus.COMPLETED, {RunStatus.COMPLETED: 3})
    assert all(run.background for run in await _runs(process, batch))
    assert [line.partition(": ")[2] for line in lines(world.turn(ada))] == [
        *("one", "Answer to one.", "three", "Answer to three.")
    ]
    assert lines(world.turn(bob))[-1] == "assistant text: Answer to two."


async def test_a_crash_at_any_point_neither_loses_nor_repeats_a_run(world: World) -> None:
    first = world.process()
    points = await _points(world, first)
    await first.worker.stop()
    assert points >= 10
    for point in range(points):
        setup = world.process()
        agents = [await world.agent(setup) for _ in range(2)]
        await setup.worker.stop()
        world.faults = Faults()
        world.faults.crashes_at = point
        dying = world.process()
        key = replace(KEY, request_id=f"batch-{point}")
        requests = [_request(agent) for agent in agents]
        with pytest.raises(Crash):
            await dying.orchestrator.batches.start(ME, key, requests, URL)
        await dying.idle()
        world.faults = Faults()
        living = world.process()
        world.model.script = lambda _: say("Hi.")
        batch = await living.orchestrator.batches.start(ME, key, requests, URL)
        await living.recover()
        done = await living.orchestrator.batches.get(ME, batch.id)
        assert dict(done.runs) == {RunStatus.COMPLETED: 2}, point
        assert [lines(world.turn(agent)) for agent in agents] == [["user text: Hello", "assistant text: Hi."]] * 2
        (due,) = await living.orchestrator.callbacks.claim(0)
        assert (due[0].target_id, due[1]) == (batch.id, done)
        await living.orchestrator.callbacks.record(ME.organization_id, batch.id, 1, status=200, error=None)
        await living.worker.stop()


async def _points(world: World, process: Process) -> int:
    """Returns the number of points of a start whose runs have not begun."""
    agents = [await world.agent(process) for _ in range(2)]
    held = [Held(say("Hi.")) for _ in agents]
    world.model.follow(*held)
    before = world.faults.points
    await process.orchestrator.batches.start(ME, None, [_request(agent) for agent in agents], None)
    reads = ("batches.", "runs.claim_next")
    calls = [call for call in world.faults.calls[before // 2 :] if call.startswith(reads)]
    for each in held:
        each.released.set()
    await process.idle()
    return 2 * len(calls)


async def test_a_batch_that_cannot_start_stores_nothing(world: World, process: Process) -> None:
    agent = await world.agent(process)
    wrong: list[tuple[list[RunRequest], str | None, type[Exception], str]] = [
        ([], None, InvalidArgument, "requests"),
        ([_request(agent)] * 1_001, None, InvalidArgument, "requests"),
        ([_request(agent)], "ftp://hooks.example/", InvalidArgument, "callback_url"),
        ([_request(agent)], "http://user:secret@hooks.example/", InvalidArgument, "callback_url"),
        ([_request(agent), _request(agent, max_steps=0)], None, InvalidArgument, "requests[1].config.max_steps"),
        ([_request(agent, callback_url=URL)], None, InvalidArgument, "requests[0].config.callback_url"),
        ([_request(agent, on_busy=OnBusy.REJECT)], None, InvalidArgument, "requests[0].config.on_busy"),
        ([_request(agent), replace(_request(agent), messages=())], None, InvalidArgument, "requests[1].messages"),
    ]
    for requests, url, kind, field in wrong:
        with pytest.raises(kind) as raised:
            await process.orchestrator.batches.start(ME, None, requests, url)
        assert getattr(raised.value, "field", None) == field
    missing = replace(_request(agent), agent_id=new_id("agent"))
    with pytest.raises(NotFound):
        await process.orchestrator.batches.start(ME, None, [_request(agent), missing], None)
    assert (await process.runs.list(ME, RunFilter(), PageQuery(10, ascending=True))).items == ()


async def test_cancelling_a_batch_ends_its_runs(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held, say("Other."))
    batch = await process.orchestrator.batches.start(ME, None, [_request(agent)] * 3, None)
    await held.asked.wait()
    other = await process.start(agent, "Other")
    cancelled = await process.orchestrator.batches.cancel(ME, batch.id)
    assert (cancelled.status, dict(cancelled.runs)) == (RunStatus.CANCELLED, {RunStatus.CANCELLED: 3})
    await process.follow(other)
    assert (await process.runs.get(ME, other.id)).status is RunStatus.COMPLETED
    assert await process.orchestrator.batches.cancel(ME, batch.id) == cancelled


async def test_the_callback_of_a_run_is_due_at_its_end(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.script = lambda _: say("Hi.")
    await process.send(agent, callback_url=URL)
    ((callback, run),) = await process.orchestrator.callbacks.claim(10)
    assert isinstance(run, Run)
    assert (callback.url, run.status) == (URL, RunStatus.COMPLETED)
    await process.orchestrator.callbacks.record(
        ME.organization_id, run.id, callback.attempt, status=None, error="It broke\0" + "x" * 5_000
    )
    stored = (await process.runs.get(ME, run.id)).callback
    assert stored is not None
    assert (stored.status, len(stored.error or ""), (stored.error or "")[:9]) == (None, 500, "It broke\ufffd")
    with pytest.raises(InvalidArgument):
        await process.orchestrator.callbacks.claim(101)
    with pytest.raises(InvalidArgument) as raised:
        await process.start(agent, callback_url="http://hooks.example/a b")
    assert raised.value.field == "config.callback_url"
