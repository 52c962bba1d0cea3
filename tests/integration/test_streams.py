"""The events of a run that a client receives: requested kinds, keepalives, errors, the last events, usage."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh_client import Agent
from mnemesh_client.inputs import text_part
from mnemesh_testkit.fakes import server
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply, Usage
from mnemesh_testkit.mesh.in_process import Mesh

KINDS = {
    "tool_call": runs_pb2.EVENT_KIND_TOOL_CALL_MESSAGE,
    "tool_return": runs_pb2.EVENT_KIND_TOOL_RETURN_MESSAGE,
    "user": runs_pb2.EVENT_KIND_USER_MESSAGE,
    "assistant": runs_pb2.EVENT_KIND_ASSISTANT_MESSAGE,
    "step_started": runs_pb2.EVENT_KIND_STEP_STARTED,
    "reasoning": runs_pb2.EVENT_KIND_REASONING_MESSAGE,
}
ENDING = ["stop", "usage"]


async def create(mesh: Mesh) -> Agent:
    return await mesh.client.agents.create(model="openai/fake-model", blocks={"human": ""})


async def sent(mesh: Mesh, agent: Agent, **config: Any) -> list[runs_pb2.RunEvent]:
    request = runs_service_pb2.SendMessageRequest(
        agent_id=agent.id,
        messages=[runs_pb2.InputMessage(content=[text_part("Hello.")])],
        config=runs_pb2.RunConfig(**config),
    )
    return await heard(mesh.client.runs.stub.SendMessage(request))


async def attached(mesh: Mesh, run_id: str, **options: Any) -> list[runs_pb2.RunEvent]:
    request = runs_service_pb2.StreamRunRequest(run_id=run_id, **options)
    return await heard(mesh.client.runs.stub.StreamRun(request))


async def heard(responses: AsyncIterator[Any]) -> list[runs_pb2.RunEvent]:
    return [response.event async for response in responses]


def kinds(events: list[runs_pb2.RunEvent]) -> list[str]:
    """Kinds of events, of messages by what they are."""
    found = [str(event.WhichOneof("event")) for event in events]
    return [
        str(event.message.WhichOneof("message")) if kind == "message" else kind
        for event, kind in zip(events, found, strict=True)
    ]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((), ["user", "reasoning", "tool_call", "tool_return", "assistant"]),
        (("assistant",), ["assistant"]),
        (("user", "assistant"), ["user", "assistant"]),
        (("tool_return", "tool_call"), ["tool_call", "tool_return"]),
        (("step_started", "tool_call"), ["tool_call"]),
    ],
)
async def test_stream_has_the_requested_kinds_of_events(
    mesh: Mesh, fake_openai: FakeOpenAI, wanted: tuple[str, ...], expected: list[str]
) -> None:
    """A client that reconnects also receives these kinds. The final events are always sent."""
    agent = await create(mesh)
    fake_openai.script = [
        Reply(reasoning="Keep it.", tool_calls=[Call("memory_insert", {"label": "human", "new_str": "Ada"})]),
        "Kept.",
    ]
    events = await sent(mesh, agent, include_events=[KINDS[kind] for kind in wanted])
    assert ("step_started" in kinds(events)) is (not wanted or "step_started" in wanted)
    entries = [kind for kind in kinds(events) if kind != "step_started"]
    assert entries == ["accepted", *expected, *ENDING]
    assert kinds(await attached(mesh, events[0].run_id)) == ["accepted", *expected, *ENDING]


@pytest.mark.parametrize("wanted", [(), ("assistant",), ("reasoning", "tool_call"), ("tool_return",)])
async def test_deltas_are_of_the_requested_kinds(mesh: Mesh, fake_openai: FakeOpenAI, wanted: tuple[str, ...]) -> None:
    """In the live stream and in the stored one of a background run."""
    agent = await create(mesh)
    kept = Reply(reasoning="Keep it.", tool_calls=[Call("memory_insert", {"label": "human", "new_str": "Ada"})])
    fake_openai.script = [kept, "Kept.", "And again."]
    chosen = [KINDS[kind] for kind in wanted]
    live = await sent(mesh, agent, include_events=chosen, stream_tokens=True)
    pieces = {str(event.delta.WhichOneof("delta")).removesuffix("_text") for event in live if event.HasField("delta")}
    assert pieces == set(wanted or ("assistant", "reasoning", "tool_call")) - {"tool_return"}
    config = runs_pb2.RunConfig(include_events=chosen, stream_tokens=True)
    run = await mesh.client.runs.start(agent.id, "Again.", config=config)
    stored = await attached(mesh, run.id, include_deltas=True)
    assert any(event.HasField("delta") for event in stored) is ("assistant" in wanted or not wanted)
    assert kinds(stored)[-2:] == ENDING


async def waited(mesh: Mesh, agent: Agent, request_id: str = "", **config: Any) -> list[runs_pb2.RunEvent]:
    request = runs_service_pb2.SendMessageAndWaitRequest(
        request_id=request_id,
        agent_id=agent.id,
        messages=[runs_pb2.InputMessage(content=[text_part("Hello.")])],
        config=runs_pb2.RunConfig(**config),
    )
    return list((await mesh.client.runs.stub.SendMessageAndWait(request)).events)


async def test_one_response_has_the_events_of_the_whole_turn(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    """Those that mean something after the turn: no deltas."""
    agent = await create(mesh)
    fake_openai.script = [Reply(tool_calls=[Call("memory_insert", {"label": "human", "new_str": "Ada"})]), "Kept."]
    events = await waited(mesh, agent, stream_tokens=True, include_events=[KINDS["tool_return"], KINDS["assistant"]])
    assert kinds(events) == ["accepted", "tool_return", "assistant", *ENDING]
    assert kinds(await attached(mesh, events[0].run_id)) == kinds(events)


async def test_same_request_id_is_the_same_turn_as_a_stream_and_as_one_response(
    mesh: Mesh, fake_openai: FakeOpenAI
) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Once."]
    whole = await waited(mesh, agent, request_id="r-1")
    request = runs_service_pb2.SendMessageRequest(
        request_id="r-1",
        agent_id=agent.id,
        messages=[runs_pb2.InputMessage(content=[text_part("Hello.")])],
        config=runs_pb2.RunConfig(),
    )
    streamed = await heard(mesh.client.runs.stub.SendMessage(request))
    again = await waited(mesh, agent, request_id="r-1")
    assert kinds(streamed) == kinds(again) == ["accepted", "user", "assistant", *ENDING]
    assert {event.run_id for event in (*whole, *streamed, *again)} == {whole[0].run_id}
    assert len(fake_openai.requests) == 1


async def test_events_that_are_ready_together_come_in_one_response_to_clients_that_ask(
    mesh: Mesh, fake_openai: FakeOpenAI
) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Once."]
    request = runs_service_pb2.SendMessageRequest(
        request_id="r-1",
        agent_id=agent.id,
        messages=[runs_pb2.InputMessage(content=[text_part("Hello.")])],
        batch_events=True,
    )
    together = [response async for response in mesh.client.runs.stub.SendMessage(request)]
    assert len(together) < 6
    events = [event for response in together for event in (response.event, *response.further_events)]
    assert kinds(events) == ["accepted", "user", "step_started", "assistant", *ENDING]
    request.ClearField("batch_events")
    single = [response async for response in mesh.client.runs.stub.SendMessage(request)]
    assert not any(response.further_events for response in single)
    assert [response.event for response in single][1:] == [event for event in events if event.HasField("sequence")]
    again = runs_service_pb2.StreamRunRequest(run_id=events[0].run_id, batch_events=True)
    replayed = [response async for response in mesh.client.runs.stub.StreamRun(again)]
    stored = [event for response in replayed for event in (response.event, *response.further_events)]
    assert stored[1:] == [response.event for response in single][1:]
    assert len(fake_openai.requests) == 1


async def test_responses_with_several_events_are_bounded(
    mesh: Mesh, fake_openai: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnemesh_orchestrator.rpc.runs.MAX_PAGE_BYTES", 600)
    agent = await create(mesh)
    fake_openai.script = ["x" * 500]
    events = await sent(mesh, agent)
    again = runs_service_pb2.StreamRunRequest(run_id=events[0].run_id, batch_events=True)
    responses = [response async for response in mesh.client.runs.stub.StreamRun(again)]
    assert len(responses) > 2
    assert all(response.ByteSize() < 900 for response in responses)


async def test_response_ends_before_it_is_too_large(
    mesh: Mesh, fake_openai: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with gRPC's default limit of 4 MB can read it, and the rest as a stream."""
    monkeypatch.setattr("mnemesh_orchestrator.rpc.runs.MAX_PAGE_BYTES", 600)
    agent = await create(mesh)
    fake_openai.script = ["x" * 500]
    events = await waited(mesh, agent)
    assert kinds(events) == ["accepted", "user", "step_started"]
    rest = await attached(mesh, events[0].run_id, starting_after=events[1].sequence)
    assert kinds(rest) == ["accepted", "assistant", *ENDING]


