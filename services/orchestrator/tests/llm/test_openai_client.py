"""The OpenAI adapter with the real SDK, against a server with the real protocol and with every failure."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from mnemesh_orchestrator.llm import errors
from mnemesh_orchestrator.llm.attempts import CallLimits
from mnemesh_orchestrator.llm.dialects import Listing
from mnemesh_orchestrator.llm.model_listing import served_models
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient
from mnemesh_orchestrator.llm.port import (
    FinishReason,
    LlmAnswer,
    LlmEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from mnemesh_orchestrator.model.models import ModelSettings
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.script import (
    Call,
    Fault,
    Reply,
    Usage,
    context_overflow,
    cut_stream,
    empty_answer,
    error_event,
    garbage,
    hang,
    html_page,
    overloaded,
    rate_limited,
    raw_stream,
    status,
)
from mnemesh_types import usage as model
from mnemesh_types.messages import ReasoningPart, TextPart

from .windows import at, collect, everything, hello, tool

KEY = "sk-test-0123456789abcdef"


class RecordedWaits:
    """Replaces the wait between attempts and records each."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as server:
        yield server


@pytest.fixture
def waits() -> RecordedWaits:
    return RecordedWaits()


@pytest.fixture
async def client(fake: FakeOpenAI, waits: RecordedWaits) -> AsyncIterator[OpenAiChatClient]:
    adapter = OpenAiChatClient(at(fake.base_url, api_key=KEY), sleep=waits)
    yield adapter
    await adapter.close()


