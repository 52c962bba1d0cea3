"""The Responses adapter with the real SDK, against a server with the real API and with every failure."""

import json
from collections.abc import AsyncIterator

import pytest
from mnemesh_orchestrator.llm import errors
from mnemesh_orchestrator.llm.openai_responses import OpenAiResponsesClient, render_body
from mnemesh_orchestrator.llm.port import FinishReason, LlmEvent, ReasoningDelta, TextDelta, ToolCallDelta
from mnemesh_testkit.fakes.openai import FakeResponses
from mnemesh_testkit.fakes.server import (
    Call,
    Fault,
    Reply,
    Usage,
    context_overflow,
    cut_stream,
    error_event,
    garbage,
    html_page,
    overloaded,
    rate_limited,
    raw_stream,
    status,
)
from mnemesh_types import messages
from mnemesh_types import usage as model
from mnemesh_types.messages import ReasoningPart, SummarizedReasoningPart, TextPart

from .windows import THINKER, ask, at, collect, everything, hello, message, tool

KEY = "sk-test-0123456789abcdef"


@pytest.fixture
async def fake() -> AsyncIterator[FakeResponses]:
    async with FakeResponses() as server:
        yield server


@pytest.fixture
async def client(fake: FakeResponses) -> AsyncIterator[OpenAiResponsesClient]:
    async def skip_wait(_: float) -> None: ...

    adapter = OpenAiResponsesClient(at(fake.base_url, api_key=KEY), sleep=skip_wait)
    yield adapter
    await adapter.close()


async def test_text_is_streamed_in_deltas_and_then_complete(fake: FakeResponses, client: OpenAiResponsesClient) -> None:
    fake.script = [Reply(text="Hello, wörld of agents!", usage=Usage(input=100, output=5, cached=80, reasoning=3))]
    events, answer = await everything(client, hello(THINKER))
    assert len(events) > 1
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello, wörld of agents!"
    assert answer.content == (TextPart("Hello, wörld of agents!"),)
    assert answer.finish_reason is FinishReason.STOP
    assert answer.usage == model.Usage(100, 5, 105, cached_input_tokens=80, reasoning_tokens=3)
    sent = fake.requests[0]
    assert (sent.path, sent.headers["authorization"]) == ("/v1/responses", f"Bearer {KEY}")
    assert sent.raw.decode() == client.render(hello(THINKER)) == answer.request_body
    assert KEY not in answer.request_body + answer.response_body
    assert json.loads(answer.response_body)["output"][0]["content"][0]["text"] == "Hello, wörld of agents!"


async def test_calls_stream_by_index_and_keep_their_ids(fake: FakeResponses, client: OpenAiResponsesClient) -> None:
    fake.script = [
        Reply(text="On it.", tool_calls=[("a", {"x": "long enough for two pieces"}, "id1"), Call("b", {}, None)])
    ]
    events, answer = await everything(client, hello(THINKER, tools=(tool("a"), tool("b"))))
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    assert {(delta.index, delta.name) for delta in deltas} == {(0, "a"), (1, "b")}
    assert "".join(d.arguments for d in deltas if d.index == 0) == '{"x": "long enough for two pieces"}'
    assert [(c.name, c.arguments, c.provider_id) for c in answer.tool_calls] == [
        ("a", '{"x": "long enough for two pieces"}', "id1"),
        ("b", "{}", None),
    ]
    assert answer.finish_reason is FinishReason.TOOL_CALLS


async def test_reasoning_is_returned_as_summaries_and_sent_back_encrypted(
    fake: FakeResponses, client: OpenAiResponsesClient
) -> None:
    fake.script = [Reply(reasoning="First.\n\nSecond.", signature="gAAA", tool_calls=[("a", {"x": 1}, "c1")])]
    events, answer = await everything(client, hello(THINKER, tools=(tool("a"),)))
    assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == "First.\nSecond."
    (part,) = answer.content
    assert part == SummarizedReasoningPart("rs_2", ("First.", "Second."), "gAAA")
    call = message(5, messages.Role.ASSISTANT, part, tool_calls=(messages.ToolCall("c1", "a", '{"x": 1}'),))
    request = hello(THINKER)
    items = render_body(ask(THINKER, *request.messages, call))["input"]
    assert items[-3:-1] == [
        {
            "type": "reasoning",
            "id": "rs_2",
            "summary": [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Second."}],
            "encrypted_content": "gAAA",
        },
        {"type": "function_call", "call_id": "c1", "name": "a", "arguments": '{"x": 1}'},
    ]


async def test_open_weight_models_return_reasoning_as_text(fake: FakeResponses, client: OpenAiResponsesClient) -> None:
    item = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    fake.script = [
        raw_stream(
            'data: {"type":"response.reasoning_text.delta","output_index":0,"content_index":0,"delta":"Hm."}\n',
            f'data: {{"type":"response.output_item.done","output_index":0,"item":{json.dumps(item)}}}\n',
            'data: {"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"Yes."}\n',
            'data: {"type":"response.completed","response":{"status":"completed","output":[]}}\n',
        )
    ]
    events, answer = await everything(client, hello(THINKER))
    assert events == [ReasoningDelta("Hm."), TextDelta("Yes.")]
    assert answer.content == (ReasoningPart("Hm.", is_native=True), TextPart("Yes."))
    assert answer.usage == model.Usage()


async def test_refusal_is_text_of_the_model(fake: FakeResponses, client: OpenAiResponsesClient) -> None:
    fake.script = [Reply(refusal="I would rather not.")]
    events, answer = await everything(client, hello(THINKER))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "I would rather not."
    assert answer.content == (TextPart("I would rather not."),)


async def test_answer_without_streaming_is_accepted(fake: FakeResponses, client: OpenAiResponsesClient) -> None:
    fake.script = [Reply(text="Whole.", tool_calls=[("a", {"n": 1}, "c")], is_plain=True)]
    events, answer = await everything(client, hello(THINKER))
    assert events == [TextDelta("Whole."), ToolCallDelta(0, "a", '{"n": 1}')]
    assert answer.content == (TextPart("Whole."),)
    assert [call.arguments for call in answer.tool_calls] == ['{"n": 1}']


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", FinishReason.LENGTH), ("content_filter", FinishReason.CONTENT_FILTER)]
)
async def test_incomplete_answer_has_reason(
    fake: FakeResponses, client: OpenAiResponsesClient, finish: str, reason: FinishReason
) -> None:
    fake.script = [Reply(text="Half an", finish_reason=finish)]
    _, answer = await everything(client, hello(THINKER))
    assert (answer.finish_reason, answer.content) == (reason, (TextPart("Half an"),))


