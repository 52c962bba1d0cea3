"""Downloads: the rules of egress at every hop, and the limits, over real connections."""

import asyncio
import gzip
import ipaddress
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from mnemesh_sandbox.egress.downloads import Downloader, DownloadFailed, DownloadLimits, Problem
from mnemesh_sandbox.egress.policy import EgressPolicy, EgressRefused, NetworkConnection, Refusal, target_of

LOOPBACK = EgressPolicy(private_networks=(ipaddress.ip_network("127.0.0.0/8"),))
LIMITS = DownloadLimits(max_bytes=100_000, seconds=20.0, redirects=3)
Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes = b"hello", status: str = "200 OK", **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"Content-Length": str(len(body)), **named}.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


@dataclass
class Site:
    """A server with one answer for each path."""

    paths: dict[str, bytes | Handler] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    port: int = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            self.requests.append(head)
            found = self.paths.get(path, answer(status="404 Not Found"))
            if isinstance(found, bytes):
                writer.write(found)
                await writer.drain()
            else:
                await found(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has what it wanted
        finally:
            writer.close()


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.handle, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    server.close()


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as site:
        yield site


async def to_loopback(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


async def body_of(url: str, policy: EgressPolicy = LOOPBACK, limits: DownloadLimits = LIMITS) -> bytes:
    async with Downloader(policy, "tests").open(url, to_loopback, limits) as download:
        return await download.read()


async def failure_of(url: str, policy: EgressPolicy = LOOPBACK, limits: DownloadLimits = LIMITS) -> DownloadFailed:
    with pytest.raises(DownloadFailed) as failed:
        await body_of(url, policy, limits)
    return failed.value


async def test_redirects_lead_to_a_body_with_its_type_and_address(site: Site) -> None:
    site.paths["/a"] = answer(b"", "302 Found", Location="/b?x=1#part", Set_Cookie="session=1")
    site.paths["/b?x=1"] = answer(b"text", Content_Type="Text/HTML; charset=latin-1")
    ended: list[NetworkConnection] = []
    downloads = Downloader(LOOPBACK, "tests/1")
    async with downloads.open(site.url("/a", "page.example"), to_loopback, LIMITS, ended=ended.append) as download:
        assert download.url == site.url("/b?x=1", "page.example")
        assert (download.media_type, download.charset, await download.read()) == ("text/html", "latin-1", b"text")
    assert [(each.host, each.address, each.refusal) for each in ended] == [("page.example", "127.0.0.1", None)] * 2
    assert all("User-Agent: tests/1" in head for head in site.requests)
    assert "ookie" not in site.requests[1]


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"x" * 5000, mtime=0)),
        ("deflate", zlib.compress(b"x" * 5000)),
        ("deflate", zlib.compress(b"x" * 5000)[2:-4]),
        ("identity", b"x" * 5000),
    ],
)
async def test_compressed_bodies_are_read(site: Site, encoding: str, body: bytes) -> None:
    site.paths["/"] = answer(body, Content_Encoding=encoding)
    assert await body_of(site.url("/")) == b"x" * 5000


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("ftp://page.example/", "http://"),
        ("file:///etc/passwd", "not valid"),
        ("javascript:alert(1)", "not valid"),
        ("http:///path", "not valid"),
        ("http://user:secret@page.example/", "user name"),
        ("http://page.example:22/", "port 22"),
        ("http://page.example:6667/", "port 6667"),
        ("http://page.example:99999/", "not valid"),
        ("http://127.1/", "not valid"),
        ("http://0x7f.0.0.1/", "not valid"),
        ("http://2130706433/", "not valid"),
        ("http://[::1%25eth0]/", "not valid"),
        ("http://page.example/" + "x" * 2000, "longer"),
    ],
)
def test_urls_that_are_no_pages(url: str, part: str) -> None:
    with pytest.raises(EgressRefused, match=part):
        target_of(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[fe80::1]/",
        "http://0.0.0.0/",
        "http://page.example/",
    ],
)
async def test_addresses_that_are_not_public_are_refused(url: str) -> None:
    failed = await failure_of(url, EgressPolicy())
    assert failed.problem is Problem.REFUSED
    assert "not public" in str(failed)


