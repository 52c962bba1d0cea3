"""The Anthropic adapter with the real SDK, against a server with the real protocol and with failures."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from mnemesh_orchestrator.llm import errors
from mnemesh_orchestrator.llm.anthropic_messages import AnthropicMessagesClient
from mnemesh_orchestrator.llm.port import (
    CallLimits,
    FinishReason,
    LlmAnswer,
    LlmEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.server import (
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
from mnemesh_types.messages import ReasoningPart, RedactedReasoningPart, TextPart

from .windows import CLAUDE, at, collect, everything, hello, tool

KEY = "sk-ant-test-0123456789abcdef"


@pytest.fixture
async def fake() -> AsyncIterator[FakeAnthropic]:
    async with FakeAnthropic() as server:
        yield server


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
async def client(fake: FakeAnthropic, waits: list[float]) -> AsyncIterator[AnthropicMessagesClient]:
    async def skip_wait(seconds: float) -> None:
        waits.append(seconds)

    adapter = AnthropicMessagesClient(at(fake.base_url, "anthropic", api_key=KEY), sleep=skip_wait)
    yield adapter
    await adapter.close()


REQUEST = hello(CLAUDE, tools=(tool("a"), tool("b")))


async def test_text_is_streamed_in_deltas_and_then_complete(
    fake: FakeAnthropic, client: AnthropicMessagesClient
) -> None:
    fake.script = [Reply(text="Hello, wörld of agents!", usage=Usage(input=20, output=5, cached=80, cache_written=3))]
    events, answer = await everything(client, REQUEST)
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Hello, wörld of agents!"
    assert len(events) > 1
    assert answer.content == (TextPart("Hello, wörld of agents!"),)
    assert answer.finish_reason is FinishReason.STOP
    assert answer.usage == model.Usage(103, 5, 108, cached_input_tokens=80, cache_write_tokens=3)
    assert fake.requests[0].headers["x-api-key"] == KEY
    assert fake.requests[0].headers["anthropic-version"]
    assert fake.requests[0].raw.decode() == client.render(REQUEST) == answer.request_body
    assert json.loads(answer.response_body)["content"] == [{"type": "text", "text": "Hello, wörld of agents!"}]


async def test_thinking_text_and_calls_keep_their_order(fake: FakeAnthropic, client: AnthropicMessagesClient) -> None:
    fake.script = [
        Reply(
            reasoning="Hmm, let me see.",
            signature="sig",
            redacted="xxx",
            text="I look.",
            tool_calls=[("a", {"q": "something long"}, "t1"), ("b", {}, "t1"), Call("a", '{"broken', "t3")],
        )
    ]
    events, answer = await everything(client, REQUEST)
    assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == "Hmm, let me see."
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    assert [(d.index, d.name) for d in deltas if not d.arguments] == [(0, "a"), (1, "b"), (2, "a")]
    assert "".join(d.arguments for d in deltas if d.index == 0) == '{"q": "something long"}'
    assert answer.content == (
        ReasoningPart("Hmm, let me see.", is_native=True, signature="sig"),
        RedactedReasoningPart("xxx"),
        TextPart("I look."),
    )
    assert [(c.name, c.arguments, c.provider_id) for c in answer.tool_calls] == [
        ("a", '{"q": "something long"}', "t1"),
        ("b", "{}", "t1"),
        ("a", '{"broken', "t3"),
    ]
    assert answer.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("refusal", FinishReason.CONTENT_FILTER),
        ("stop_sequence", FinishReason.STOP),
    ],
)
async def test_stop_reasons(
    fake: FakeAnthropic, client: AnthropicMessagesClient, said: str, meant: FinishReason
) -> None:
    fake.script = [Reply(text="So", finish_reason=said)]
    assert (await everything(client, REQUEST))[1].finish_reason is meant


async def test_plain_and_empty_answers_are_accepted(fake: FakeAnthropic, client: AnthropicMessagesClient) -> None:
    fake.script = [Reply(text="At once.", tool_calls=[("a", {"x": 1})], is_plain=True), empty_answer()]
    _, answer = await everything(client, REQUEST)
    assert answer.content == (TextPart("At once."),)
    assert answer.tool_calls[0].arguments == '{"x": 1}'
    events, answer = await everything(client, REQUEST)
    assert (events, answer.content, answer.tool_calls) == ([], (), ())


@pytest.mark.parametrize(
    ("fault", "kind", "attempts"),
    [
        (status(401, f"invalid x-api-key {KEY}"), errors.ProviderAuth, 1),
        (status(400, "Your credit balance is too low to access the API."), errors.ProviderPaymentRequired, 1),
        (status(400, "messages: roles must alternate"), errors.ProviderRefused, 1),
        (status(404, "model: nope"), errors.ProviderModelUnknown, 1),
        (status(413, "Request exceeds the maximum size"), errors.ContextOverflow, 1),
        (context_overflow(), errors.ContextOverflow, 1),
        (rate_limited(), errors.ProviderRateLimited, 5),
        (overloaded(), errors.ProviderUnavailable, 5),
        (status(500), errors.ProviderUnavailable, 5),
        (html_page(), errors.ProviderUnavailable, 5),
        (html_page(200), errors.ProviderBadAnswer, 1),
        (garbage(streamed=False), errors.ProviderBadAnswer, 1),
        (cut_stream(after=2), errors.ProviderUnavailable, 5),
        (cut_stream(after=2, is_clean=True), errors.ProviderUnavailable, 5),
        (error_event(after=1), errors.ProviderUnavailable, 5),
        (error_event("rate_limit_error", "Slow down", after=1), errors.ProviderRateLimited, 5),
        (error_event("invalid_request_error", "No", after=1), errors.ProviderRefused, 1),
        (error_event("authentication_error", "No", after=1), errors.ProviderAuth, 1),
        (
            Fault(
                kind="body",
                body=b"event: message_start\ndata: {oops\n\n",
                headers={"content-type": "text/event-stream"},
            ),
            errors.ProviderBadAnswer,
            1,
        ),
    ],
)
async def test_each_failure_raises_its_error(
    fake: FakeAnthropic,
    client: AnthropicMessagesClient,
    waits: list[float],
    fault: Fault,
    kind: type[errors.ProviderError],
    attempts: int,
) -> None:
    fake.script = lambda _: fault
    with pytest.raises(errors.ProviderError) as caught:
        await everything(client, REQUEST)
    assert type(caught.value) is kind
    assert (len(fake.requests), len(waits)) == (attempts, attempts - 1)
    assert caught.value.metadata["provider"] == "anthropic"
    assert KEY not in caught.value.message
    assert "<" not in caught.value.message


async def test_overflow_has_tokens_and_limit(fake: FakeAnthropic, client: AnthropicMessagesClient) -> None:
    fake.script = [context_overflow(210_000, 200_000)]
    with pytest.raises(errors.ContextOverflow) as caught:
        await everything(client, REQUEST)
    assert (caught.value.metadata["tokens"], caught.value.metadata["limit"]) == ("210000", "200000")


async def test_temporary_errors_are_retried(
    fake: FakeAnthropic, client: AnthropicMessagesClient, waits: list[float]
) -> None:
    fake.script = [overloaded(), rate_limited(3), "Back."]
    assert (await everything(client, REQUEST))[1].content == (TextPart("Back."),)
    assert waits[1] == 3


@pytest.mark.parametrize("fault", [cut_stream(after=5), cut_stream(after=5, is_clean=True), error_event(after=5)])
async def test_broken_stream_is_not_retried_after_first_delta(
    fake: FakeAnthropic, client: AnthropicMessagesClient, fault: Fault
) -> None:
    fake.script = lambda _: fault
    events: list[LlmEvent] = []
    with pytest.raises(errors.ProviderUnavailable) as caught:
        await collect(client, REQUEST, events)
    assert events
    assert not any(isinstance(event, LlmAnswer) for event in events)
    assert caught.value.usage.prompt_tokens, "the tokens that were counted before the break"
    assert json.loads(caught.value.response_body or "{}")["content"]
    assert len(fake.requests) == 1


async def test_events_without_name_or_content_are_skipped(fake: FakeAnthropic, client: AnthropicMessagesClient) -> None:
    events = (
        'data: {"what": "has no name"}\n\n',
        "event: ping\ndata: no JSON\n\n",
        "event: message_start\n\n",
        'event: message_start\ndata: {"type": "message_start", "message": {"usage": {"input_tokens": 3}}}\n\n',
        "event: content_block_start",
        'data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello."}}\n\n',
        'event: message_delta\ndata: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}\n\n',
    )
    fake.script = [raw_stream(*events)]
    _, answer = await everything(client, REQUEST)
    assert [part.text for part in answer.content] == ["Hello."]
    assert answer.usage.prompt_tokens == 3


async def test_hanging_server_times_out(fake: FakeAnthropic) -> None:
    fake.script = [hang(asyncio.Event())]
    adapter = AnthropicMessagesClient(at(fake.base_url, "anthropic"), limits=CallLimits(idle_seconds=0.05))
    with pytest.raises(errors.ProviderTimeout):
        await everything(adapter, REQUEST)
    await adapter.close()
