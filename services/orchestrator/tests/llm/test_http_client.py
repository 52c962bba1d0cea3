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
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient
from mnemesh_orchestrator.llm.port import CallLimits
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
    closes: bool = False
    """The connection is closed after the answer, and not by the client."""
    requests: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        try:
            await writer.drain()
            if not self.closes:
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


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
PIECE = b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n'


@pytest.mark.parametrize(
    ("answer", "kind", "said", "requests"),
    [
        (HEAD + b"x-long: " + b"a" * 9000 + b"\r\n\r\n", errors.ProviderBadAnswer, "more than 8190 bytes", 1),
        (b"HELLO\r\n\r\n", errors.ProviderBadAnswer, "not valid HTTP: Bad status line", 1),
        (PIECE, errors.ProviderBadAnswer, "not valid HTTP", 1),
        (b"HTTP/1.1 99 No\r\n\r\n", errors.ProviderBadAnswer, "status code", 1),
        (b"SSH-2.0-OpenSSH_9.0\r\n", errors.ProviderBadAnswer, "not valid HTTP", 1),
        (b"\x15\x03\x01\x00\x02\x02\x46", errors.ProviderUnreachable, "uses TLS", 1),
        (HEAD + b"x-nul: a\0b\r\n\r\n", errors.ProviderBadAnswer, "Invalid HTTP header", 1),
        (HEAD + b"no colon\r\n\r\n", errors.ProviderBadAnswer, "Invalid header", 1),
        (HEAD + b"content-length: -5\r\n\r\n", errors.ProviderBadAnswer, "Content-Length", 1),
        (CHUNKED + b"ZZZ\r\nabc\r\n", errors.ProviderBadAnswer, "chunk size", 1),
        (CHUNKED + b"%x\r\n%s\r\nZZ\r\n" % (len(PIECE), PIECE), errors.ProviderBadAnswer, "chunk size", 1),
        (CHUNKED + b"40\r\nabc", errors.ProviderUnavailable, "Not enough data", 5),
        (HEAD + b"content-length: 5000\r\n\r\n" + PIECE, errors.ProviderUnavailable, "Not enough data", 5),
        (b"", errors.ProviderUnavailable, "closed the connection", 5),
        (b"HTTP/1.1 200 OK\r\ncont", errors.ProviderUnavailable, "closed the connection", 5),
        (HEAD + b"content-encoding: gzip\r\n\r\n" + PIECE, errors.ProviderBadAnswer, "damaged compression", 1),
        (
            HEAD + b"content-encoding: gzip\r\n\r\n" + gzip.compress(PIECE * 9)[:30],
            errors.ProviderUnavailable,
            "in the middle of a compressed answer",
            5,
        ),
    ],
)
async def test_what_the_http_parser_refuses_is_an_error_of_the_provider_with_its_cause(
    answer: bytes, kind: type[errors.ProviderError], said: str, requests: int
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with server("") as running:
        running.answer, running.closes = answer, True
        client = OpenAiChatClient(settings(running.url), sleep=sleep)
        with pytest.raises(errors.ProviderError, match=said) as caught:
            await everything(client, hello())
        await client.close()
    assert (type(caught.value), len(running.requests), len(waits)) == (kind, requests, requests - 1)
    assert "RawResponseMessage" not in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "ftp://there/v1",
        "nonsense",
        "http://",
        "http://host:99999/v1",
        "https://[::1/v1",
        "http://a\0b/v1",
        f"http://{'a' * 300}/v1",
    ],
)
async def test_url_that_cannot_be_called_is_an_error_of_the_provider(url: str) -> None:
    for client_type in (OpenAiChatClient, AnthropicMessagesClient):
        client = client_type(settings(url))
        with pytest.raises(errors.ProviderUnreachable, match="house"):
            await everything(client, hello())
        with pytest.raises(errors.ProviderUnavailable, match="house"):
            await client.get("/models")
        await client.close()


async def test_tls_at_a_server_without_tls_names_the_cause() -> None:
    listener = await asyncio.start_server(plain_http, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    client = OpenAiChatClient(settings(f"https://127.0.0.1:{port}/v1"))
    with pytest.raises(errors.ProviderUnreachable, match="does not use TLS"):
        await everything(client, hello())
    await client.close()
    listener.close()


async def plain_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers to anything with HTTP, as a server without TLS does to a TLS handshake."""
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    writer.close()


async def test_compressed_answer_of_several_members_is_read() -> None:
    parts = gzip.compress(ANSWER[:20]) + gzip.compress(ANSWER[20:]) + b"\0\0"
    async with server("200 OK", parts, content_type="application/json", content_encoding="gzip") as running:
        client = OpenAiChatClient(settings(running.url), ONCE)
        _, answer = await everything(client, hello())
        assert answer.content[0].text == "Hello."
        await client.close()


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


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_model_server_on_this_machine_is_called_without_the_proxy(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server("502 Bad Gateway") as proxy, server("200 OK", ANSWER, content_type="application/json") as model:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        client = OpenAiChatClient(settings(model.url), ONCE)
        await everything(client, hello())
        await client.close()
        assert (len(model.requests), proxy.requests) == (1, [])
