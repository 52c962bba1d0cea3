"""Connections: what is written at the same time is one packet."""

import asyncio
from typing import Any

import pytest
from mnemesh_gateway.http.connections import GatheringProtocol
from uvicorn.config import Config
from uvicorn.server import ServerState

REQUEST = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


class Socket(asyncio.Transport):
    """The transport below, which notes its writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed, "it is closed"
        self.sent.append(data)

    def close(self) -> None:
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

    config = Config(app, http=GatheringProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    protocol, socket = GatheringProtocol(config, ServerState(), {}), Socket()
    protocol.connection_made(socket)
    protocol.data_received(request)
    return protocol, socket, go_on


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
