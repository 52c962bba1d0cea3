"""Connections: what is written at the same time is one packet."""

import asyncio
from typing import Any

import pytest
from mnemesh_gateway.http.listener import (
    HEAD_SECONDS,
    READ_SECONDS,
    REST_SECONDS,
    GatheringProtocol,
    OpenConnections,
)
from uvicorn.config import Config
from uvicorn.server import ServerState

REQUEST = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


class Socket(asyncio.Transport):
    """The transport below, which notes its writes."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        super().__init__({"peername": (address, 1), "sockname": ("127.0.0.1", 2)})
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed, "it is closed"
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def answered(body: list[bytes], request: bytes = REQUEST) -> tuple[GatheringProtocol, Socket, asyncio.Event]:
    """Returns a connection whose request has an answer with these chunks, and an event that sends the last of them."""
    go_on = asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for chunk in body[:-1]:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await go_on.wait()
        await send({"type": "http.response.body", "body": body[-1]})

    protocol, socket = connection(app)
    protocol.data_received(request)
    return protocol, socket, go_on


def connection(
    app: Any, limits: OpenConnections | None = None, address: str = "127.0.0.1"
) -> tuple[GatheringProtocol, Socket]:
    """Returns a new connection."""
    config = Config(app, ws="none", lifespan="off", log_config=None, timeout_keep_alive=75)
    config.load()
    protocol, socket = GatheringProtocol(config, ServerState(), {}, limits or OpenConnections(10, 10)), Socket(address)
    protocol.connection_made(socket)
    return protocol, socket


async def unanswering(_scope: Any, _receive: Any, _send: Any) -> None:
    """An application that never answers."""
    await asyncio.Event().wait()


async def refusing(_scope: Any, _receive: Any, send: Any) -> None:
    """An application that answers without reading the body."""
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class Timers:
    """The timers of the event loop, which run when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.all: list[tuple[float, Any, asyncio.Handle]] = []
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(self._loop, "call_later", self._call_later, raising=False)

    def _call_later(self, delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now + delay, callback, args, self._loop)
        self.all.append((self.now + delay, callback, handle))
        return handle

    def pass_time(self, seconds: float) -> None:
        """Runs the timers of this time."""
        self.now += seconds
        due, self.all = [each for each in self.all if each[0] <= self.now], [e for e in self.all if e[0] > self.now]
        for _, _, handle in sorted(due, key=lambda each: each[0]):
            if not handle.cancelled():
                handle._run()


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    return Timers(monkeypatch)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_head_and_body_are_one_packet() -> None:
    _, socket, go_on = await answered([b"whole"])
    go_on.set()
    await settled()
    (packet,) = socket.sent
    assert packet.startswith(b"HTTP/1.1 200 OK\r\n")
    assert packet.endswith(b"whole\r\n0\r\n\r\n")


async def test_chunk_is_sent_before_the_next_one_is_ready() -> None:
    _, socket, go_on = await answered([b"first", b"second"])
    await settled()
    assert len(socket.sent) == 1
    assert socket.sent[0].endswith(b"first\r\n")
    go_on.set()
    await settled()
    assert socket.sent[1:] == [b"6\r\nsecond\r\n0\r\n\r\n"]


async def test_large_chunk_is_sent_at_once() -> None:
    """The flow control of the connection must see it before the next chunk."""
    _, socket, _ = await answered([b"x" * 70_000, b"y" * 70_000, b""])
    await asyncio.sleep(0)  # the application runs
    assert [part[-3:] for part in socket.sent] == [b"x\r\n", b"y\r\n"]


