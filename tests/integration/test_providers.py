"""Failures of providers: each has a precise stop reason, the window is unchanged, and the agent stays usable."""

import json
from typing import Any

import pytest
from mnemesh.agents.v1 import agents_pb2, models_pb2, models_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_testkit.fakes import server
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import assert_whole, collect, stored, texts, turn, window_of

MODEL = "openai/fake-model"


async def create(mesh: Mesh, **options: Any) -> Agent:
    return await mesh.client.agents.create(**{"model": MODEL, "blocks": {"human": "", "persona": "Kind."}, **options})


@pytest.mark.parametrize(
    ("faults", "attempts"),
    [
        ([server.rate_limited(0)], 1),
        ([server.status(500), server.rate_limited(0)], 1),
        ([server.overloaded()], 1),
        ([server.html_page(502)], 1),
        ([server.cut_stream()], 2),
        ([server.cut_stream(is_clean=True)], 2),
    ],
    ids=["429", "500", "overloaded", "html", "cut", "ended-early"],
)
async def test_temporary_failures_are_retried(
    mesh: Mesh, fake_openai: FakeOpenAI, faults: list[Any], attempts: int
) -> None:
    agent = await create(mesh)
    fake_openai.script = [*faults, "Here I am."]
    result = await turn(agent, "Are you there?", stream_tokens=True)
    assert (result.status, result.said) == ("COMPLETED", "Here I am.")
    assert result.streamed == "Here I am."
    assert len(fake_openai.requests) == len(faults) + 1
    assert [e.step_started.attempt for e in result.events if e.HasField("step_started")][-1] == attempts
    assert len(await stored(agent)) == 2


FAILURES: list[tuple[Any, str, str]] = [
    (server.rate_limited(3600), "LLM_API_ERROR", "PROVIDER_RATE_LIMITED"),
    (server.status(401, "Incorrect API key"), "LLM_API_ERROR", "PROVIDER_AUTH"),
    (server.status(402, "No credit"), "INSUFFICIENT_CREDITS", "PROVIDER_PAYMENT_REQUIRED"),
    (server.status(400, "Bad tools"), "LLM_API_ERROR", "PROVIDER_REFUSED"),
    (server.garbage(), "INVALID_LLM_RESPONSE", "PROVIDER_BAD_ANSWER"),
    (server.garbage(streamed=False), "INVALID_LLM_RESPONSE", "PROVIDER_BAD_ANSWER"),
    (server.empty_answer(), "INVALID_LLM_RESPONSE", "PROVIDER_BAD_ANSWER"),
    (Reply(text=None), "INVALID_LLM_RESPONSE", "PROVIDER_BAD_ANSWER"),
    (Reply(text=None, reasoning="Hm."), "INVALID_LLM_RESPONSE", "PROVIDER_BAD_ANSWER"),
    (Reply(text=None, finish_reason="MALFORMED_FUNCTION_CALL"), "INVALID_LLM_RESPONSE", "PROVIDER_BAD_ANSWER"),
    (Reply(text=None, finish_reason="content_filter: SAFETY"), "CONTENT_FILTER", "PROVIDER_CONTENT_FILTER"),
    (server.raw_stream(), "INVALID_LLM_RESPONSE", "PROVIDER_BAD_ANSWER"),
    (server.raw_stream("data: [DONE]", ""), "INVALID_LLM_RESPONSE", "PROVIDER_BAD_ANSWER"),
    (server.raw_stream("upstream connect error"), "INVALID_LLM_RESPONSE", "PROVIDER_BAD_ANSWER"),
    (server.raw_stream('data: {"error": {"code": 401, "message": "Nope."}}', ""), "LLM_API_ERROR", "PROVIDER_AUTH"),
]


