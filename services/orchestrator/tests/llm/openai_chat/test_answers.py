"""Answers that the OpenAI adapter reads: texts, calls, reasoning, usage, and their streams."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from mnemesh_orchestrator.llm.errors import ProviderUnavailable
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient
from mnemesh_orchestrator.llm.port import FinishReason, LlmAnswer, ReasoningDelta, TextDelta, ToolCallDelta
from mnemesh_orchestrator.llm.provider import list_served_models
from mnemesh_orchestrator.llm.settings import Listing
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Fault, Reply, Usage, cut_stream, empty_answer, raw_stream
from mnemesh_types import usage as model
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import ReasoningPart, TextPart

from ..windows import at, everything, hello, tool
from .conftest import KEY


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


def _text(content: str, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'x', 'choices': [choice]})}\n"


USAGE = 'data: {"id":"x","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}\n'
CALL = _piece(index=0, id="c", function={"name": "a", "arguments": '{"n":1}'})


@pytest.mark.parametrize(
    "between",
    [
        ["data:\n"],
        ["data\n"],
        ["event: ping\n"],
        ["event: ping", "data: {}\n"],
        ["event: keepalive", 'data: {"type":"keepalive"}\n'],
        ["data: : OPENROUTER PROCESSING\n"],
        [": OPENROUTER PROCESSING\n"],
        ["data: ping\n"],
        ["data: [HEARTBEAT]\n"],
        ['data: {"type": "ping"}\n'],
        ["data: {}\n"],
        ["id: 7", "retry: 100\n"],
        ["", "", ""],
        ["\r", "\r"],
    ],
    ids=repr,
)
async def test_what_keeps_a_connection_open_is_skipped(
    client: OpenAiChatClient, fake: FakeOpenAI, between: list[str]
) -> None:
    fake.script = [
        raw_stream(*between, _text("Hel"), *between, _text("lo."), *between, FINISH, *between, "data: [DONE]")
    ]
    _, answer = await everything(client, hello())
    assert answer.content == (TextPart("Hello."),)
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("lines", "calls"),
    [
        pytest.param([_text("Hello."), "data: [DONE]\n"], 0, id="text and the mark of the end"),
        pytest.param([_text("Hello."), USAGE, "data: [DONE]\n"], 0, id="text, usage and the mark"),
        pytest.param([_text("Hello."), "data: [DONE]"], 0, id="no blank line behind the mark"),
        pytest.param([_text("Hello.", "stop").rstrip()], 0, id="no blank line behind the finish reason"),
        pytest.param([_text("Hello.", "stop")], 0, id="a finish reason and no mark"),
        pytest.param([_text("Hello."), CALL, "data: [DONE]\n"], 1, id="a call and the mark"),
        pytest.param([_text("Hello."), CALL], 1, id="a call and the end of the stream"),
        pytest.param(
            [_text("Hello."), _piece(index=0, id="c", function={"name": "a"}), "data: [DONE]\n"], 1, id="no arguments"
        ),
        pytest.param([_text("Hello.").rstrip(), FINISH.rstrip(), "data: [DONE]"], 0, id="no blank lines at all"),
        pytest.param(["data: " + _text("Hello.", "stop")[6:].replace(",", ",\ndata: ")], 0, id="several lines of data"),
    ],
)
async def test_complete_answer_is_accepted_however_its_stream_ends(
    client: OpenAiChatClient, fake: FakeOpenAI, lines: list[str], calls: int
) -> None:
    fake.script = [raw_stream(*lines)]
    _, answer = await everything(client, hello(tools=(tool("a"),)))
    assert answer.content == (TextPart("Hello."),)
    assert len(answer.tool_calls) == calls
    assert answer.finish_reason is (FinishReason.TOOL_CALLS if calls else FinishReason.STOP)
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    "lines",
    [
        [_text("Hel")],
        [_text("Hello."), _piece(index=0, id="c", function={"name": "a", "arguments": '{"n":'}), "data: [DONE]\n"],
        [_piece(index=0, id="c", function={"name": "a", "arguments": ""})],
        [CALL, _piece(index=1, id="d", function={"name": "a", "arguments": '{"n"'})],
    ],
    ids=["text", "half of a call and the mark", "a name", "half of another call"],
)
async def test_incomplete_answer_is_not_accepted(client: OpenAiChatClient, fake: FakeOpenAI, lines: list[str]) -> None:
    fake.script = lambda _: raw_stream(*lines)
    with pytest.raises(ProviderUnavailable, match="cut before its end"):
        await everything(client, hello(tools=(tool("a"),)))


async def test_bytes_that_are_not_utf8_are_replaced(client: OpenAiChatClient, fake: FakeOpenAI) -> None:
    body = _text("Hel?lo.", "stop").encode().replace(b"?", b"\xff") + b"\n"
    whole = b'\xef\xbb\xbf {"id":"x","choices":[{"message":{"content":"Hel\xfflo."}}]}'
    fake.script = [
        Fault(kind="body", body=body, headers={"content-type": "text/event-stream"}),
        Fault(kind="body", body=whole, headers={"content-type": "application/json"}),
    ]
    for _ in range(2):
        assert (await everything(client, hello()))[1].content == (TextPart("Hel\ufffdlo."),)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/octet-stream", ""])
async def test_first_byte_decides_whether_a_body_is_a_stream(
    client: OpenAiChatClient, fake: FakeOpenAI, kind: str
) -> None:
    whole = b'\n{"id":"x","choices":[{"message":{"content":"Hello."}}]}'
    headers = {"content-type": kind} if kind else {}
    fake.script = [
        Fault(kind="body", body=f"\n{_text('Hello.', 'stop')}\n".encode(), headers=headers),
        Fault(kind="body", body=whole, headers=headers),
        Fault(kind="body", body=whole, headers={"content-type": "text/event-stream"}),
    ]
    for _ in range(3):
        assert (await everything(client, hello()))[1].content == (TextPart("Hello."),)


async def test_connection_that_breaks_behind_a_complete_answer_does_not_fail_it(
    client: OpenAiChatClient, fake: FakeOpenAI
) -> None:
    fake.script = [cut_stream(Reply(text="Hello."), after=3)]
    _, answer = await everything(client, hello())
    assert answer.content == (TextPart("Hello."),)
    assert len(fake.requests) == 1


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


async def test_models_are_listed_by_the_server() -> None:
    async with FakeOpenAI(models=["llama3", "qwen"]) as fake:
        adapter = OpenAiChatClient(at(fake.base_url))
        served = await list_served_models(adapter, Listing.MODELS)
        assert [model.name for model in served] == ["llama3", "qwen"]
        await adapter.close()


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