async def test_phase_of_text_is_sent_back(fake: FakeResponses, client: OpenAiResponsesClient) -> None:
    item = {"type": "message", "phase": "commentary", "content": [{"type": "output_text", "text": "Looking."}]}
    whole = {"status": "completed", "output": [item]}
    fake.script = [raw_stream(f'data: {{"type":"response.completed","response":{json.dumps(whole)}}}\n')]
    _, answer = await everything(client, hello(THINKER))
    request = hello(THINKER)
    said = message(5, messages.Role.ASSISTANT, *answer.content)
    items = render_body(ask(THINKER, *request.messages, said))["input"]
    assert items[-1] == {"role": "assistant", "content": "Looking.", "phase": "commentary"}


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (status(401, "Incorrect API key provided: sk-abcdefgh1234."), errors.ProviderAuth),
        (status(404, "The model does not exist", error_code="model_not_found"), errors.ProviderModelUnknown),
        (status(429, "You exceeded your current quota", error_code="insufficient_quota"), errors.ProviderError),
        (context_overflow(), errors.ContextOverflow),
        (html_page(403), errors.ProviderAuth),
        (garbage(), errors.ProviderBadAnswer),
        (garbage(streamed=False), errors.ProviderBadAnswer),
        (raw_stream('data: {"unheard": "of"}\n'), errors.ProviderBadAnswer),
    ],
)
async def test_permanent_errors(
    fake: FakeResponses, client: OpenAiResponsesClient, fault: Fault, error: type[errors.ProviderError]
) -> None:
    fake.script = [fault]
    with pytest.raises(error) as caught:
        await everything(client, hello(THINKER))
    assert "sk-abcdefgh1234" not in caught.value.message
    assert len(fake.requests) == 1, "a retry would fail again"


@pytest.mark.parametrize("fault", [rate_limited(1), overloaded(), status(500), cut_stream(after=0)])
async def test_temporary_errors_are_retried(fake: FakeResponses, client: OpenAiResponsesClient, fault: Fault) -> None:
    fake.script = [fault, "At last."]
    _, answer = await everything(client, hello(THINKER))
    assert answer.content == (TextPart("At last."),)
    assert [request.raw for request in fake.requests] == [fake.requests[0].raw] * 2


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("server_error", errors.ProviderUnavailable),
        ("event:server_error", errors.ProviderUnavailable),
        ("rate_limit_exceeded", errors.ProviderRateLimited),
        ("event:rate_limit_exceeded", errors.ProviderRateLimited),
        ("context_length_exceeded", errors.ContextOverflow),
        ("invalid_prompt", errors.ProviderContentFilter),
        ("invalid_image_url", errors.ProviderRefused),
    ],
)
async def test_error_in_stream_is_final_after_first_delta(
    fake: FakeResponses, client: OpenAiResponsesClient, code: str, error: type[errors.ProviderError]
) -> None:
    fake.script = [error_event(code, "Something went wrong.", after=6), "never"]
    events: list[LlmEvent] = []
    with pytest.raises(error):
        await collect(client, hello(THINKER), events)
    assert events, "a delta was already yielded"
    assert len(fake.requests) == 1


@pytest.mark.parametrize("is_clean", [True, False])
async def test_cut_stream_is_an_error(fake: FakeResponses, client: OpenAiResponsesClient, *, is_clean: bool) -> None:
    fake.script = [cut_stream(after=6, is_clean=is_clean)]
    with pytest.raises(errors.ProviderUnavailable):
        await everything(client, hello(THINKER))