async def test_keepalives_are_sent_while_the_model_is_silent(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent, gate = await create(mesh), asyncio.Event()
    fake_openai.script = [Reply(text="At last.", gates=[gate])]
    request = runs_service_pb2.SendMessageRequest(
        agent_id=agent.id,
        messages=[runs_pb2.InputMessage(content=[text_part("Hello.")])],
        config=runs_pb2.RunConfig(keepalive_seconds=1),
    )
    found = []
    async for response in mesh.client.runs.stub.SendMessage(request):
        found.append(response.event)
        if response.event.HasField("keepalive"):
            assert not response.event.HasField("sequence")
            gate.set()
    assert "keepalive" in kinds(found)
    assert [kind for kind in kinds(found) if kind != "keepalive"][-3:] == ["assistant", *ENDING]


async def test_error_event_precedes_the_end_of_the_stream(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = [
        Reply(tool_calls=[Call("memory_insert", {"label": "human", "new_str": "Ada"})]),
        server.status(400, "No such parameter."),
    ]
    events = await sent(mesh, agent)
    assert kinds(events)[-5:] == ["tool_return", "step_started", "error", *ENDING]
    assert [event.sequence for event in events if event.HasField("sequence")] == [1, 2, 3, 4, 5, 6]
    assert (events[-3].error.error.reason, events[-1].usage.step_count) == ("PROVIDER_REFUSED", 2)
    assert kinds(await attached(mesh, events[0].run_id, starting_after=3)) == ["accepted", "error", *ENDING]
    fake_openai.script = [server.status(400, "No such parameter.")]
    assert kinds(await waited(mesh, agent)) == ["accepted", "user", "step_started", "error", *ENDING]


@pytest.mark.parametrize(
    ("reported", "prompt", "cached", "reasoning"),
    [
        (Usage(input=10, output=5, cached=0, reasoning=0), 20, 0, 0),
        (Usage(input=10, output=5), 20, None, None),
        (Usage(input=10, output=5, cached=4), 20, 8, None),
        (None, None, None, None),
    ],
    ids=["zero", "not reported", "some", "nothing at all"],
)
async def test_unreported_usage_is_unset(
    mesh: Mesh,
    fake_openai: FakeOpenAI,
    reported: Usage | None,
    prompt: int | None,
    cached: int | None,
    reasoning: int | None,
) -> None:
    """The sum of two steps: in the stream, in the run, and for a client that connects later."""
    agent = await create(mesh)
    fake_openai.script = [
        Reply(tool_calls=[Call("memory_insert", {"label": "human", "new_str": "Ada"})], usage=reported),
        Reply(text="Kept.", usage=reported),
    ]
    events = await sent(mesh, agent)
    run_id = events[0].run_id
    later = await attached(mesh, run_id)
    for usage in (events[-1].usage.usage, later[-1].usage.usage, (await mesh.client.runs.get(run_id)).usage):
        found = {
            name: getattr(usage, name) if usage.HasField(name) else None
            for name in ("prompt_tokens", "cached_input_tokens", "reasoning_tokens")
        }
        assert found == {"prompt_tokens": prompt, "cached_input_tokens": cached, "reasoning_tokens": reasoning}


async def test_background_run_is_replayed_token_by_token(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent, gate = await create(mesh), asyncio.Event()
    words = "A long answer, which comes in a good many pieces."
    fake_openai.script = [Reply(text=words, gates=[gate])]
    request = runs_service_pb2.StartRunRequest(
        agent_id=agent.id,
        messages=[runs_pb2.InputMessage(content=[text_part("Hello.")])],
        config=runs_pb2.RunConfig(stream_tokens=True),
    )
    run = (await mesh.client.runs.stub.StartRun(request)).run
    following = asyncio.create_task(attached(mesh, run.id, include_deltas=True))
    gate.set()
    live, again = await following, await attached(mesh, run.id, include_deltas=True)
    assert [event for event in again if not event.HasField("accepted")] == [
        event for event in live if event.WhichOneof("event") not in ("accepted", "keepalive")
    ]
    said = "".join(event.delta.assistant_text for event in again if event.HasField("delta"))
    assert said == words
    assert not [event for event in await attached(mesh, run.id) if event.HasField("delta")]
