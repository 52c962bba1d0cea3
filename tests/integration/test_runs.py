"""Runs over the client: repeated, queued, cancelled, followed again, and not lost with a stream."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, runs_pb2, runs_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, text_of
from mnemesh_client.inputs import text_part
from mnemesh_kit.errors import Aborted, InvalidArgument
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.fakes import server
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.faulty_proxy import Delay
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import assert_whole, collect, stored, texts, turn, window_of
from mnemesh_testkit.timeouts import scaled

MODEL = "openai/fake-model"


async def create(mesh: Mesh, **options: Any) -> Agent:
    return await mesh.client.agents.create(**{"model": MODEL, "blocks": {"human": "", "persona": "Kind."}, **options})


async def test_repeated_request_id_returns_the_same_run_during_and_after_it(
    mesh: Mesh, fake_openai: FakeOpenAI
) -> None:
    agent = await create(mesh)
    gate = asyncio.Event()
    fake_openai.script = [Reply(text="Only once.", gates=[gate])]
    sending = [asyncio.create_task(turn(agent, "Hello", request_id="r-1")) for _ in range(5)]
    await _until_asked(fake_openai)
    gate.set()
    received = await asyncio.gather(*sending)
    after = await turn(agent, "Hello", request_id="r-1")
    assert len({item.run_id for item in (*received, after)}) == 1
    assert {item.said for item in (*received, after)} == {"Only once."}
    assert sum(not item.accepted.replayed for item in received) == 1
    assert after.accepted.replayed
    assert len(fake_openai.requests) == 1
    assert len(await stored(agent)) == 2


async def test_request_id_with_other_content_is_refused(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Once."]
    await turn(agent, "Hello", request_id="r-1")
    with pytest.raises(InvalidArgument) as refused:
        await turn(agent, "Something else", request_id="r-1")
    assert refused.value.reason == "REQUEST_ID_REUSED"


async def test_send_message_and_start_run_share_request_ids(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Once."]
    sent: dict[str, Any] = {"request_id": "r-1", "agent_id": agent.id}
    sent["messages"] = [runs_pb2.InputMessage(content=[text_part("Hello")])]
    run = (await mesh.stubs.runs.StartRun(runs_service_pb2.StartRunRequest(**sent))).run
    again = mesh.stubs.runs.SendMessage(runs_service_pb2.SendMessageRequest(**sent))
    events = [response.event async for response in again]
    assert (events[0].run_id, events[0].accepted.replayed) == (run.id, True)
    sent["messages"] = [runs_pb2.InputMessage(content=[text_part("Other")])]
    with pytest.raises(InvalidArgument) as refused:
        await mesh.stubs.runs.StartRun(runs_service_pb2.StartRunRequest(**sent))
    assert refused.value.reason == "REQUEST_ID_REUSED"
    assert len(fake_openai.requests) == 1


async def test_repeated_otid_returns_the_same_run(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Only once.", "Another."]
    message = runs_pb2.InputMessage(content=[text_part("Hello")], otid="client-1")
    first = await turn(agent, message)
    second = await turn(agent, message)
    assert (second.run_id, second.said) == (first.run_id, "Only once.")
    assert second.accepted.replayed
    other = await turn(agent, runs_pb2.InputMessage(content=[text_part("Hello")], otid="client-2"))
    assert other.run_id != first.run_id
    assert [m.otid for m in await stored(agent) if m.role == message_pb2.ROLE_USER] == ["client-1", "client-2"]


async def test_twenty_concurrent_messages_run_one_after_another(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    at_once = most = 0

    async def answer(body: dict[str, Any]) -> Reply:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return Reply(text=f"Answer {len(fake_openai.requests)}.")

    fake_openai.script = answer
    result = await asyncio.gather(*(turn(agent, f"Question {number}.") for number in range(20)))
    assert most == 1
    assert [item.status for item in result] == ["COMPLETED"] * 20
    assert sorted(item.said for item in result) == sorted(f"Answer {number}." for number in range(1, 21))
    rows = await stored(agent)
    assert [row.role for row in rows] == [message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT] * 20
    assert [row.sequence_id for row in rows] == sorted({row.sequence_id for row in rows})
    assert [len(request.body["messages"]) for request in fake_openai.requests] == [2 + 2 * n for n in range(20)]
    # first in, first out: runs answered in the order in which they were stored
    runs = [run async for run in mesh.client.runs.list(agent_id=agent.id, order="asc")]
    by_run = {row.run_id: place for place, row in enumerate(rows)}
    assert [run.id for run in runs] == sorted((run.id for run in runs), key=lambda run_id: by_run[run_id])


async def test_two_agents_run_in_parallel(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    first, second = await create(mesh), await create(mesh)
    gate = asyncio.Event()
    fake_openai.script = lambda body: Reply(text="Slow.", gates=[gate]) if "slow" in str(body) else Reply(text="Quick.")
    slow = asyncio.create_task(turn(first, "Be slow, slowly."))
    await _until_asked(fake_openai)
    assert (await turn(second, "Be quick.")).said == "Quick."
    assert not slow.done()
    gate.set()
    assert (await slow).said == "Slow."


async def test_agents_with_a_shared_client_are_separate(
    mesh: Mesh, fake_openai: FakeOpenAI, fake_anthropic: FakeAnthropic
) -> None:
    words = ("heron", "otter", "lynx")

    def answer(body: dict[str, Any]) -> Reply:
        return Reply(text=f"I heard of the {'- '.join(word for word in words if word in json.dumps(body))}.")

    fakes = {MODEL: fake_openai, "anthropic/claude-fake": fake_anthropic}
    for model, fake in fakes.items():
        fake.script = answer
        # The first turn loads the provider's SDK, which takes seconds on a busy machine.
        await turn(await create(mesh, model=model), "Hello.")
        agents = {word: await create(mesh, model=model, blocks={"human": f"Likes the {word}."}) for word in words}

        async def talk(agent: Agent, word: str) -> None:
            for number in range(4):
                result = await turn(agent, f"Turn {number}.")
                assert result.said == f"I heard of the {word}.", result.error

        await asyncio.gather(*(talk(agent, word) for word, agent in agents.items()))
        for word in words:
            own = [request.body for request in fake.requests if word in json.dumps(request.body)]
            events = [[number for number in range(4) if f"Turn {number}." in json.dumps(body)] for body in own]
            assert events == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]], "each request holds all that it needs"


async def test_rejected_message_names_the_active_run(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    gate = asyncio.Event()
    fake_openai.script = [Reply(text="First.", gates=[gate])]
    first = await mesh.client.runs.start(agent.id, "Hello")
    with pytest.raises(Aborted) as busy:
        await turn(agent, "Me too", config=runs_pb2.RunConfig(on_busy=runs_pb2.ON_BUSY_REJECT))
    assert busy.value.reason == "CONVERSATION_BUSY"
    assert busy.value.metadata["run_id"] == first.id
    gate.set()
    await collect(mesh.client.runs.stream(first.id))


async def test_lost_stream_does_not_end_the_run(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    gate = asyncio.Event()
    fake_openai.script = [
        Reply(tool_calls=[("archival_memory_insert", {"content": "One."})]),
        Reply(text="Finished all the same.", gates=[gate]),
    ]
    events = agent.send("Hello", stream_tokens=True)
    run_id = ""
    async for event in events:
        run_id = event.run_id
        if event.HasField("message") and event.message.HasField("tool_return"):
            break
    await events.aclose()  # type: ignore[attr-defined]
    gate.set()
    rest = await collect(mesh.client.runs.stream(run_id))
    assert (rest.status, rest.said) == ("COMPLETED", "Finished all the same.")
    assert_whole(await window_of(mesh.client, agent))


@pytest.mark.parametrize("live", [False, True], ids=["ended", "running"])
async def test_run_is_streamed_again_from_any_event_without_loss(
    mesh: Mesh, fake_openai: FakeOpenAI, live: bool
) -> None:
    agent = await create(mesh)
    gate = asyncio.Event()
    steps: list[Any] = [Reply(tool_calls=[("archival_memory_insert", {"content": f"{n}"})]) for n in range(3)]
    fake_openai.script = [*steps, Reply(text="Done.", gates=[gate])]
    run = await mesh.client.runs.start(agent.id, "Store three.")
    if not live:
        gate.set()
        await collect(mesh.client.runs.stream(run.id))
    following = [asyncio.create_task(_numbers(mesh, run.id, after)) for after in range(8)]
    await asyncio.sleep(0)
    gate.set()
    received = await asyncio.gather(*following)
    newest = (await mesh.client.runs.get(run.id)).last_sequence
    assert newest >= 9
    assert received == [list(range(after + 1, newest + 1)) for after in range(8)]


async def test_cancellation_during_a_model_call_leaves_the_agent_usable(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Hello.", server.hang()]
    await turn(agent, "Hello")
    before = await window_of(mesh.client, agent)
    run = await mesh.client.runs.start(agent.id, "Think for ever.")
    waiting = await mesh.client.runs.start(agent.id, "I wait behind.")
    await _until_asked(fake_openai, 2)

    outcomes = await mesh.client.runs.cancel(agent_id=agent.id)

    assert outcomes == {
        run.id: runs_service_pb2.CANCEL_OUTCOME_CANCELLED,
        waiting.id: runs_service_pb2.CANCEL_OUTCOME_CANCELLED,
    }
    for cancelled in (run, waiting):
        result = await collect(mesh.client.runs.stream(cancelled.id))
        assert (result.status, result.stop) == ("CANCELLED", "CANCELLED")
    *kept, said = await window_of(mesh.client, agent)
    assert (kept, text_of(said.content)) == (before, "Think for ever.")
    assert [text_of(row.content) for row in await stored(agent)][-2:] == ["Think for ever.", "I wait behind."]
    assert len(fake_openai.requests) == 2, "a cancelled run that waited was begun"
    fake_openai.script = ["Back."]
    assert (await turn(agent, "Hello?")).said == "Back."
    ended = await mesh.client.runs.cancel(run.id)
    assert ended == {run.id: runs_service_pb2.CANCEL_OUTCOME_ENDED_BEFORE}


@pytest.mark.mesh(proxied=["archival"])
async def test_cancellation_between_tools_leaves_a_valid_window(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    calls = [("archival_memory_insert", {"content": name}) for name in ("One.", "Two.", "Three.")]
    fake_openai.script = [Reply(tool_calls=calls), "Never asked.", "Back."]
    mesh.proxies["archival"].inject("InsertPassages", Delay(0))
    hold = mesh.proxies["archival"].hold("InsertPassages")
    run = await mesh.client.runs.start(agent.id, "Store three.")
    await hold.reached.wait()
    await mesh.client.runs.cancel(run.id)
    hold.release.set()
    rows = await window_of(mesh.client, agent)
    assert_whole(rows)
    statuses = [item.status for row in rows for item in row.tool_returns]
    assert statuses == [message_pb2.TOOL_RETURN_STATUS_SUCCESS] + [message_pb2.TOOL_RETURN_STATUS_ERROR] * 2
    assert len(fake_openai.requests) == 1
    fake_openai.script = ["Back."]
    assert (await turn(agent, "Hello?")).said == "Back."


async def test_overflow_stops_the_run_with_the_token_counts(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh, settings=agents_pb2.ModelSettings(context_window=8_000, max_output_tokens=500))
    fake_openai.script = ["Hello.", "Fresh again."]
    await turn(agent, "Hello")
    before = await window_of(mesh.client, agent)
    failed = await turn(agent, "word " * 9_000)
    assert (failed.status, failed.stop) == ("FAILED", "CONTEXT_WINDOW_OVERFLOW")
    assert failed.error is not None
    assert failed.error.reason == "CONTEXT_WINDOW_OVERFLOW"
    assert int(failed.error.metadata["tokens"]) > int(failed.error.metadata["limit"]) > 0
    assert len(fake_openai.requests) == 1, "the provider was asked all the same"
    assert await window_of(mesh.client, agent) == before
    await mesh.stubs.agents.ResetMessages(agents_service_pb2.ResetMessagesRequest(agent_id=agent.id))
    assert await window_of(mesh.client, agent) == []
    assert (await turn(agent, "Hello?")).said == "Fresh again."
    assert "Hello." not in texts(fake_openai.requests[1].body)


async def test_overflow_of_the_system_prompt_has_its_own_stop_reason(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    settings = agents_pb2.ModelSettings(context_window=4_000, max_output_tokens=500)
    agent = await create(mesh, settings=settings)
    await agent.update(system="rule " * 6_000)
    failed = await turn(agent, "Hello")
    assert failed.stop == "CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT"
    assert fake_openai.requests == []


@pytest.mark.mesh(clock=FrozenClock(datetime(2031, 2, 3, 23, 30, tzinfo=UTC)))
async def test_agent_sees_the_time_in_its_time_zone(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh, time_zone="Europe/Berlin")
    fake_openai.script = ["It is half past midnight."]
    await turn(agent, "What time is it?")
    system, said = texts(fake_openai.requests[0].body)
    assert "2031-02-04 12:30:00 AM" in said
    assert "February 04, 2031" in system
    assert {row.create_time.ToDatetime(tzinfo=UTC) for row in await stored(agent)} == {
        datetime(2031, 2, 3, 23, 30, tzinfo=UTC)
    }


async def test_max_steps_ends_a_turn(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = lambda _: Reply(tool_calls=[("conversation_search", {"query": "x"})])
    result = await turn(agent, "Search for ever.", max_steps=3)
    assert (result.status, result.stop) == ("COMPLETED", "MAX_STEPS")
    assert len(fake_openai.requests) == 3
    assert_whole(await window_of(mesh.client, agent))


@pytest.mark.mesh(proxied=["archival"])
async def test_retry_after_a_failed_second_step_duplicates_nothing(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = [
        Reply(tool_calls=[("archival_memory_insert", {"content": "The key is under the mat."})]),
        server.status(401),
        "Stored.",
    ]
    failed = await turn(agent, "Remember the key.")
    assert failed.status == "FAILED"
    retried = await mesh.client.runs.retry(failed.run_id)
    assert (await collect(mesh.client.runs.stream(retried.id))).said == "Stored."
    rows = await stored(agent)
    assert_whole(rows)
    assert [row.role for row in rows if row.role == message_pb2.ROLE_USER] == [message_pb2.ROLE_USER]


async def _numbers(mesh: Mesh, run_id: str, after: int) -> list[int]:
    request = runs_service_pb2.StreamRunRequest(run_id=run_id, starting_after=after)
    return [item.event.sequence async for item in mesh.stubs.runs.StreamRun(request) if item.event.HasField("sequence")]


async def _until_asked(fake: FakeOpenAI, times: int = 1) -> None:
    """Until the fake has had so many requests."""
    async with asyncio.timeout(scaled(60)):
        while len(fake.requests) < times:
            await asyncio.sleep(0.005)


async def test_trace_has_the_sent_request_and_a_step_can_get_feedback(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Hello to you."]
    result = await turn(agent, "Hello")
    step = await anext(mesh.client.runs.steps(result.run_id))
    trace = await mesh.client.runs.trace(step.id)
    assert json.loads(trace.request) == fake_openai.requests[0].body
    assert json.loads(trace.response)["choices"][0]["message"]["content"] == "Hello to you."
    assert "sk-test" not in trace.request + trace.response
    await mesh.client.runs.judge(step.id, "positive", ["kind"])
    judged = await anext(mesh.client.runs.steps(result.run_id))
    assert (judged.feedback, list(judged.tags)) == ("positive", ["kind"])
