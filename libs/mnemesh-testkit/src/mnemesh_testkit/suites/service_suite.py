"""What the suites of the tiers share: a caller of its own for every case, and the ways to reach a tier's parts.

A suite speaks the generated stubs over one `channel`, and nothing else. What is behind the channel is the subclass's:
the room's parts in this process, a running server on a port, or a server that others wrote, at an address.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.ids import new_id
from mnemesh_kit.principal import Principal, as_principal
from mnemesh_kit.server import Assembly, RunningServer

from mnemesh_testkit.mesh.local_services import LocalChannel, in_process

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
