"""Streaming calls: order, errors, clients that disconnect, deadlines, and the caller in the handler."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from mnemesh_kit import errors
from mnemesh_kit.call_context import Principal, as_principal, current_principal
from mnemesh_kit.channels import Channel, Channels
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.ids import new_id
from mnemesh_kit.server import Assembly, RunningServer
from mnemesh_testkit.timeouts import scaled

from . import served_blocks

SERVICE = "mnemesh.test.Streams"


class Streams:
    """A servicer that counts up to the request: a negative number then fails, and zero never ends."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def count(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        limit = int(request)
        try:
            for number in range(abs(limit)):
                yield f"{number} {current_principal().organization_id}".encode()
            if limit < 0:
                raise errors.Aborted("half way", at=str(-limit))
            if limit == 0:
                yield b"started"
                await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def total(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return str(sum([int(request) async for request in requests])).encode()

    async def echo(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            if request == b"bad":
                raise errors.InvalidArgument("bad", field="request")
            yield request

    def register(self, _servicer: object, server: Any) -> None:
        handlers = {
            "Count": grpc.unary_stream_rpc_method_handler(self.count),
            "Total": grpc.stream_unary_rpc_method_handler(self.total),
            "Echo": grpc.stream_stream_rpc_method_handler(self.echo),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])


@pytest.fixture
async def channel(transport: None, servicer: Streams) -> AsyncIterator[Channel]:
    """A client's channel to the servicer."""
    servers = served_blocks.servers
    server, channels = RunningServer(servers), Channels(local=servers)
    assembly = Assembly(name="streams", servicers=[(servicer.register, servicer)], service_names=[])
    address = await server.start(assembly, ServerConfig(shutdown_grace_seconds=0))
    yield channels.channel(address)
    await channels.close()
    await server.stop()


@pytest.fixture
def servicer() -> Streams:
    """The servicer."""
    return Streams()


@pytest.fixture
def streams(servicer: Streams, channel: Channel) -> tuple[Streams, Any]:
    """The servicer, and a client's callable of the method that counts."""
    return servicer, channel.unary_stream(f"/{SERVICE}/Count")


async def many(last: bytes = b"7") -> AsyncIterator[bytes]:
    for number in range(100):
        yield str(number).encode()
    yield last


async def test_messages_arrive_in_order_and_the_handler_knows_the_caller(streams: tuple[Streams, Any]) -> None:
    me = Principal(new_id("org"), new_id("user"))
    with as_principal(me):
        messages = [message async for message in streams[1](b"3")]
    assert messages == [f"{number} {me.organization_id}".encode() for number in range(3)]


async def test_error_ends_a_stream_after_the_messages_before_it(streams: tuple[Streams, Any]) -> None:
    received = []
    with pytest.raises(errors.Aborted) as raised:  # noqa: PT012
        async for message in streams[1](b"-2"):
            received.append(message)
    assert len(received) == 2
    assert raised.value.metadata == {"at": "2"}


async def test_cancelled_stream_ends_its_handler(streams: tuple[Streams, Any]) -> None:
    servicer, count = streams
    stream = count(b"0")
    async for _ in stream:
        break
    stream.cancel()
    await asyncio.wait_for(servicer.ended.wait(), scaled(60))


async def test_stream_ends_at_its_deadline(streams: tuple[Streams, Any]) -> None:
    servicer, count = streams
    with pytest.raises(errors.DeadlineExceeded):
        async for _ in count(b"0", timeout=0.05):
            pass
    await asyncio.wait_for(servicer.ended.wait(), scaled(60))


async def test_a_stream_of_requests_has_one_answer(channel: Channel) -> None:
    assert await channel.stream_unary(f"/{SERVICE}/Total")(many()) == b"4957"


async def test_requests_may_come_from_an_ordinary_iterator(channel: Channel) -> None:
    assert await channel.stream_unary(f"/{SERVICE}/Total")(iter([b"1", b"2"])) == b"3"


async def test_each_of_many_requests_is_answered_in_order(channel: Channel) -> None:
    answers = [answer async for answer in channel.stream_stream(f"/{SERVICE}/Echo")(many())]
    assert answers == [str(number).encode() for number in (*range(100), 7)]


async def test_a_refused_request_ends_a_stream_of_requests(channel: Channel) -> None:
    received = []
    with pytest.raises(errors.InvalidArgument) as refused:  # noqa: PT012
        async for answer in channel.stream_stream(f"/{SERVICE}/Echo")(many(b"bad")):
            received.append(answer)
    assert len(received) == 100
    assert refused.value.field == "request"
