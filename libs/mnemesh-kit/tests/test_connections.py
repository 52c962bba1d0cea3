"""The connections of servers: callers find added replicas, calls outlive them, and strangers cannot keep them all."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from mnemesh_kit import errors, transport
from mnemesh_testkit.timeouts import scaled

from .served_blocks import GET, Service, calling, serving

_AGE_MS = 300


class Names(asyncio.DatagramProtocol):
    """A DNS server that knows one name."""

    def __init__(self) -> None:
        self.addresses = ["127.0.0.1"]
        self.questions = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.questions += 1
        end = data.index(b"\0", 12) + 5
        is_ipv4 = data[end - 4 : end - 2] == b"\0\1"
        found = self.addresses if is_ipv4 else []
        head = data[:2] + struct.pack(">5H", 0x8180, 1, len(found), 0, 0)
        records = [b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + socket.inet_aton(each) for each in found]
        self._transport.sendto(head + data[12:end] + b"".join(records), addr)


@asynccontextmanager
async def naming() -> AsyncIterator[tuple[Names, str]]:
    """Yields a DNS server and the first part of targets that are looked up in it."""
    transport, names = await asyncio.get_running_loop().create_datagram_endpoint(Names, local_addr=("127.0.0.1", 0))
    yield names, f"dns://127.0.0.1:{transport.get_extra_info('sockname')[1]}/blocks.test"
    transport.close()


@pytest.fixture(autouse=True)
def short_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CONNECTION_AGE_MS", _AGE_MS)
    often = ("grpc.dns_min_time_between_resolutions_ms", 100)
    others = (option for option in transport.CHANNEL_OPTIONS if option[0] != often[0])
    monkeypatch.setattr(transport, "CHANNEL_OPTIONS", (*others, often))


@asynccontextmanager
async def replica(port: int) -> AsyncIterator[Service]:
    async with serving(host="127.0.0.2", port=port) as service:
        yield service


async def test_callers_spread_to_a_replica_that_is_added() -> None:
    async with serving() as first, naming() as (names, target):
        port = int(first.address.rpartition(":")[2])
        async with calling(f"{target}:{port}") as stub, replica(port) as second:
            await stub.GetBlock(GET)
            names.addresses.append("127.0.0.2")
            async with asyncio.timeout(scaled(30)):
                while not second.servicer.calls:
                    await stub.GetBlock(GET)
            before = first.servicer.calls, second.servicer.calls
            for _ in range(20):
                await stub.GetBlock(GET)
            assert first.servicer.calls > before[0]
            assert second.servicer.calls > before[1]


async def test_callers_leave_a_replica_that_is_removed_without_an_error() -> None:
    async with serving() as first, naming() as (names, target):
        port = int(first.address.rpartition(":")[2])
        async with calling(f"{target}:{port}") as stub:
            async with replica(port) as second:
                names.addresses.append("127.0.0.2")
                async with asyncio.timeout(scaled(30)):
                    while not second.servicer.calls:
                        await stub.GetBlock(GET)
                names.addresses.remove("127.0.0.2")
            for _ in range(50):
                await stub.GetBlock(GET)


async def test_open_call_outlives_its_connections_age() -> None:
    async with serving() as first, naming() as (names, target):
        release = asyncio.Event()

        async def wait(request: Any) -> str:
            await release.wait()
            return str(request.block_id)

        first.servicer.respond = wait
        async with calling(f"{target}:{first.address.rpartition(':')[2]}") as stub:
            call = asyncio.ensure_future(stub.GetBlock(GET))
            async with asyncio.timeout(scaled(30)):
                while not first.servicer.calls:
                    await asyncio.sleep(0)
                asked = names.questions
                while names.questions == asked:  # the connection has become too old
                    await asyncio.sleep(0)
            release.set()
            assert (await call).block.id == GET.block_id


async def test_call_that_outlives_the_grace_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "OLD_CONNECTION_MS", _AGE_MS)
    async with serving() as service, calling(service.address) as stub:

        async def wait(_: Any) -> str:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

        service.servicer.respond = wait
        with pytest.raises(errors.Unavailable):
            await stub.GetBlock(GET)


async def test_connections_without_a_complete_request_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither silence, nor the start of a connection, nor half of a request's head keeps a connection open."""
    monkeypatch.setattr(transport, "HANDSHAKE_MS", _AGE_MS)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = b"\0\0\0\4\0\0\0\0\0"
    half_of_headers = b"\0\0\x40\1\0\0\0\0\1\x82"
    async with serving() as service:
        host, _, port = service.address.rpartition(":")
        for sent in (b"", preface[:10], preface, preface + settings, preface + settings + half_of_headers):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            async with asyncio.timeout(scaled(30)):
                while await reader.read(4096):
                    pass
            writer.close()


async def test_connections_beyond_the_limit_are_refused_until_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_OPEN_FILES", 8)
    monkeypatch.setattr(transport, "CONNECTION_AGE_MS", 3_600_000)
    async with serving() as service:
        host, _, port = service.address.rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
        ended = [asyncio.create_task(_ended(reader)) for reader, _ in opened]
        async with asyncio.timeout(scaled(30)):
            while sum(task.done() for task in ended) < 8:
                await asyncio.sleep(0)
        for _, writer in opened:
            writer.close()
        async with calling(service.address) as stub:
            assert (await stub.GetBlock(GET)).block.id == GET.block_id


async def _ended(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(4096):
            pass
