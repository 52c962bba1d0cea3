"""Streams of events as ASGI messages: the head with its first event, and a client that leaves."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh_gateway.http.streams import EventStream, Idle
from mnemesh_gateway.letta.messages import Shown
from mnemesh_gateway.letta.turns import StreamOptions, TurnStream
from starlette.types import Message

SCOPE: dict[str, Any] = {"type": "http", "asgi": {"spec_version": "2.3"}}
DISCONNECT = {"type": "http.disconnect"}


class Client:
    """The other side of a stream. It disconnects when `leaves` is set."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self.sent: list[Message] = []
        self.iterations: list[int] = []
        """For each message, the iteration of the event loop in which it was sent."""
        self._iteration = 0

    async def receive(self) -> Message:
        await self.leaves.wait()
        return DISCONNECT

    async def send(self, message: Message) -> None:
        if not self.sent:
            self._count()
        self.sent.append(message)
        self.iterations.append(self._iteration)

    def _count(self) -> None:
        self._iteration += 1
        if self._iteration < 100:
            asyncio.get_running_loop().call_soon(self._count)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def run() -> AsyncGenerator[pb.RunEvent, None]:
    yield pb.RunEvent(run_id="run-1", accepted=pb.RunAccepted())
    yield pb.RunEvent(run_id="run-1", stop=pb.StopEvent(reason=agents_pb2.STOP_REASON_END_TURN))


async def test_head_and_first_event_are_sent_in_one_iteration_of_the_loop() -> None:
    client = Client()
    stream = TurnStream(run(), Shown(), StreamOptions(tokens=True, pings=True, announces=True))
    await stream.begin()
    await EventStream(stream.chunks(0))(SCOPE, client.receive, client.send)
    assert [message["type"] for message in client.sent[:2]] == ["http.response.start", "http.response.body"]
    assert client.iterations[0] == client.iterations[1]
    kinds = [line.partition(b'"message_type":"')[2].partition(b'"')[0] for line in client.body.split(b"\n\n")]
    assert kinds == [b"ping", b"stop_reason", b"", b""]
    assert client.sent[-1]["more_body"] is False


async def test_client_that_leaves_ends_the_stream_and_closes_its_source() -> None:
    client, is_closed = Client(), asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            client.leaves.set()
            await asyncio.Event().wait()
        finally:
            is_closed.set()

    async with asyncio.timeout(30):
        await EventStream(endless())(SCOPE, client.receive, client.send)
    assert is_closed.is_set()
    assert client.body == b"one"
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [TimeoutError, ValueError])
async def test_error_of_the_source_is_raised(error: type[Exception]) -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise error("the source failed")

    client = Client()
    with pytest.raises(error, match="the source failed"):
        await EventStream(failing())(SCOPE, client.receive, client.send)


async def test_client_that_leaves_at_the_end_changes_nothing() -> None:
    client = Client()

    async def last() -> AsyncGenerator[bytes, None]:
        yield b"one"
        client.leaves.set()

    await EventStream(last())(SCOPE, client.receive, client.send)
    await asyncio.sleep(0)
    assert client.body == b"one"


async def test_stream_without_events_has_the_idle_chunk_again_and_again() -> None:
    client = Client()

    async def slow() -> AsyncGenerator[bytes, None]:
        yield b"one"
        while client.body.count(b"idle") < 2:
            await asyncio.sleep(0.01)
        yield b"two"

    async with asyncio.timeout(30):
        await EventStream(slow(), idle=Idle(0.05, lambda: b"idle"))(SCOPE, client.receive, client.send)
    sent = client.body
    assert sent.startswith(b"oneidleidle")
    assert sent.endswith(b"two")
    await asyncio.sleep(0.1)
    assert client.body == sent


async def test_slow_client_gets_no_idle_chunk_while_an_event_is_sent() -> None:
    client = Client()

    async def one() -> AsyncGenerator[bytes, None]:
        yield b"one"

    async def send(message: Message) -> None:
        await client.send(message)
        if message.get("body") == b"one":
            await asyncio.sleep(0.2)

    await EventStream(one(), idle=Idle(0.05, lambda: b"idle"))(SCOPE, client.receive, send)
    assert client.body == b"one"
