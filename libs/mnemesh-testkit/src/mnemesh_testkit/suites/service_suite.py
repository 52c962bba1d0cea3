"""The base of the services' suites: a new caller for every case, and the ways to reach a service.

A suite uses the generated stubs over one fixture, `channel`, and nothing else. A subclass provides the channel: to
the servicers in this process, to a running server on a port, or to another implementation at an address.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from mnemesh_kit.call_context import Principal, Role, as_principal
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.ids import new_id
from mnemesh_kit.server import Assembly, RunningServer

from mnemesh_testkit.mesh.local_services import LocalChannel, in_process

if TYPE_CHECKING:
    from mnemesh_testkit.databases.postgres import PostgresServer

Parts = tuple[Assembly, ServerConfig]


@pytest.mark.asyncio(loop_scope="class")
class ServiceSuite:
    """The base class of a suite. Subclass a suite with a class-scoped fixture `channel`.

    One server serves all cases of a class, because each case has an organization of its own. The server may contain
    other data; a case assumes nothing about clock, ids or engine.
    """

    @pytest.fixture(autouse=True)
    def caller(self) -> Iterator[Principal]:
        """The caller of this case."""
        with as_principal(Principal(new_id("org"), new_id("user"), Role.SERVICE)) as principal:
            yield principal


class OnSqlite:
    """An empty SQLite database for the cases of a class."""

    @pytest.fixture(scope="class")
    @classmethod
    def database_url(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        return f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'tier.db'}"


class OnPostgres:
    """An empty PostgreSQL database for the cases of a class.

    Without `--full`, every third case of the class runs on it, and each with concurrent callers.
    """

    pytestmark = pytest.mark.sampled(6)

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def database_url(cls, postgres_server: "PostgresServer") -> AsyncIterator[str]:
        name = await postgres_server.create_database()
        yield postgres_server.url(name)
        await postgres_server.drop_database(name)


class OnPgBouncer:
    """An empty PostgreSQL database behind a PgBouncer in transaction mode, for the cases of a class."""

    pytestmark = pytest.mark.full

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def database_url(cls, pooled_postgres: "PostgresServer") -> AsyncIterator[str]:
        name = await pooled_postgres.create_database()
        yield pooled_postgres.url(name)
        await pooled_postgres.drop_database(name)


class InProcess:
    """Calls the servicers in this process. A fixture `parts` provides them."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def channel(cls, parts: Parts) -> AsyncIterator[LocalChannel]:
        """A channel into the servicers."""
        async with in_process(parts[0]) as channel:
            yield channel


class OverTheWire:
    """Calls a server of the fixture `parts`, on a free port."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def channel(cls, parts: Parts) -> AsyncIterator[Any]:
        """A channel to the server."""
        server = RunningServer()
        address = await server.start(*parts)
        async with at_address(address, deadline=60.0) as channel:  # a busy machine is slow
            yield channel
        await server.stop()


@asynccontextmanager
async def at_address(target: str, **options: Any) -> AsyncIterator[Any]:
    """Yields a channel to the server at `target`. `options` are those of `Channels`, such as a token."""
    channels = Channels(**options)
    try:
        yield channels.channel(target)
    finally:
        await channels.close()