async def test_every_redirect_is_checked(site: Site) -> None:
    for path, link in {
        "/private": "http://10.0.0.1/",
        "/local": "http://127.0.0.1:1/",
        "/file": "file:///etc/passwd",
        "/named": "http://name:word@page.example/",
        "/port": "//page.example:25/",
    }.items():
        site.paths[path] = answer(b"", "301 Moved", Location=link)
    only_site = EgressPolicy(private_networks=(ipaddress.ip_network("127.0.0.1/32"),))
    for path in ("/private", "/file", "/named", "/port"):
        failed = await failure_of(site.url(path), only_site)
        assert failed.problem is Problem.REFUSED, path
    assert len(site.requests) == 4
    site.paths["/loop"] = answer(b"", "307 Temporary", Location="/loop")
    assert "more than 3 times" in str(await failure_of(site.url("/loop")))
    assert len(site.requests) == 8


async def test_second_answer_of_a_name_server_is_not_used(site: Site) -> None:
    """A name that is public when it is checked, and private when it is used, leads nowhere."""
    answers = iter([["203.0.113.7"], ["127.0.0.1"]])
    asked: list[str] = []

    async def rebinding(host: str, _port: int) -> list[str]:
        asked.append(host)
        return next(answers)

    policy = EgressPolicy(
        private_networks=(ipaddress.ip_network("203.0.113.0/24"),), connect_seconds=0.2
    )  # a network for documentation, where no host answers
    with pytest.raises(DownloadFailed):
        async with Downloader(policy, "tests").open(site.url("/", "page.example"), rebinding, LIMITS):
            pass
    assert asked == ["page.example"]
    assert site.requests == []


async def test_one_private_address_among_public_ones_refuses_the_name() -> None:
    async def mixed(_host: str, _port: int) -> list[str]:
        return ["93.184.216.34", "10.0.0.1"]

    ended: list[NetworkConnection] = []
    with pytest.raises(DownloadFailed, match="not public"):
        async with Downloader(EgressPolicy(), "tests").open("http://page.example/", mixed, ended=ended.append):
            pass
    assert [each.refusal for each in ended] == [Refusal.ADDRESS]


async def test_public_address_of_this_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service of this host may listen at a public address, too."""
    monkeypatch.setattr(EgressPolicy, "allows_address", lambda *_: True)
    failed = await failure_of("http://127.0.0.1/", EgressPolicy())
    assert failed.problem is Problem.REFUSED


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        await writer.drain()


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def dripping(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def endless_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-Header: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


BOMB = gzip.compress(b"\0" * 50_000_000, mtime=0)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (endless, Problem.TOO_LARGE),
        (answer(b"", Content_Length="99999999"), Problem.TOO_LARGE),
        (answer(BOMB, Content_Encoding="gzip"), Problem.TOO_LARGE),
        (answer(b"text", Content_Encoding="br"), Problem.UNREADABLE),
        (answer(b"no gzip", Content_Encoding="gzip"), Problem.UNREADABLE),
        (answer(BOMB[:20], Content_Encoding="gzip"), Problem.UNREACHABLE),
        (answer(b"short", Content_Length="50"), Problem.UNREACHABLE),
        (b"garbage\r\n\r\n", Problem.UNREADABLE),
        (b"", Problem.UNREACHABLE),
        (endless_headers, Problem.UNREADABLE),
        (answer(status="404 Not Found"), Problem.STATUS),
        (answer(b"", status="304 Not Modified"), Problem.STATUS),
    ],
)
async def test_answers_that_fail(site: Site, found: bytes | Handler, problem: Problem) -> None:
    site.paths["/"] = found
    failed = await failure_of(site.url("/"))
    assert failed.problem is problem
    assert failed.url == site.url("/")


@pytest.mark.parametrize("handler", [silent, dripping])
async def test_time_is_bounded(site: Site, handler: Handler) -> None:
    site.paths["/"] = handler
    failed = await failure_of(site.url("/"), limits=DownloadLimits(seconds=0.2))
    assert failed.problem is Problem.TOO_SLOW


async def test_server_that_is_not_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        failed = await failure_of(f"http://127.0.0.1:{closed.getsockname()[1]}/")
    assert failed.problem is Problem.UNREACHABLE


async def test_errors_of_the_reader_are_its_own(site: Site) -> None:
    site.paths["/"] = answer()
    with pytest.raises(ValueError, match="own"):
        async with Downloader(LOOPBACK, "tests").open(site.url("/"), to_loopback, LIMITS):
            raise ValueError("own")
