"""The event stream of a turn survives broken connections, restarts, and servers that cannot re-attach."""

import asyncio
from typing import TYPE_CHECKING

import pytest
from mnemesh_client import Agent, Mnemesh, approve, patience, returned
from mnemesh_client.errors import NotFound, Unavailable
from mnemesh_client.sync import patience as sync_patience
from mnemesh_kit.retries import Backoff
from mnemesh_testkit.timeouts import FACES, Face, scaled, with_face

if TYPE_CHECKING:
    from mnemesh_testkit.mesh.fake_mesh import FakeMesh

pytestmark = pytest.mark.parametrize("face", FACES, indirect=True)


async def test_broken_stream_is_resumed_after_the_last_event(mnemesh: Mnemesh, mesh: "FakeMesh") -> None:
    agent = await _agent(mnemesh)
    mesh.orchestrator.break_after = [2, 1]

    sequences = await _sequences(agent, "remember the tea")

    assert sequences == [1, 2, 3, 4, 5]
    assert mesh.orchestrator.attached == 2
    assert len(mesh.orchestrator.runs) == 1


async def test_event_that_is_received_again_is_yielded_once(mnemesh: Mnemesh, mesh: "FakeMesh") -> None:
    agent = await _agent(mnemesh)
    mesh.orchestrator.break_after, mesh.orchestrator.repeated = [4], 2

    assert await _sequences(agent, "remember the tea") == [1, 2, 3, 4, 5]
    assert mesh.orchestrator.attached == 1


async def test_request_is_repeated_if_the_connection_breaks_before_the_first_event(
    mnemesh: Mnemesh, mesh: "FakeMesh"
) -> None:
    agent = await _agent(mnemesh)
    mesh.orchestrator.break_after = [0]

    assert await agent.ask("hello") == "You said: hello"
    assert len(mesh.orchestrator.runs) == 1


async def test_whole_turn_is_one_response(mnemesh: Mnemesh, mesh: "FakeMesh") -> None:
    agent = await _agent(mnemesh)
    assert await agent.ask("hello") == "You said: hello"
    assert (mesh.orchestrator.waited, mesh.orchestrator.attached) == (1, 0)


async def test_rest_of_a_turn_with_too_many_events_is_streamed(mnemesh: Mnemesh, mesh: "FakeMesh") -> None:
    agent = await _agent(mnemesh)
    mesh.orchestrator.fitting = 3
    events = mnemesh.runs.send_and_wait(agent.id, "remember the tea")
    assert [event.sequence async for event in events if event.sequence] == [1, 2, 3, 4, 5]
    assert mesh.orchestrator.attached == 1
    assert len(mesh.orchestrator.runs) == 1


async def test_turn_continues_after_a_restart_of_the_server(mnemesh: Mnemesh, mesh: "FakeMesh") -> None:
    agent = await _agent(mnemesh)
    mesh.orchestrator.break_after = [2]
    sequences: list[int] = []

    async def consume() -> None:
        async for event in agent.send("remember the tea"):
            if event.HasField("sequence"):
                sequences.append(event.sequence)
            if event.HasField("sequence") and event.sequence == 1:
                await mesh.stop()
                restarting.append(asyncio.create_task(mesh.start()))

    restarting: list[asyncio.Task[None]] = []
    await consume()

    assert sequences == [1, 2, 3, 4, 5]
    assert len(mesh.orchestrator.runs) == 1
    await restarting[0]


async def test_single_calls_outlast_a_restart_of_the_server(
    mnemesh: Mnemesh, mesh: "FakeMesh", monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await _agent(mnemesh)
    waits: list[float] = []
    real = Backoff.delay
    monkeypatch.setattr(Backoff, "delay", lambda backoff, attempt: _noted(waits, real(backoff, attempt)))
    await mesh.stop()
    calls = asyncio.gather(mnemesh.agents.get(agent.id), mnemesh.agents.create("bob", model="mnemesh/rehearsal"))
    async with asyncio.timeout(scaled(60)):
        while len(waits) < 2:  # gRPC has given up both
            await asyncio.sleep(0.01)
        await mesh.start()
        found, created = await calls
    assert (found.id, created.name) == (agent.id, "bob")
    assert [item.name for item in mesh.orchestrator.agents.values()].count("bob") == 1


async def test_server_that_never_answered_is_not_waited_for(
    face: Face, mesh: "FakeMesh", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience.Patience, "wait", _no_wait)
    monkeypatch.setattr(sync_patience.Patience, "wait", _no_wait)
    await mesh.stop()
    async with with_face(mesh.client(), face) as mnemesh:
        with pytest.raises(Unavailable):
            await mnemesh.agents.get("agent-00000000-0000-4000-8000-000000000000")


def _no_wait(*_: object) -> None:
    raise AssertionError("the client waits")


def _noted(waits: list[float], delay: float) -> float:
    waits.append(delay)
    return delay


async def test_retries_end_after_the_time_limit(mesh: "FakeMesh", face: Face) -> None:
    async with with_face(mesh.client(patience=0.3), face, patience=0.3) as mnemesh:
        agent = await _agent(mnemesh)
        mesh.orchestrator.break_after = [1] + [0] * 100

        with pytest.raises(Unavailable):
            await _sequences(agent, "hello")


async def test_refused_request_is_not_repeated(mnemesh: Mnemesh, mesh: "FakeMesh") -> None:
    agent = await _agent(mnemesh)
    await agent.delete()

    with pytest.raises(NotFound):
        await agent.ask("hello")
    assert not mesh.orchestrator.runs


async def test_run_is_streamed_after_a_sequence_number(mnemesh: Mnemesh) -> None:
    agent = await _agent(mnemesh)
    run_id = ""
    async for event in agent.send("remember the tea"):
        run_id = event.run_id

    later = [event.sequence async for event in mnemesh.runs.stream(run_id, starting_after=3) if event.sequence]

    assert later == [4, 5]


async def test_run_that_has_ended_is_not_waited_for(mnemesh: Mnemesh, mesh: "FakeMesh") -> None:
    """A stream that begins after the last event has none, and is opened once."""
    agent = await _agent(mnemesh)
    sequences = await _sequences(agent, "remember the tea")
    run_id = next(iter(mesh.orchestrator.runs))
    async with asyncio.timeout(scaled(20)):
        run = await mnemesh.runs.wait(run_id)
    assert (run.id, run.last_sequence, mesh.orchestrator.attached) == (run_id, max(sequences), 1)


async def _agent(mnemesh: Mnemesh) -> Agent:
    return await mnemesh.agents.create("ada", model="mnemesh/rehearsal", blocks={"human": ""})


async def _sequences(agent: Agent, text: str) -> list[int]:
    return [event.sequence async for event in agent.send(text) if event.HasField("sequence")]


async def test_broken_stream_of_an_approval_answer_is_resumed(mnemesh: Mnemesh, mesh: "FakeMesh") -> None:
    agent = await _agent(mnemesh)
    requests = [event.message.approval_request async for event in agent.send("launch") if event.HasField("message")]
    one, two = requests[0].tool_calls
    mesh.orchestrator.break_after = [0, 1]
    decisions = [approve(one.id), returned(two.id, "by hand", failed=True)]
    events = [event async for event in agent.answer(decisions, "And then?")]
    assert [event.sequence for event in events if event.HasField("sequence")] == [1, 2, 3]
    assert len(mesh.orchestrator.runs) == 2
    assert list(mesh.orchestrator.decided) == decisions
