"""Fixtures of the kit's tests: a database on each engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh_kit.sql import Database


@pytest.fixture(params=["sqlite", "postgresql", "pgbouncer"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database on the engine under test."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'kit.db'}"
    url: str = request.getfixturevalue("postgres_url" if request.param == "postgresql" else "pooled_postgres_url")
    return url


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The empty database, open."""
    opened = Database.open(database_url)
    yield opened
    await opened.close()