async def test_text_is_streamed_in_deltas_and_then_complete(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    usage = Usage(input=100, output=5, cached=80, reasoning=0)
    fake.script = [Reply(text="Hello, wörld of agents!", usage=usage)]
    events, answer = await everything(client, hello())
    assert len(events) > 1
    assert all(isinstance(event, TextDelta) for event in events)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello, wörld of agents!"
    assert answer.content == (TextPart("Hello, wörld of agents!"),)
    assert answer.finish_reason is FinishReason.STOP
    assert answer.usage == model.Usage(100, 5, 105, cached_input_tokens=80, reasoning_tokens=0)
    assert fake.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert fake.requests[0].headers["content-type"] == "application/json"


async def test_sent_body_equals_rendered_and_traced_body(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    fake.script = ["ok"]
    _, answer = await everything(client, hello())
    assert fake.requests[0].raw.decode() == client.render(hello()) == answer.request_body
    assert json.loads(answer.response_body)["choices"][0]["message"]["content"] == "ok"
    assert KEY not in answer.request_body + answer.response_body


async def test_parallel_calls_stream_by_index(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    fake.script = [Reply(tool_calls=[("a", {"x": "long enough for two pieces"}, "id1"), ("b", {}, "id2")])]
    events, answer = await everything(client, hello(tools=(tool("a"), tool("b"))))
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    assert {(delta.index, delta.name) for delta in deltas} == {(0, "a"), (1, "b")}
    assert "".join(d.arguments for d in deltas if d.index == 0) == '{"x": "long enough for two pieces"}'
    assert [(c.name, c.arguments, c.provider_id) for c in answer.tool_calls] == [
        ("a", '{"x": "long enough for two pieces"}', "id1"),
        ("b", "{}", "id2"),
    ]
    assert answer.finish_reason is FinishReason.TOOL_CALLS


async def test_calls_with_repeated_or_missing_ids_are_kept(client: OpenAiChatClient, fake: FakeOpenAI) -> None:
    fake.script = [
        Reply(tool_calls=[("a", {"n": 1}, "call_1"), ("a", {"n": 2}, "call_1"), Call("a", {"n": 3}, None)]),
    ]
    _, answer = await everything(client, hello(tools=(tool("a"),)))
    assert [(json.loads(c.arguments)["n"], c.provider_id) for c in answer.tool_calls] == [
        (1, "call_1"),
        (2, "call_1"),
        (3, None),
    ]


def _piece(**call: Any) -> str:
    delta = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    return f"data: {json.dumps({'id': 'x', 'object': 'chat.completion.chunk', **delta})}\n"


FINISH = 'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n'


@pytest.mark.parametrize(
    "pieces",
    [
        # no index, different ids
        [
            _piece(id="p", function={"name": "a", "arguments": '{"n":'}),
            _piece(function={"arguments": "1}"}),
            _piece(id="q", function={"name": "a", "arguments": '{"n":2}'}),
        ],
        # no index and the same id: another name after complete arguments starts a call
        [
            _piece(id="call_1", function={"name": "a", "arguments": '{"n":1}'}),
            _piece(id="call_1", function={"name": "a", "arguments": '{"n":2}'}),
        ],
        # index 0 for everything
        [
            _piece(index=0, id="p", function={"name": "a", "arguments": '{"n":1}'}),
            _piece(index=0, id="q", function={"name": "a", "arguments": '{"n":2}'}),
        ],
        # name and id are repeated with every piece
        [
            _piece(index=0, id="p", function={"name": "a", "arguments": '{"n"'}),
            _piece(index=0, id="p", function={"name": "a", "arguments": ":1}"}),
            _piece(index=1, id="p", function={"name": "a", "arguments": '{"n"'}),
            _piece(index=1, id="p", function={"name": "a", "arguments": ":2}"}),
        ],
        # arguments as an object
        [
            _piece(index=0, function={"name": "a", "arguments": {"n": 1}}),
            _piece(index=1, function={"name": "a", "arguments": {"n": 2}}),
        ],
    ],
)
async def test_calls_of_nonstandard_servers_are_kept(
    client: OpenAiChatClient, fake: FakeOpenAI, pieces: list[str]
) -> None:
    fake.script = [raw_stream(*pieces, FINISH, "data: [DONE]\n")]
    events, answer = await everything(client, hello(tools=(tool("a"),)))
    assert [json.loads(call.arguments)["n"] for call in answer.tool_calls] == [1, 2]
    assert answer.finish_reason is FinishReason.TOOL_CALLS
    assert {event.index for event in events if isinstance(event, ToolCallDelta)} == {0, 1}


async def test_invalid_json_arguments_are_returned_unchanged(client: OpenAiChatClient, fake: FakeOpenAI) -> None:
    fake.script = [Reply(tool_calls=[("a", '{"x": oops')])]
    _, answer = await everything(client, hello(tools=(tool("a"),)))
    assert answer.tool_calls[0].arguments == '{"x": oops'


async def test_reasoning_of_compatible_servers_is_native(client: OpenAiChatClient, fake: FakeOpenAI) -> None:
    fake.script = [Reply(reasoning="Let me think about it.", text="Done.")]
    events, answer = await everything(client, hello())
    assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == "Let me think about it."
    assert answer.content == (ReasoningPart("Let me think about it.", is_native=True), TextPart("Done."))


async def test_refusal_is_text_of_the_model(client: OpenAiChatClient, fake: FakeOpenAI) -> None:
    fake.script = [Reply(refusal="I cannot help with that.")]
    _, answer = await everything(client, hello())
    assert answer.content == (TextPart("I cannot help with that."),)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("eos", FinishReason.STOP),
    ],
)
async def test_finish_reasons(client: OpenAiChatClient, fake: FakeOpenAI, said: str, meant: FinishReason) -> None:
    fake.script = [Reply(text="Cut sho", finish_reason=said)]
    assert (await everything(client, hello()))[1].finish_reason is meant


async def test_unreported_usage_is_none_and_zero_is_zero(client: OpenAiChatClient, fake: FakeOpenAI) -> None:
    fake.script = [Reply(text="a", usage=None), Reply(text="b", usage=Usage(input=0, output=0))]
    assert (await everything(client, hello()))[1].usage == model.Usage()
    assert (await everything(client, hello()))[1].usage == model.Usage(0, 0, 0)


async def test_answer_without_streaming_is_accepted(client: OpenAiChatClient, fake: FakeOpenAI) -> None:
    fake.script = [Reply(text="All at once.", tool_calls=[("a", {"x": 1}, "c")], is_plain=True)]
    events, answer = await everything(client, hello(tools=(tool("a"),)))
    assert answer.content == (TextPart("All at once."),)
    assert answer.tool_calls[0].arguments == '{"x": 1}'
    assert answer.usage.total_tokens == 18
    assert events


async def test_empty_answer_is_accepted(client: OpenAiChatClient, fake: FakeOpenAI) -> None:
    fake.script = [empty_answer(), Reply(text="", is_plain=True), Reply(text="")]
    for _ in range(3):
        events, answer = await everything(client, hello())
        assert (events, answer.content, answer.tool_calls) == ([], (), ())
        assert answer.finish_reason is FinishReason.STOP


async def test_added_nulls_of_strict_schemas_are_removed(client: OpenAiChatClient, fake: FakeOpenAI) -> None:
    fake.script = [Reply(tool_calls=[("a", {"q": "x", "limit": None, "other": None})])]
    strict = ModelSettings(strict_tool_schemas=True)
    offered = tool("a", ["q"], q="string", limit="integer", other={"type": ["string", "null"]})
    _, answer = await everything(client, hello(tools=(offered,), settings=strict))
    assert json.loads(answer.tool_calls[0].arguments) == {"q": "x", "other": None}


@pytest.mark.parametrize(
    ("fault", "kind", "attempts"),
    [
        (status(401, f"Incorrect API key provided: {KEY}."), errors.ProviderAuth, 1),
        (status(403, "Not your model."), errors.ProviderAuth, 1),
        (status(402, "Pay."), errors.ProviderPaymentRequired, 1),
        (status(429, "You exceeded your quota", error_code="insufficient_quota"), errors.ProviderPaymentRequired, 1),
        (status(404, "The model does not exist."), errors.ProviderModelUnknown, 1),
        (status(400, "Bad field."), errors.ProviderRefused, 1),
        (status(400, "Filtered.", error_code="content_filter"), errors.ProviderContentFilter, 1),
        (context_overflow(9000, 8192), errors.ContextOverflow, 1),
        (status(400, "the request exceeds the available context size"), errors.ContextOverflow, 1),
        (rate_limited(), errors.ProviderRateLimited, 5),
        (status(500), errors.ProviderUnavailable, 5),
        (overloaded(), errors.ProviderUnavailable, 5),
        (html_page(), errors.ProviderUnavailable, 5),
        (html_page(200), errors.ProviderBadAnswer, 1),
        (garbage(), errors.ProviderBadAnswer, 1),
        (garbage(streamed=False), errors.ProviderBadAnswer, 1),
        (raw_stream('data: {"nothing": "known"}\n'), errors.ProviderBadAnswer, 1),
        (raw_stream('data: ["no", "object"]\n'), errors.ProviderBadAnswer, 1),
        (raw_stream(), errors.ProviderUnavailable, 5),
        (cut_stream(after=0), errors.ProviderUnavailable, 5),
        (cut_stream(after=1), errors.ProviderUnavailable, 5),
        (cut_stream(after=1, is_clean=True), errors.ProviderUnavailable, 5),
    ],
)
async def test_each_failure_raises_its_error(
    fake: FakeOpenAI,
    client: OpenAiChatClient,
    waits: RecordedWaits,
    fault: Fault,
    kind: type[errors.ProviderError],
    attempts: int,
) -> None:
    fake.script = lambda _: fault
    with pytest.raises(errors.ProviderError) as caught:
        await everything(client, hello())
    assert type(caught.value) is kind
    assert len(fake.requests) == attempts
    assert len(waits.taken) == attempts - 1
    assert caught.value.metadata["provider"] == "openai"
    assert KEY not in caught.value.message
    assert "<" not in caught.value.message
    assert "secret internals" not in caught.value.message


async def test_overflow_has_tokens_and_limit(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    fake.script = [context_overflow(9000, 8192)]
    with pytest.raises(errors.ContextOverflow) as caught:
        await everything(client, hello())
    assert caught.value.metadata | {} == {"provider": "openai", "status": "400", "tokens": "9000", "limit": "8192"}
    assert caught.value.reason == "CONTEXT_WINDOW_OVERFLOW"


async def test_temporary_errors_are_retried(fake: FakeOpenAI, client: OpenAiChatClient, waits: RecordedWaits) -> None:
    fake.script = [rate_limited(retry_after=7), status(500), cut_stream(after=1), "Back again."]
    _, answer = await everything(client, hello())
    assert answer.content == (TextPart("Back again."),)
    assert waits.taken[0] == 7
    assert len({request.raw for request in fake.requests}) == 1


async def test_retry_after_beyond_budget_fails_at_once(
    fake: FakeOpenAI, client: OpenAiChatClient, waits: RecordedWaits
) -> None:
    fake.script = [rate_limited(retry_after=3600)]
    with pytest.raises(errors.ProviderRateLimited) as caught:
        await everything(client, hello())
    assert caught.value.retry_after == 3600
    assert caught.value.metadata["retry_after_seconds"] == "3600"
    assert waits.taken == []


@pytest.mark.parametrize("fault", [cut_stream(after=3), cut_stream(after=3, is_clean=True), error_event(after=3)])
async def test_broken_stream_is_not_retried_after_first_delta(
    fake: FakeOpenAI, client: OpenAiChatClient, waits: RecordedWaits, fault: Fault
) -> None:
    fake.script = lambda _: fault
    events: list[LlmEvent] = []
    with pytest.raises(errors.ProviderUnavailable):
        await collect(client, hello(), events)
    assert events
    assert not any(isinstance(event, LlmAnswer) for event in events)
    assert len(fake.requests) == 1
    assert waits.taken == []


async def test_missing_server_is_unavailable(waits: RecordedWaits) -> None:
    async with FakeOpenAI() as gone:
        base_url = gone.base_url
    adapter = OpenAiChatClient(at(base_url), sleep=waits)
    with pytest.raises(errors.ProviderUnavailable, match="cannot be reached"):
        await everything(adapter, hello())
    assert len(waits.taken) == 4
    await adapter.close()


@pytest.mark.parametrize("limits", [CallLimits(idle_seconds=0.05), CallLimits(total_seconds=0.05)])
async def test_hanging_server_times_out(fake: FakeOpenAI, limits: CallLimits) -> None:
    fake.script = [hang()]
    adapter = OpenAiChatClient(at(fake.base_url), limits=limits)
    with pytest.raises(errors.ProviderTimeout):
        await everything(adapter, hello())
    await adapter.close()


async def test_stalled_stream_times_out(fake: FakeOpenAI) -> None:
    first, never = asyncio.Event(), asyncio.Event()
    first.set()
    fake.script = [Reply(text="one piece and another", gates=[first, never])]
    adapter = OpenAiChatClient(at(fake.base_url), limits=CallLimits(total_seconds=0.2))
    events: list[LlmEvent] = []
    with pytest.raises(errors.ProviderTimeout):
        await collect(adapter, hello(), events)
    assert events == [TextDelta("one piec")]
    await adapter.close()


async def test_deltas_are_yielded_as_they_arrive(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    fake.script = [Reply(text="12345678abc", gates=gates)]
    async with aclosing(client.stream(hello())) as events:  # type: ignore[type-var]
        gates[0].set()
        assert await anext(events) == TextDelta("12345678")
        gates[1].set()
        assert await anext(events) == TextDelta("abc")
        assert isinstance(await anext(events), LlmAnswer)


async def test_abandoned_stream_leaves_client_usable(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    fake.script = [Reply(text="12345678abc", gates=[_set(), asyncio.Event()]), "Next."]
    async with aclosing(client.stream(hello())) as events:  # type: ignore[type-var]
        await anext(events)
    assert (await everything(client, hello()))[1].content == (TextPart("Next."),)


async def test_cancellation_propagates(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    arrived = asyncio.Event()

    def script(_: dict[str, Any]) -> Fault:
        arrived.set()
        return hang()

    fake.script = script
    task = asyncio.create_task(everything(client, hello()))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_models_are_listed_by_the_server() -> None:
    async with FakeOpenAI(models=["llama3", "qwen"]) as fake:
        adapter = OpenAiChatClient(at(fake.base_url))
        served = await served_models(adapter.endpoint, Listing.MODELS)
        assert [model.name for model in served] == ["llama3", "qwen"]
        await adapter.close()


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
