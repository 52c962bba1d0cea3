"""The block store suite on each SQL engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from engram_blocks.store.sql import SqlBlockStore
from engram_kit.clock import FrozenClock
from engram_kit.sql import Database
from engram_testkit.suites.blocks import BlockStoreSuite


async def _store(url: str, clock: FrozenClock) -> AsyncIterator[SqlBlockStore]:
    database = Database.open(url)
    await database.migrate("engram_blocks")
    yield SqlBlockStore(database, clock)
    await database.close()


class TestOnSqlite(BlockStoreSuite):
    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path, clock: FrozenClock) -> AsyncIterator[SqlBlockStore]:
        async for store in _store(f"sqlite:///{tmp_path / 'blocks.db'}", clock):
            yield store


class TestOnPostgres(BlockStoreSuite):
    @pytest_asyncio.fixture
    async def store(self, postgres_url: str, clock: FrozenClock) -> AsyncIterator[SqlBlockStore]:
        async for store in _store(postgres_url, clock):
            yield store


async def test_the_migrations_make_the_tables_that_the_code_declares(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from engram_blocks.store.tables import metadata

    database = Database.open(f"sqlite:///{tmp_path / 'blocks.db'}")
    await database.migrate("engram_blocks")
    assert await database.read(lambda conn: compare_metadata(MigrationContext.configure(conn), metadata)) == []
    await database.close()
