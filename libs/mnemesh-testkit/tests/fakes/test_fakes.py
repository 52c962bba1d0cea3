"""The protocol of the fake providers for a plain HTTP client, and the answers of the lean fake."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply, cut_stream, hang, rate_limited
from mnemesh_testkit.timeouts import scaled


def _data(body: str) -> list[str]:
    return [line.removeprefix("data: ") for line in body.split("\n") if line.startswith("data: ")]


async def test_openai_stream_has_the_documented_events() -> None:
    async with (
        FakeOpenAI([Reply(text="Hello", tool_calls=[("a", {"x": 1}, "c1")])]) as fake,
        httpx.AsyncClient(timeout=scaled(60)) as http,
    ):
        body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
        response = await http.post(f"{fake.base_url}/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done = _data(response.text)
    chunks = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0]["role"] == "assistant"
    assert deltas[1] == {"content": "Hello"}
    assert deltas[2]["tool_calls"] == [
        {"type": "function", "function": {"name": "a", "arguments": ""}, "id": "c1", "index": 0}
    ]
    assert deltas[3] == {"tool_calls": [{"index": 0, "function": {"arguments": '{"x": 1}'}}]}
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 18)


async def test_anthropic_stream_has_the_documented_events() -> None:
    script = [Reply(reasoning="Hm", text="Hello", tool_calls=[("a", {"x": 1}, "t1")])]
    async with FakeAnthropic(script) as fake, httpx.AsyncClient(timeout=scaled(60)) as http:
        response = await http.post(f"{fake.base_url}/v1/messages", json={"model": "m", "stream": True})
    kinds = [line.removeprefix("event: ") for line in response.text.split("\n") if line.startswith("event: ")]
    events = [json.loads(event) for event in _data(response.text)]
    assert kinds == [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "input_json_delta",
        "input_json_delta",
    ]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_scripts_are_functions_or_lists_and_requests_are_recorded() -> None:
    def script(body: dict[str, Any]) -> Reply:
        return Reply(text=body["messages"][-1]["content"].upper())

    async with FakeOpenAI(script) as fake, httpx.AsyncClient(timeout=scaled(60)) as http:
        request = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        url = f"{fake.base_url}/chat/completions"
        answer = (await http.post(url, json=request, headers={"authorization": "Bearer k"})).json()
        assert answer["choices"][0]["message"]["content"] == "HI"
        assert fake.requests[0].body == request
        assert fake.requests[0].headers["authorization"] == "Bearer k"
        fake.script = [rate_limited(2)]
        limited = await http.post(url, json=request)
        assert (limited.status_code, limited.headers["retry-after"]) == (429, "2")
        assert (await http.post(url, json=request)).status_code == 501


async def test_call_ids_can_be_repeated() -> None:
    reply = Reply(tool_calls=[("a", {}), ("b", {})])
    async with FakeOpenAI([reply, reply], call_id="call_1") as fake, httpx.AsyncClient(timeout=scaled(60)) as http:
        for _ in range(2):
            answer = (await http.post(f"{fake.base_url}/chat/completions", json={})).json()
            assert [call["id"] for call in answer["choices"][0]["message"]["tool_calls"]] == ["call_1", "call_1"]


async def test_cut_breaks_the_connection_and_close_releases_held_answers() -> None:
    async with FakeOpenAI([cut_stream(after=2), hang()]) as fake, httpx.AsyncClient(timeout=scaled(60)) as http:
        url = f"{fake.base_url}/chat/completions"
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post(url, json={"stream": True})
        hanging = asyncio.create_task(http.post(url, json={}))
        while len(fake.requests) < 2:
            await asyncio.sleep(0)
    with pytest.raises(httpx.TransportError):
        await hanging


@pytest.fixture
async def lean(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    command = (sys.executable, "-m", "mnemesh_testkit.fakes.openai", "--port", "0", "--script", request.param)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    yield json.loads(await process.stdout.readline())["base_url"]
    process.kill()
    await process.communicate()


def _offered(*names: str) -> list[dict[str, Any]]:
    properties = {"request_heartbeat": {"type": "boolean"}, "thinking": {"type": "string"}}
    return [
        {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}} for name in names
    ]


async def _answered(http: httpx.AsyncClient, base_url: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The tool that was called and its arguments, or the text and nothing."""
    response = await http.post(f"{base_url}/chat/completions", json=body)
    deltas = [json.loads(event) for event in _data(response.text)[:-2]]
    calls = [call for d in deltas for call in d["choices"][0]["delta"].get("tool_calls", ())]
    if not calls:
        return "".join(d["choices"][0]["delta"].get("content") or "" for d in deltas), {}
    arguments = "".join(call["function"]["arguments"] for call in calls)
    return calls[0]["function"]["name"], json.loads(arguments)


@pytest.mark.parametrize("lean", ["five-tools"], indirect=True)
async def test_lean_fake_calls_five_tools_and_then_answers(lean: str) -> None:
    messages: list[dict[str, str]] = [{"role": "tool", "content": "old"}, {"role": "user", "content": '"user_message"'}]
    body = {"messages": messages, "tools": _offered("send_message", "conversation_search", "archival_memory_insert")}
    async with httpx.AsyncClient(timeout=scaled(60)) as http:
        for _ in range(5):
            name, arguments = await _answered(http, lean, body)
            assert name in ("conversation_search", "archival_memory_insert")
            assert arguments["request_heartbeat"] is True
            messages.append({"role": "tool", "content": "ok"})
        name, arguments = await _answered(http, lean, body)
        assert name == "send_message"
        assert set(arguments) == {"thinking", "message"}


@pytest.mark.parametrize("lean", ["one-step"], indirect=True)
async def test_lean_fake_answers_a_large_request_at_once(lean: str) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 2_000_000}]}
    async with httpx.AsyncClient(timeout=scaled(60)) as http:
        assert (await _answered(http, lean, body))[0].startswith("Here is what I found")
        assert (await http.get(f"{lean}/models")).json()["data"][0]["id"] == "lean"
