"""What the suites of the tiers share: a caller of its own for every case, and the ways to reach a tier's parts.

A suite speaks the generated stubs over one `channel`, and nothing else. What is behind the channel is the subclass's:
the room's parts in this process, a running server on a port, or a server that others wrote, at an address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.errors import MnemeshError, typed_error
from mnemesh_kit.ids import new_id
from mnemesh_kit.principal import Principal, as_principal
from mnemesh_kit.server import Assembly, RunningServer

if TYPE_CHECKING:
    from mnemesh_testkit.databases.postgres import PostgresServer

Parts = tuple[Assembly, ServerConfig]


@pytest.mark.asyncio(loop_scope="class")
class ServiceSuite:
    """Subclass a tier's suite with a class-scoped fixture `channel` that gives a channel as `Channels` makes them.

    One server serves all cases of a class, for every case acts for an organization that nobody else knows. So the
    server may be any, and may hold the data of others; a case assumes nothing of clock, ids or engine.
    """

    @pytest.fixture(autouse=True)
    def caller(self) -> Iterator[Principal]:
        """Who calls in this case."""
        with as_principal(Principal(new_id("org"), new_id("user"))) as principal:
            yield principal


class OnSqlite:
    """An empty SQLite database for the cases of a class."""

    @pytest.fixture(scope="class")
    @classmethod
    def database_url(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        """Its URL."""
        return f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'tier.db'}"


class OnPostgres:
    """An empty PostgreSQL database for the cases of a class."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def database_url(cls, postgres_server: PostgresServer) -> AsyncIterator[str]:
        """Its URL."""
        name = await postgres_server.create_database()
        yield postgres_server.url(name)
        await postgres_server.drop_database(name)


class InProcess:
    """The servicers called in this process, between the codecs of the stubs; a fixture `parts` gives them."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def channel(cls, parts: Parts) -> AsyncIterator[LocalChannel]:
        """A channel straight into the servicers."""
        async with in_process(parts[0]) as channel:
            yield channel


class OverTheWire:
    """A real server of those `parts` on a free port."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def channel(cls, parts: Parts) -> AsyncIterator[Any]:
        """A channel to it."""
        server = RunningServer()
        address = await server.start(*parts)
        async with at_address(address, deadline=60.0) as channel:  # a busy machine is no fault of the server's
            yield channel
        await server.stop()


@asynccontextmanager
async def at_address(target: str, **options: Any) -> AsyncIterator[Any]:
    """A channel to whatever serves the contract at `target`; `options` are those of `Channels`, a token among them."""
    channels = Channels(**options)
    try:
        yield channels.channel(target)
    finally:
        await channels.close()


@asynccontextmanager
async def in_process(assembly: Assembly) -> AsyncIterator[LocalChannel]:
    """A channel into the servicers of `assembly`, whose life is lived meanwhile as a server lives it."""
    async with AsyncExitStack() as stack:
        for close in assembly.close:
            stack.push_async_callback(close)
        for hook in assembly.start:
            await hook()
        tasks = [asyncio.ensure_future(hook()) for hook in assembly.background]
        try:
            yield LocalChannel(assembly)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class LocalChannel:
    """What a generated stub takes for a channel, without transport: requests and answers are still encoded."""

    def __init__(self, assembly: Assembly) -> None:
        self._handlers: dict[str, Any] = {}
        for add, servicer in assembly.servicers:
            add(servicer, self)

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Part of what a servicer is added to; the registered handlers are the same ones."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Takes the methods of a service."""
        self._handlers |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def unary_unary(
        self, method: str, request_serializer: Callable[[Any], bytes], response_deserializer: Callable[[bytes], Any],
        _registered_method: bool = False,
    ) -> Callable[..., Any]:  # fmt: skip
        """A callable that gives the answer; it raises what the wire would bring, as the wire would."""
        handler = self._handlers[method]

        async def call(request: Any, **_: Any) -> Any:
            try:
                asked = handler.request_deserializer(request_serializer(request))
                answer = await handler.unary_unary(asked, None)
            except MnemeshError:
                raise
            except Exception as error:
                raise typed_error(error) from error
            return response_deserializer(handler.response_serializer(answer))

        return call
