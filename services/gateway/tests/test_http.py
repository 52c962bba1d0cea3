"""The HTTP edge: wrong requests, hosts, origins, tokens, organizations, and the sessions that a process knows."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from mnemesh_client import Agent, Mnemesh
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import ORGANIZATION_KEY, Principal
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

HELLO = {"model": "ada", "messages": [{"role": "user", "content": "Hello"}]}
KEY = "k" * 32
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def raw(base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain HTTP client of the gateway."""
    async with httpx.AsyncClient(base_url=base_url, timeout=scaled(60)) as client:
        yield client


def image(data: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data}}]}]}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"messages": []}, "messages", "empty_array"),
    ({"messages": [1]}, "messages[0]", "invalid_type"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
        "missing_required_parameter",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        "messages[0].content[0].type",
        "unsupported_parameter",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "missing_required_parameter"),
    (image("ftp://x/y.png"), "messages[0].content[0].image_url.url", "invalid_image_url"),
    (image("data:image/png;base64,???"), "messages[0].content[0].image_url.url", "invalid_base64_image"),
    (image("data:image/png;base64," + "A" * 14_000_100), "messages[0].content[0].image_url.url", "image_too_large"),
    ({"model": 7}, "model", "invalid_type"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"n": 2}, "n", "unsupported_parameter"),
    ({"stop": ["\n", 1]}, "stop[1]", "invalid_type"),
    ({"seed": "one"}, "seed", "invalid_type"),
    ({"frequency_penalty": 3}, "frequency_penalty", "invalid_value"),
    ({"functions": [{"name": "x"}]}, "functions", "unsupported_parameter"),
    ({"tool_choice": "required", "tools": []}, "tool_choice", "invalid_value"),
    ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "invalid_value"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing_required_parameter"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "unknown_parameter"),
    # Refused by the mesh, which has other names.
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "invalid_value"),
    (
        {"messages": [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "a\0b"}]},
        "messages[1].content",
        "invalid_value",
    ),
]


