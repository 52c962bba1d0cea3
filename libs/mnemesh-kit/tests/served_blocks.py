"""A server with a fake servicer, and calls of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2_grpc
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_kit import errors
from mnemesh_kit.call_context import Principal
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.ids import new_id
from mnemesh_kit.local_calls import LocalServers
from mnemesh_kit.server import Assembly, RunningServer
from mnemesh_testkit.timeouts import scaled

servers: LocalServers | None = None
"""The servers of this process if calls go to them without a connection, see `transport`."""


ME = Principal(new_id("org"), new_id("user"))
SERVICE = "mnemesh.blocks.v1.BlockService"


class ShopIsClosed(errors.FailedPrecondition):
    reason = "SHOP_IS_CLOSED"

    def __init__(self, shop: str) -> None:
        super().__init__(f"{shop} is closed.", shop=shop)


class FakeServicer(blocks_service_pb2_grpc.BlockServiceServicer):
    """A servicer that counts its calls, and answers with the result of a test's function."""

    def __init__(self) -> None:
        self.calls = 0
        self.respond: Callable[[Any], Awaitable[str]] = self.echo

    async def echo(self, request: Any) -> str:
        return str(request.block_id)

    async def GetBlock(self, request: Any, context: Any) -> rpc.GetBlockResponse:
        self.calls += 1
        return rpc.GetBlockResponse(block=blocks_pb2.Block(id=await self.respond(request)))

    async def DeleteBlock(self, request: Any, context: Any) -> rpc.DeleteBlockResponse:
        self.calls += 1
        await self.respond(request)
        return rpc.DeleteBlockResponse()


@dataclass
class Service:
    """A running service and its servicer."""

    address: str
    servicer: FakeServicer


@asynccontextmanager
async def serving(
    add: Callable[[FakeServicer, Any], None] = blocks_service_pb2_grpc.add_BlockServiceServicer_to_server,
    **settings: Any,
) -> AsyncIterator[Service]:
    servicer, server = FakeServicer(), RunningServer(servers)
    assembly = Assembly(
        name="blocks",
        servicers=[(add, servicer)],
        service_names=[SERVICE],
    )
    address = await server.start(assembly, ServerConfig(shutdown_grace_seconds=0, **settings))
    try:
        yield Service(address, servicer)
    finally:
        await server.stop()


@asynccontextmanager
async def calling(address: str, **settings: Any) -> AsyncIterator[Any]:
    channels = Channels(local=servers, **{"deadline": scaled(60), **settings})
    try:
        yield blocks_service_pb2_grpc.BlockServiceStub(channels.channel(address))
    finally:
        await channels.close()


GET = rpc.GetBlockRequest(block_id="x")


def raising(error: BaseException) -> Callable[[Any], Awaitable[str]]:
    async def respond(_: Any) -> str:
        raise error

    return respond
