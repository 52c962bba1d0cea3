"""The HTTP client under the SDKs: no redirects, bounded answers, and the addresses that it may call."""

import asyncio
import contextlib
import gzip
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from mnemesh_orchestrator.llm import errors, http_client
from mnemesh_orchestrator.llm.anthropic_messages import AnthropicMessagesClient
from mnemesh_orchestrator.llm.attempts import CallLimits
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient
from mnemesh_orchestrator.llm.provider import read_models
from mnemesh_orchestrator.llm.settings import ProviderSettings

from .windows import everything, hello

ONCE = CallLimits(attempts=1)
ANSWER = b'{"choices": [{"message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]}'


@dataclass
class Server:
    """A server that returns fixed bytes after the headers of each request, and keeps the requests."""

    answer: bytes
    port: int = 0
    requests: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        try:
            await writer.drain()
            await reader.read()  # the body, until the client closes the connection
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def server(status: str, body: bytes = b"", **headers: str) -> AsyncIterator[Server]:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    running = Server("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    listener = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.port = listener.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        listener.close()


def settings(base_url: str, *, is_registered: bool = False, type_: str = "openai_compatible") -> ProviderSettings:
    return ProviderSettings(
        name="house", type=type_, base_url=base_url, api_key="sk-secret-0123456789", is_registered=is_registered
    )


@pytest.mark.parametrize("client_type", [OpenAiChatClient, AnthropicMessagesClient])
async def test_redirect_is_not_followed(client_type: type[OpenAiChatClient | AnthropicMessagesClient]) -> None:
    async with server("200 OK", ANSWER, content_type="application/json") as other:
        async with server("307 Temporary Redirect", location=other.url) as first:
            client = client_type(settings(first.url), ONCE)
            with pytest.raises(errors.ProviderRefused, match="Redirects are not followed"):
                await everything(client, hello())
            await client.close()
        assert len(first.requests) == 1
        assert not other.requests


@pytest.mark.parametrize("type_", ["application/json", "text/event-stream"])
async def test_compressed_answers_are_bounded_after_decompression(type_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_ANSWER_BYTES", 1 << 20)
    bomb = gzip.compress(b" " * (64 << 20))
    assert len(bomb) < 100_000
    async with server("200 OK", bomb, content_type=type_, content_encoding="gzip") as running:
        client = OpenAiChatClient(settings(running.url), ONCE)
        with pytest.raises(errors.ProviderBadAnswer, match="more than 1 MB"):
            await everything(client, hello())
        await client.close()


async def test_plain_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_ANSWER_BYTES", 1 << 20)
    async with server("500 Internal Server Error", b"x" * (2 << 20)) as running:
        client = OpenAiChatClient(settings(running.url), ONCE)
        with pytest.raises(errors.ProviderBadAnswer, match="more than 1 MB"):
            await everything(client, hello())
        await client.close()


async def test_compressed_answer_of_ordinary_size_is_read() -> None:
    async with server(
        "200 OK", gzip.compress(ANSWER), content_type="application/json", content_encoding="gzip"
    ) as running:
        client = OpenAiChatClient(settings(running.url), ONCE)
        _, answer = await everything(client, hello())
        assert answer.content[0].text == "Hello."
        assert b"accept-encoding: identity" in running.requests[0].lower()
        await client.close()


@pytest.mark.parametrize("client_type", [OpenAiChatClient, AnthropicMessagesClient])
async def test_headers_of_a_provider_override_the_usual_ones(
    client_type: type[OpenAiChatClient | AnthropicMessagesClient],
) -> None:
    async with server("503 Service Unavailable", b"busy", content_type="text/plain") as running:
        own = replace(settings(running.url), headers={"authorization": "Token 7", "USER-AGENT": "house/1"})
        client = client_type(own, ONCE)
        with pytest.raises(errors.ProviderUnavailable, match="busy"):
            await everything(client, hello())
        await client.close()
        (request,) = (request.decode().lower() for request in running.requests)
        assert request.count("authorization:") == request.count("user-agent:") == request.count("content-length:") == 1
        assert "authorization: token 7" in request
        assert "user-agent: house/1" in request


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
async def test_other_encodings_are_refused(encoding: str) -> None:
    async with server("200 OK", ANSWER, content_type="application/json", content_encoding=encoding) as running:
        client = OpenAiChatClient(settings(running.url), ONCE)
        with pytest.raises(errors.ProviderBadAnswer, match="unknown encoding"):
            await everything(client, hello())
        await client.close()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254"]
)
async def test_restricted_provider_cannot_have_a_private_address(host: str) -> None:
    async with server("200 OK", ANSWER, content_type="application/json") as running:
        limits = CallLimits(attempts=1, public_addresses_only=True)
        client = OpenAiChatClient(settings(f"http://{host}:{running.port}/v1", is_registered=True), limits)
        with pytest.raises(errors.ProviderUnavailable, match="MNEMESH_PROVIDER_HOSTS"):
            await everything(client, hello())
        await client.close()
        assert not running.requests


@dataclass
class StreamingServer:
    """A server that streams one answer per request in chunks, and counts its connections."""

    ends_bodies: bool
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for piece in (b"data: %b\n\n" % ANSWER.replace(b"message", b"delta", 1), b"data: [DONE]\n\n"):
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    await writer.drain()
                    await asyncio.sleep(0.01)
                if self.ends_bodies:
                    writer.write(b"0\r\n\r\n")
        writer.close()


@pytest.mark.parametrize(("ends_bodies", "connections"), [(True, 1), (False, 2)])
async def test_connection_is_used_again_if_body_ends_soon_after_answer(*, ends_bodies: bool, connections: int) -> None:
    running = StreamingServer(ends_bodies)
    listener = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    client = OpenAiChatClient(settings(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"), ONCE)
    tasks = asyncio.all_tasks()
    for _ in range(2):
        _, answer = await everything(client, hello())
        assert answer.content[0].text == "Hello."
    assert running.connections == connections
    await client.close()
    listener.close()
    while asyncio.all_tasks() - tasks:  # the connections of the server
        await asyncio.sleep(0.01)


@pytest.mark.filterwarnings("ignore:BasicAuth is deprecated|The 'proxy_auth' parameter:DeprecationWarning")
@pytest.mark.parametrize("is_registered", [False, True])
async def test_proxy_of_environment_is_used(*, is_registered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server("200 OK", ANSWER, content_type="application/json") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:word@127.0.0.1:{proxy.port}")
        client = OpenAiChatClient(settings("http://models.example/v1", is_registered=is_registered), ONCE)
        await everything(client, hello())
        await client.close()
        assert proxy.requests[0].startswith(b"POST http://models.example/v1/chat/completions HTTP/1.1")
        assert b"proxy-authorization: basic dxnlcjp3b3jk" in proxy.requests[0].lower()


@pytest.mark.parametrize("kind", [OpenAiChatClient, AnthropicMessagesClient])
async def test_credentials_in_base_url_are_basic_authentication(
    kind: type[OpenAiChatClient | AnthropicMessagesClient],
) -> None:
    async with server("200 OK", b'{"data": []}', content_type="application/json", connection="close") as running:
        url = running.url.replace("//", "//user:p%40ss@word@")
        configured = replace(settings(url), type="anthropic" if kind is AnthropicMessagesClient else "openai")
        client = kind(configured, ONCE)
        await read_models(client, configured)
        with contextlib.suppress(errors.ProviderError):
            await everything(client, hello())  # the answer is none, but the request counts
        await client.close()
    assert [request.split()[0] for request in running.requests] == [b"GET", b"POST"]
    for request in running.requests:
        assert b"authorization: basic dxnlcjpwqhnzqhdvcmq=" in request.lower()
    assert configured.base_url == running.url


async def test_total_time_includes_answer_whose_pieces_never_stop() -> None:
    piece = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.005)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    client = OpenAiChatClient(settings(url), CallLimits(attempts=1, idle_seconds=5.0, total_seconds=0.3))
    began = asyncio.get_running_loop().time()
    with pytest.raises(errors.ProviderTimeout) as caught:
        await everything(client, hello())
    assert 0.3 <= asyncio.get_running_loop().time() - began < 3.0
    assert "aaa" in (caught.value.response_body or "")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await client.close()
    await asyncio.wait_for(ended.wait(), 5.0)
    listener.close()


async def test_providers_of_the_operator_may_have_any_address() -> None:
    async with server("200 OK", ANSWER, content_type="application/json") as running:
        client = OpenAiChatClient(settings(running.url), CallLimits(attempts=1, public_addresses_only=True))
        await everything(client, hello())
        await client.close()