async def test_answer_is_sent_before_the_connection_closes() -> None:
    _, socket, go_on = await answered([b"whole"], b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
    go_on.set()
    await settled()
    assert socket.sent[0].endswith(b"whole\r\n0\r\n\r\n")
    assert socket.closed


@pytest.mark.parametrize("sent_before", [True, False])
async def test_lost_connection_loses_what_was_written(sent_before: bool) -> None:
    protocol, socket, go_on = await answered([b"first", b"second"])
    await (settled() if sent_before else asyncio.sleep(0))
    packets = len(socket.sent)
    socket.closed = True
    protocol.connection_lost(None)
    go_on.set()
    await settled()
    assert len(socket.sent) == packets == int(sent_before)


@pytest.mark.parametrize(
    "pieces",
    [[], [b"GET / HTTP/1.1\r\n"], [b"GET / HTTP/1.1\r\nx-a: 1\r\n"] + [b"x-b: 2\r\n"] * 9, [b"\r\n"] * 10],
    ids=["nothing", "first line", "endless headers", "blank lines"],
)
async def test_client_that_does_not_finish_a_head_is_disconnected(timers: Timers, pieces: list[bytes]) -> None:
    protocol, socket = connection(unanswering)
    for piece in pieces:
        protocol.data_received(piece)
        timers.pass_time(HEAD_SECONDS / 20)
        assert not socket.closed
    timers.pass_time(HEAD_SECONDS)
    assert socket.closed


@pytest.mark.parametrize("piece", [b"GET / HTTP/1.1\r\n", b"\r\n"])
async def test_half_of_a_second_head_does_not_keep_a_connection_open(timers: Timers, piece: bytes) -> None:
    protocol, socket = connection(refusing)
    protocol.data_received(REQUEST)
    await settled()
    timers.pass_time(60)
    assert not socket.closed, "a client may send its next request later"
    protocol.data_received(piece)
    timers.pass_time(HEAD_SECONDS)
    assert socket.closed


async def test_connection_without_requests_is_closed_after_a_while(timers: Timers) -> None:
    protocol, socket = connection(refusing)
    protocol.data_received(REQUEST)
    await settled()
    timers.pass_time(75)
    assert socket.closed


async def test_request_that_is_worked_on_keeps_its_connection(timers: Timers) -> None:
    protocol, socket = connection(unanswering)
    protocol.data_received(REQUEST)
    timers.pass_time(100_000)
    assert not socket.closed


async def test_body_that_goes_on_after_the_answer_ends_with_the_connection(timers: Timers) -> None:
    protocol, socket = connection(refusing)
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 1000000\r\n\r\n")
    await settled()
    for _ in range(3):
        protocol.data_received(b"x")
        timers.pass_time(1)
    assert not socket.closed
    timers.pass_time(REST_SECONDS)
    assert socket.closed


async def test_connection_goes_on_after_a_body_that_ended_late(timers: Timers) -> None:
    protocol, socket = connection(refusing)
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 1\r\n\r\n")
    await settled()
    protocol.data_received(b"x")
    timers.pass_time(REST_SECONDS * 2)
    protocol.data_received(REQUEST)
    await settled()
    assert b"".join(socket.sent).count(b"403 Forbidden") == 2
    timers.pass_time(75)
    assert socket.closed


async def test_client_that_reads_nothing_is_disconnected(timers: Timers) -> None:
    protocol, socket = connection(unanswering)
    protocol.data_received(REQUEST)
    protocol.pause_writing()
    timers.pass_time(READ_SECONDS / 2)
    protocol.resume_writing()
    protocol.pause_writing()
    timers.pass_time(READ_SECONDS / 2)
    assert not socket.closed
    timers.pass_time(READ_SECONDS / 2)
    assert socket.closed
    protocol.connection_lost(None)


@pytest.mark.parametrize(
    "endless",
    [b"x" * 1000, b"x-a: 1\r\n", b": " + b"y" * 500],
    ids=["address", "headers", "value"],
)
async def test_head_that_is_too_large_is_refused(endless: bytes) -> None:
    protocol, socket = connection(unanswering)
    protocol.data_received(b"GET /" if endless.startswith(b"xx") else b"GET / HTTP/1.1\r\nx-long")
    for _ in range(1 + 65_536 // len(endless)):
        protocol.data_received(endless)
    assert socket.closed
    assert socket.sent[0].startswith(b"HTTP/1.1 431 ")


async def test_trailers_of_a_body_are_bounded() -> None:
    protocol, socket = connection(unanswering)
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
    for _ in range(8_000):
        protocol.data_received(b"x-a: 1\r\n")
    assert not socket.closed
    protocol.data_received(b"x-b: 1\r\n" * 1_000)
    assert socket.closed


async def test_body_in_chunks_of_one_byte_is_read() -> None:
    protocol, socket = connection(unanswering)
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(30):
        protocol.data_received(b"1\r\nx\r\n" * 1_000)
    assert not socket.closed


async def test_new_connection_replaces_the_oldest_one_without_a_request() -> None:
    limits = OpenConnections(total=10, per_address=3)
    busy, busy_socket = connection(unanswering, limits)
    busy.data_received(REQUEST)
    _, first = connection(unanswering, limits)
    _, second = connection(unanswering, limits)
    _, third = connection(unanswering, limits)
    assert [busy_socket.closed, first.closed, second.closed, third.closed] == [False, True, False, False]


async def test_address_with_too_many_requests_gets_no_more_connections() -> None:
    limits = OpenConnections(total=10, per_address=2)
    open_ones = [connection(unanswering, limits) for _ in range(2)]
    for protocol, _ in open_ones:
        protocol.data_received(REQUEST)
    _, refused = connection(unanswering, limits)
    _, other = connection(unanswering, limits, "192.0.2.1")
    assert refused.closed
    assert not other.closed
    open_ones[0][0].connection_lost(None)
    assert not connection(unanswering, limits)[1].closed


async def test_many_addresses_share_the_bound_of_all() -> None:
    limits = OpenConnections(total=3, per_address=2)
    many = [connection(unanswering, limits, "192.0.2.1")[1] for _ in range(2)]
    few = connection(unanswering, limits, "192.0.2.2")[1]
    new = connection(unanswering, limits, "192.0.2.3")[1]
    assert [each.closed for each in (*many, few, new)] == [True, False, False, False], "of those who have most"


async def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    limits = OpenConnections(total=10, per_address=1)
    _, first = connection(unanswering, limits, "2001:db8::1")
    _, mapped = connection(unanswering, limits, "::ffff:192.0.2.1")
    connection(unanswering, limits, "2001:db8::ffff:2%eth0")
    assert first.closed
    assert not mapped.closed
    connection(unanswering, limits, "192.0.2.1")
    assert mapped.closed
