"""The words for a server that cannot be reached, from the real errors of the HTTP clients."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import httpx
import pytest
from mnemesh_kit.network import address_of, failure_of_connection, reason_of_failure

Get = Callable[[str], Awaitable[object]]


async def with_aiohttp(url: str) -> object:
    async with aiohttp.ClientSession() as session:
        return await session.get(url)


async def with_httpx(url: str) -> object:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(url)


@pytest.fixture(params=[with_aiohttp, with_httpx])
def get(request: pytest.FixtureRequest) -> Get:
    return request.param


@pytest.fixture
async def plain_port() -> AsyncIterator[int]:
    """The port of a server that answers in plain text and closes."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def described(get: Get, url: str) -> str:
    with pytest.raises((aiohttp.ClientError, httpx.HTTPError, httpx.InvalidURL)) as raised:
        await get(url)
    return failure_of_connection(url, raised.value)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://127.0.0.1:1/v1", r"127\.0\.0\.1:1: connection refused"),
        ("http://localhost:1/v1", r"localhost:1: connection refused"),
        ("http://name:secret@127.0.0.1:1/v1?key=secret", r"127\.0\.0\.1:1: connection refused"),
        ("http://nowhere.invalid/v1", r"nowhere\.invalid:80: the name of the host is not known"),
        ("nourl", "the URL is not valid"),
    ],
)
async def test_the_text_names_the_address_and_the_reason_of_the_system(get: Get, url: str, text: str) -> None:
    assert re.fullmatch(text, await described(get, url))


async def test_a_server_without_tls_is_named_so(get: Get, plain_port: int) -> None:
    text = await described(get, f"https://127.0.0.1:{plain_port}/")
    assert text.startswith(f"127.0.0.1:{plain_port}: it does not use TLS at this address")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 101] x"), "connection refused"),
        (PermissionError(13, "a.test has an address that is not public"), "a.test has an address that is not public"),
        (httpx.ConnectTimeout(""), "it did not answer in time"),
        (TimeoutError(), "it did not answer in time"),
        (aiohttp.ServerDisconnectedError(), "it closed the connection"),
        (ExceptionGroup("two", [ConnectionRefusedError(111, "Connect call failed ('::1', 1)")]), "connection refused"),
        (httpx.ConnectError("sk-secret"), "the connection failed"),
    ],
)
def test_errors_without_an_address_have_a_reason_too(error: Exception, text: str) -> None:
    assert reason_of_failure(error) == text


@pytest.mark.parametrize(
    ("url", "address"),
    [("https://a.test/x", "a.test:443"), ("http://[::1]:8/x", "[::1]:8"), ("http://a:99999/", ""), ("x", "")],
)
def test_the_address_is_host_and_port(url: str, address: str) -> None:
    assert address_of(url) == address
