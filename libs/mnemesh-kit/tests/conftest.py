"""Fixtures of the kit's tests: a database on each engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh_kit.local_calls import LocalServers
from mnemesh_kit.sql import Database

from . import served_blocks


@pytest.fixture(params=["sqlite", "postgresql", pytest.param("pgbouncer", marks=pytest.mark.full)])
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


@pytest.fixture(params=["grpc", "local"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with calls over gRPC and with calls within the process."""
    monkeypatch.setattr(served_blocks, "servers", LocalServers() if request.param == "local" else None)
