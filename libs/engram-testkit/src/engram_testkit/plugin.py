"""The pytest plugin of the testkit: the fixtures that every package's tests may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from engram_testkit.postgres import PostgresServer, running_postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process; started when the first test asks for it."""
    with running_postgres() as server:
        yield server


@pytest_asyncio.fixture
async def postgres_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """The URL of an empty database of the test's own."""
    name = await postgres_server.create_database()
    yield postgres_server.url(name)
    await postgres_server.drop_database(name)