async def test_wrong_requests_name_the_field(raw: httpx.AsyncClient, agent: Agent, fake_openai: FakeOpenAI) -> None:
    for change, param, code in WRONG:
        answer = await raw.post(CHAT, json={**HELLO, **change})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, code), change
        assert error["type"] == "invalid_request_error"
        assert error["message"]
    bodies = {b"{": 400, b"[]": 400, b"\xff": 400, b"": 400, b'{"model": "ada"}': 400, b"[" * 100_000: 400}
    for body, status in bodies.items():
        answer = await raw.post(CHAT, content=body)
        assert answer.status_code == status, (body[:20], answer.text)
    surrogate = b'{"model": "ada", "messages": [{"role": "user", "content": "\\ud800"}]}'
    assert (await raw.post(CHAT, content=surrogate)).status_code == 400
    assert (await raw.post(CHAT, json=HELLO, headers={"X-Session-Id": "x" * 201})).json()["error"]["param"] == (
        "X-Session-Id"
    )
    assert (await raw.post(CHAT, content=b"a=b", headers={"Content-Type": "text/plain"})).status_code == 400
    assert (await raw.get("/v1/files")).json()["error"]["code"] == "unknown_url"
    assert (await raw.get("/nothing")).status_code == 404
    refused = await raw.get(CHAT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (405, "method_not_allowed")
    assert fake_openai.requests == []


@pytest.mark.mesh(settings={"gateway": {"max_body_mb": 1}})
async def test_large_bodies(raw: httpx.AsyncClient, agent: Agent, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = lambda _: Reply(text="Hi.")
    history = [{"role": role, "content": "word " * 10} for _ in range(4_000) for role in ("user", "assistant")]
    answer = await raw.post(CHAT, json={**HELLO, "messages": [*history, *HELLO["messages"]]})
    assert answer.status_code == 200
    assert len(fake_openai.requests[0].body["messages"]) == 2, "only the last message was sent"

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    for content in (b" " * 1_100_000, endless()):
        answer = await raw.post(CHAT, content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.mesh(settings={"gateway": {"allowed_origins": ("https://chat.example",), "debug_sessions": True}})
async def test_hosts_and_origins(raw: httpx.AsyncClient, agent: Agent, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = lambda _: Reply(text="Hi.")
    allowed = {"Origin": "https://chat.example"}
    for headers, code in (
        ({"Host": "evil.example"}, "host_not_allowed"),
        ({"Origin": "https://evil.example"}, "origin_not_allowed"),
        ({"Origin": "null"}, "origin_not_allowed"),
    ):
        answer = await raw.post(CHAT, json=HELLO, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)
    port = raw.base_url.port
    for host in ("[::1].evil.example", "[::1", "localhost:80.evil.example", "localhost@evil.example"):
        assert (await raw.post(CHAT, json=HELLO, headers={"Host": host})).status_code == 403, host
    for first, last in (("evil.example", "localhost"), ("localhost", "evil.example"), ("localhost", "localhost")):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /v1/models HTTP/1.1\r\nHost: {first}\r\nHost: {last}\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] in (b"400", b"403"), (first, last)
        writer.close()
    for host in ("LOCALHOST", f"[::1]:{port}", f"127.0.0.1:{port}"):
        assert (await raw.get("/v1/models", headers={"Host": host})).status_code == 200, host
    wanted = "authorization, x-stainless-lang, x-stainless-retry-count"
    preflight = {**allowed, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    asked = await raw.options(CHAT, headers=preflight)
    assert asked.headers["access-control-allow-headers"] == wanted, "SDKs in web pages send headers of their own"
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (204, "https://chat.example")
    answer = await raw.post(CHAT, json=HELLO, headers={**allowed, "X-Session-Id": "web", "X-Request-Id": "req-1"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (200, "req-1")
    assert (await raw.get("/livez")).json()["service"] == "gateway"
    assert (await raw.get("/readyz", headers={"Host": "10.0.0.1"})).status_code == 200
    (session,) = (await raw.get("/debug/sessions")).json()["sessions"]
    assert (session["session"], session["agent_id"]) == ("session/web", agent.id)
    other = {ORGANIZATION_KEY: new_id("org")}
    assert (await raw.get("/debug/sessions", headers=other)).json()["sessions"] == []
    assert (await raw.post(CHAT, json={**HELLO, "model": agent.id}, headers={**other, "X-Session-Id": "web"})).json()[
        "error"
    ]["code"] == "model_not_found"


async def test_readiness_and_an_orchestrator_that_does_not_answer(
    mesh: Mesh, raw: httpx.AsyncClient, agent: Agent
) -> None:
    assert (await raw.get("/debug/sessions")).status_code == 404
    assert (await raw.get("/v1/ready")).json()["status"] == "ok"
    await mesh.stop("orchestrator")
    assert (await raw.get("/readyz")).status_code == 503
    assert (await raw.get("/v1/ready/")).status_code == 503
    assert (await raw.get("/v1/health/")).json()["status"] == "ok"
    answer = await raw.post(CHAT, json=HELLO)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")


async def test_response_does_not_wait_for_acknowledgements(raw: httpx.AsyncClient) -> None:
    async def seconds() -> float:
        started = time.perf_counter()
        await raw.get("/livez")
        return time.perf_counter() - started

    for _ in range(10):
        await seconds()  # the first packets of a connection are acknowledged at once
    # On a loaded machine most responses are slow; one that is fast did not wait.
    fast = (True for _ in range(500) if await seconds() < 0.03)
    assert await anext(fast, False), "the body waits 40 ms for the acknowledgement of the head"


async def test_tokens(tmp_path: Path, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = lambda _: Reply(text="Hi.")
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    services = ("gateway", "orchestrator", "blocks", "recall", "archival", "tools")
    settings = {name: {"auth_key_file": str(keys)} for name in services}
    principals = [Principal(new_id("org"), new_id("user")) for _ in range(2)]
    mine, theirs = (mint_token(KEY.encode(), principal, 60) for principal in principals)
    async with Mesh(tmp_path, openai_base_url=fake_openai.base_url, gateway=True, settings=settings) as mesh:
        async with Mnemesh(mesh.client.addresses, token=mine) as owner:
            agent = await owner.agents.create("ada", model="openai/fake-model", include_base_tools=False)
        url = f"http://{mesh.addresses['gateway']}/v1"
        for token, failure in ((mine, None), (theirs, openai.NotFoundError), ("sk-any", openai.AuthenticationError)):
            async with openai.AsyncOpenAI(base_url=url, api_key=token, max_retries=0) as sdk:
                request = sdk.chat.completions.create(model=agent.id, messages=HELLO["messages"])  # type: ignore[arg-type]
                if failure is None:
                    assert (await request).choices[0].message.content == "Hi."
                    continue
                with pytest.raises(failure):
                    await request
        async with httpx.AsyncClient(timeout=scaled(60)) as raw:
            assert (await raw.get(f"{url}/models")).json()["error"]["type"] == "authentication_error"
            for path in ("/models/", "/agents/", "/agents"):
                refused = await raw.get(url + path)
                assert (refused.status_code, list(refused.json())) == (401, ["detail"]), "the form of Letta's API"
            for path in ("/health", "/health/", "/ready", "/ready/"):
                assert (await raw.get(url + path, headers={"Host": "10.0.0.1"})).status_code == 200, "for probes"
            password = {"X-BARE-PASSWORD": f"password {mine}"}
            assert (await raw.get(f"{url}/agents/", headers=password)).json()[0]["id"] == agent.id
            proxied = {"Authorization": f"Bearer {mine}", "Host": "chat.example.com"}
            assert (await raw.get(f"{url}/models", headers=proxied)).status_code == 200, "a token proves the caller"
            for headers in ({"Host": "chat.example.com"}, {**proxied, "Origin": "https://evil.example"}):
                assert (await raw.get(f"{url}/models", headers=headers)).status_code in (401, 403)


def test_synchronous_sdk(tmp_path: Path) -> None:
    """In a thread, against a mesh on this loop."""

    def use(url: str) -> list[Any]:
        with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as sdk:
            whole = sdk.chat.completions.create(model="ada", messages=HELLO["messages"])  # type: ignore[arg-type]
            stream = sdk.chat.completions.create(model="ada", messages=HELLO["messages"], stream=True)  # type: ignore[arg-type]
            return [whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)]

    async def serve() -> list[Any]:
        async with (
            FakeOpenAI([Reply(text="One"), Reply(text="Two")]) as fake,
            Mesh(tmp_path, openai_base_url=fake.base_url, gateway=True) as mesh,
        ):
            await mesh.client.agents.create("ada", model="openai/fake-model", include_base_tools=False)
            return await asyncio.to_thread(use, f"http://{mesh.addresses['gateway']}/v1")

    assert asyncio.run(serve()) == ["One", "Two"]


async def test_overlay_that_cannot_be_written_is_shown_once(
    mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mnemesh_gateway.usecases.sessions import SessionService
    from mnemesh_kit.errors import Unavailable

    fake_openai.script = lambda _: Reply(text="Aye.")

    async def refuse(*_: object) -> None:
        raise Unavailable("The block cannot be written.")

    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    with monkeypatch.context() as patch:
        patch.setattr(SessionService, "_write", refuse)
        for text in ("One", "Two"):
            asked = [*messages, {"role": "user", "content": text}]
            await sdk.chat.completions.create(model="ada", messages=asked)
        await mesh.restart("gateway")
        asked = [*messages, {"role": "user", "content": "Three"}]
        await sdk.chat.completions.create(model="ada", messages=asked)
    shown = json.dumps(fake_openai.requests[-1].body["messages"])
    assert shown.count("[Proxy System Overlay]: Be brief.") == 1
    await sdk.chat.completions.create(model="ada", messages=[*messages, {"role": "user", "content": "Four"}])
    assert "Be brief." in str(fake_openai.requests[-1].body["messages"][0]), "the next request has written it"


TINY = {"role": "user", "content": "x"}
MANY: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"model": "ada", "messages": [TINY] * 50_000}),
    (CHAT, {**HELLO, "metadata": {"a": [[]] * 100_001}}),
    ("/v1/responses", {"model": "ada", "input": [TINY] * 50_000}),
    ("/v1/embeddings", {"model": "mnemesh/wordllama-256", "input": ["x"] * 100_001}),
    ("/v1/agents/agent-123e4567-e89b-42d3-8456-426614174000/messages", {"messages": [TINY] * 10_000}),
    ("/v1/blocks/", {"label": "a", "value": "b", "metadata": {str(n): n for n in range(20_001)}}),
    ("/mcp", {"jsonrpc": "2.0", "method": "tools/call", "params": {"x": [{}] * 20_001}, "id": 1}),
]


async def test_body_with_too_many_values_is_refused_before_it_is_decoded(raw: httpx.AsyncClient) -> None:
    for path, body in MANY:
        answer = await raw.post(path, json=body, headers={"Accept": "application/json, text/event-stream"})
        assert (answer.status_code, "values" in answer.text) == (413, True), path


async def test_deeply_nested_body_is_refused(raw: httpx.AsyncClient) -> None:
    text = '{"model": "ada", "metadata": {"a": ' + "[" * 10_000 + "]" * 10_000 + "}}"
    for path in (CHAT, "/v1/responses", "/v1/agents/", "/v1/blocks/", "/mcp"):
        answer = await raw.post(path, content=text, headers={"Content-Type": "application/json"})
        expected = 422 if path in ("/v1/agents/", "/v1/blocks/") else 400
        assert (answer.status_code, "nested too deeply" in answer.text) == (expected, True), path


@pytest.mark.mesh(settings={"gateway": {"strict_parameters": True}})
async def test_strict_gateway_refuses_what_it_would_ignore(raw: httpx.AsyncClient) -> None:
    for parameter, code in (("temprature", "unknown_parameter"), ("logprobs", "unsupported_parameter")):
        answer = await raw.post(CHAT, json={**HELLO, parameter: True})
        assert (answer.status_code, answer.json()["error"]["param"], answer.json()["error"]["code"]) == (
            400,
            parameter,
            code,
        )
    answer = await raw.post("/v1/responses", json={"model": "ada", "input": "x", "max_tool_calls": 3})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tool_calls")


async def test_number_out_of_range_is_refused_by_its_field(raw: httpx.AsyncClient) -> None:
    said = '"messages": [{"role": "user", "content": "x"}]'
    for path, words, field in (
        (CHAT, said, "temperature"),
        (CHAT, said, "top_p"),
        (CHAT, said, "max_tokens"),
        ("/v1/responses", '"input": "x"', "max_output_tokens"),
        ("/v1/responses", '"input": "x"', "temperature"),
    ):
        for number in ("1" + "0" * 400, "-1" + "0" * 400, "1e400", "-1e999999999", "1" + "0" * 5_000, "1" + "0" * 30):
            text = f'{{"model": "ada", {words}, "{field}": {number}}}'
            answer = await raw.post(path, content=text, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), (
                path,
                number[:9],
                answer.text,
            )


async def test_large_body_with_a_long_history_is_answered(
    raw: httpx.AsyncClient, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = lambda _: Reply(text="Hello again.")
    history = [{"role": role, "content": "a, b; " * 50} for _ in range(2_000) for role in ("user", "assistant")]
    answer = await raw.post(CHAT, json={**HELLO, "messages": [*history, *HELLO["messages"]]})
    assert answer.json()["choices"][0]["message"]["content"] == "Hello again."