async def test_failure_leaves_the_window_unchanged_and_the_agent_usable(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    for fault, stop, reason in FAILURES:
        agent = await create(mesh)
        request = 2 if reason == "PROVIDER_BAD_ANSWER" else 1
        fake_openai.script = ["Hello.", *[fault] * request, "I am back."]
        fake_openai.requests.clear()
        await turn(agent, "Hello")
        before = await window_of(mesh.client, agent)

        failed = await turn(agent, "Tell me more.")

        assert (failed.status, failed.stop) == ("FAILED", stop), (fault, failed.error)
        assert failed.error is not None
        assert failed.error.reason == reason
        assert "sk-test" not in str(failed.error)
        assert await window_of(mesh.client, agent) == before
        assert len(fake_openai.requests) == 1 + request, "a failure for good was asked again"

        again = await turn(agent, "Once more.")
        assert again.said == "I am back."
        assert "Tell me more." not in "".join(texts(fake_openai.requests[1 + request].body))


async def test_agents_runs_and_steps_have_their_cost_if_the_price_is_known(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Hello.", "Hello again."]
    free = await turn(agent, "Hello")
    assert not (await mesh.client.runs.get(free.run_id)).usage.HasField("cost_nano_usd")
    assert await agent.cost() is None
    model = models_pb2.Model(handle=MODEL, price=models_pb2.ModelPrice(input=2_000_000, output=8_000_000))
    await mesh.client.models.stub.UpdateModel(
        models_service_pb2.UpdateModelRequest(model=model, update_mask={"paths": ["price"]})
    )
    paid = await turn(agent, "Hello")
    run = await mesh.client.runs.get(paid.run_id)
    assert run.usage.cost_nano_usd == run.usage.prompt_tokens * 2_000 + run.usage.completion_tokens * 8_000 > 0
    (step,) = [step async for step in mesh.client.runs.steps(paid.run_id)]
    assert step.usage.cost_nano_usd == run.usage.cost_nano_usd
    assert await agent.cost() == run.usage.cost_nano_usd / 1e9


def half(text: str, finish: str | None = None) -> str:
    """A line of a stream as a JavaScript proxy writes it, which cuts texts between the halves of a character."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'x', 'object': 'chat.completion.chunk', 'choices': [choice]})}\n"


async def test_lone_surrogates_of_a_provider_neither_fail_a_run_nor_block_an_agent(
    mesh: Mesh, fake_openai: FakeOpenAI
) -> None:
    agent = await create(mesh)
    fake_openai.script = [
        server.raw_stream(half("Hi \ud83d"), half("\ude00 \udc00", "stop"), "data: [DONE]\n"),
        server.Fault(kind="body", status=400, body=b'{"error": {"message": "odd \\ud800 text"}}'),
        "Still here.",
    ]
    result = await turn(agent, "Hello", stream_tokens=True)
    assert (result.status, result.said, result.streamed) == ("COMPLETED", "Hi 😀 \ufffd", "Hi 😀 \ufffd")
    failed = await turn(agent, "And now?")
    assert failed.error is not None
    assert (failed.status, "odd \ufffd text" in failed.error.message) == ("FAILED", True)
    assert (await turn(agent, "Again?")).said == "Still here."
    assert len(fake_openai.requests) == 3


async def test_error_has_the_retry_after_of_the_provider(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = [server.rate_limited(3600)]
    failed = await turn(agent, "Hello")
    assert failed.error is not None
    assert failed.error.metadata["retry_after_seconds"] == "3600"
    assert failed.error.metadata["provider"] == "openai"


async def test_failed_run_is_retried_with_its_input(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = [server.status(401), "Your key is under the mat."]
    failed = await turn(agent, "Where is my key?")
    retried = await mesh.client.runs.retry(failed.run_id)
    result = await collect(mesh.client.runs.stream(retried.id))
    assert result.said == "Your key is under the mat."
    assert retried.id != failed.run_id
    assert retried.retry_of_run_id == failed.run_id
    first, second = (texts(request.body)[1:] for request in fake_openai.requests)
    assert [json.loads(text)["message"] for text in first] == ["Where is my key?"]
    assert [json.loads(text)["message"] for text in second] == ["Where is my key?"]
    assert [m.role for m in await stored(agent)] == [message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT]


async def test_completed_run_is_not_retried(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Hello."]
    done = await turn(agent, "Hello")
    with pytest.raises(Exception, match=r".") as refused:
        await mesh.client.runs.retry(done.run_id)
    assert getattr(refused.value, "reason", None) == "RUN_ENDED"


@pytest.mark.parametrize("kind", ["letta_v1", "memgpt_v2"])
async def test_repeated_call_ids_of_a_provider_lose_nothing(mesh: Mesh, fake_openai: FakeOpenAI, kind: str) -> None:
    agent = await create(mesh, type=kind)
    beat = {"request_heartbeat": True, "thinking": "On."} if kind == "memgpt_v2" else {}
    facts = [f"Fact number {number}." for number in range(4)]
    last = (
        Reply(tool_calls=[Call("send_message", {"message": "Done.", "thinking": "End."}, id="call_1")])
        if kind == "memgpt_v2"
        else "Done."
    )
    # two calls in one answer under one id, then one each
    fake_openai.script = [
        Reply(
            tool_calls=[Call("archival_memory_insert", {"content": fact, **beat}, id="call_1") for fact in facts[:2]]
        ),
        *(
            Reply(tool_calls=[Call("archival_memory_insert", {"content": fact, **beat}, id="call_1")])
            for fact in facts[2:]
        ),
        last,
    ]
    result = await turn(agent, "Store four facts.")

    assert result.status == "COMPLETED", result.error
    assert result.said == "Done."
    assert sorted([passage.text async for passage in agent.passages()]) == facts
    rows = await stored(agent)
    assert_whole(rows)
    assert_whole(await window_of(mesh.client, agent))
    tool_call = [call.id for message in rows for call in message.tool_calls]
    inserted = [c for m in rows for c in m.tool_calls if c.name == "archival_memory_insert"]
    assert len(inserted) == 4
    assert len(set(tool_call)) == len(tool_call)
    for request in fake_openai.requests[1:]:
        assert_valid_for_openai(request.body)


async def test_missing_call_ids_are_generated(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = [
        Reply(tool_calls=[Call("archival_memory_insert", {"content": "One."}, id=None)]),
        Reply(tool_calls=[Call("archival_memory_insert", {"content": "Two."}, id="")]),
        "Done.",
    ]
    result = await turn(agent, "Store two facts.")
    assert result.said == "Done."
    assert_whole(await window_of(mesh.client, agent))
    assert_valid_for_openai(fake_openai.requests[2].body)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [('{"content": "unfinis', "JSON"), ("[1, 2]", "object"), ("{}", "content"), ('{"content": 5}', "content")],
    ids=["cut", "list", "missing", "wrong-type"],
)
async def test_invalid_arguments_are_an_error_return(
    mesh: Mesh, fake_openai: FakeOpenAI, arguments: str, told: str
) -> None:
    agent = await create(mesh)
    fake_openai.script = [Reply(tool_calls=[("archival_memory_insert", arguments)]), "I see."]
    result = await turn(agent, "Store it.")
    assert result.status == "COMPLETED", result.error
    assert result.returns[0].status == message_pb2.TOOL_RETURN_STATUS_ERROR
    assert told.lower() in result.returns[0].content[0].text.text.lower()
    assert [passage async for passage in agent.passages()] == []
    assert_valid_for_openai(fake_openai.requests[1].body)


async def test_missing_tool_is_an_error_return(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = [Reply(tool_calls=[("launch_rocket", {})]), "There is no rocket."]
    result = await turn(agent, "Launch!")
    assert result.status == "COMPLETED", result.error
    assert result.returns[0].status == message_pb2.TOOL_RETURN_STATUS_ERROR
    assert_whole(await window_of(mesh.client, agent))


async def test_v2_run_fails_if_the_model_calls_no_tool(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh, type="memgpt_v2")
    before = await window_of(mesh.client, agent)
    fake_openai.script = ["Plain text.", Reply(tool_calls=[("send_message", {"message": "Hi.", "thinking": "."})])]
    failed = await turn(agent, "Hello")
    assert failed.stop == "NO_TOOL_CALL"
    assert await window_of(mesh.client, agent) == before
    assert (await turn(agent, "Hello?")).said == "Hi."


@pytest.mark.parametrize(
    ("fault", "stop"),
    [
        (server.rate_limited(3600), "LLM_API_ERROR"),
        (server.context_overflow(), "CONTEXT_WINDOW_OVERFLOW"),
        (server.garbage(streamed=False), "INVALID_LLM_RESPONSE"),
        (server.empty_answer(), "INVALID_LLM_RESPONSE"),
    ],
    ids=["429", "overflow", "garbage", "empty"],
)
async def test_anthropic_failures_have_the_same_stop_reasons(
    mesh: Mesh, fake_anthropic: FakeAnthropic, fault: Any, stop: str
) -> None:
    agent = await create(mesh, model="anthropic/claude-sonnet-4-5")
    fake_anthropic.script = [*[fault] * (2 if stop == "INVALID_LLM_RESPONSE" else 1), "I am back."]
    failed = await turn(agent, "Hello")
    assert (failed.status, failed.stop) == ("FAILED", stop)
    assert (await turn(agent, "Hello?")).said == "I am back."


@pytest.mark.parametrize("stream_tokens", [False, True], ids=["whole", "tokens"])
async def test_anthropic_turn_with_thinking_and_a_tool_call(
    mesh: Mesh, fake_anthropic: FakeAnthropic, stream_tokens: bool
) -> None:
    thinks = agents_pb2.ModelSettings(enable_reasoner=True, max_reasoning_tokens=2_048)
    agent = await create(mesh, model="anthropic/claude-sonnet-4-5", settings=thinks)
    fake_anthropic.script = [
        Reply(
            reasoning="The human wants it kept.",
            signature="sig-1",
            text="Let me store that.",
            tool_calls=[("archival_memory_insert", {"content": "The key is under the mat."})],
        ),
        "Stored.",
    ]
    result = await turn(agent, "Remember the key.", stream_tokens=stream_tokens)
    assert result.status == "COMPLETED", result.error
    assert result.said.splitlines()[-1] == "Stored."
    second = fake_anthropic.requests[1].body["messages"]
    assert "sig-1" in str(second), "the signature of the thinking did not go back"
    assert [block["type"] for block in second[-1]["content"]] == ["tool_result"]
    assert_whole(await window_of(mesh.client, agent))


def assert_valid_for_openai(body: dict[str, Any]) -> None:
    """In a recorded request, the return with the same id follows each call, and no id occurs twice."""
    waiting: list[str] = []
    seen: set[str] = set()
    for message in body["messages"]:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert not waiting
        for call in message.get("tool_calls") or ():
            assert call["id"]
            assert call["id"] not in seen
            seen.add(call["id"])
            waiting.append(call["id"])
    assert not waiting
