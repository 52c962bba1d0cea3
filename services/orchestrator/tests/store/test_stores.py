"""The stores on each SQL engine, and the tables that the migrations make."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from engram_kit.clock import FrozenClock
from engram_kit.sql import Database
from engram_orchestrator.store.agents import SqlAgentStore
from engram_orchestrator.store.conversations import SqlConversationStore
from engram_orchestrator.store.runs import SqlRunStore
from engram_orchestrator.store.steps import SqlStepStore
from engram_orchestrator.store.tables import metadata

from .conversation_suite import ConversationStoreSuite
from .step_suite import StepStoreSuite
from .suites import AgentStoreSuite, RunStoreSuite


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


async def _opened(url: str) -> AsyncIterator[Database]:
    database = Database.open(url)
    await database.migrate("engram_orchestrator")
    yield database
    await database.close()


class OnSqlite:
    @pytest_asyncio.fixture
    async def database(self, tmp_path: Path) -> AsyncIterator[Database]:
        async for database in _opened(f"sqlite:///{tmp_path / 'orchestrator.db'}"):
            yield database


class OnPostgres:
    @pytest_asyncio.fixture
    async def database(self, postgres_url: str) -> AsyncIterator[Database]:
        async for database in _opened(postgres_url):
            yield database


class Stores:
    @pytest.fixture
    def agents(self, database: Database, clock: FrozenClock) -> SqlAgentStore:
        return SqlAgentStore(database, clock)

    @pytest.fixture
    def runs(self, database: Database, clock: FrozenClock) -> SqlRunStore:
        return SqlRunStore(database, clock)

    @pytest.fixture
    def threads(self, database: Database, clock: FrozenClock) -> SqlConversationStore:
        return SqlConversationStore(database, clock)

    @pytest.fixture
    def recorded(self, database: Database, clock: FrozenClock) -> SqlStepStore:
        return SqlStepStore(database, clock)


class Migrations:
    async def test_the_migrations_make_the_tables_that_the_code_declares(self, database: Database) -> None:
        assert await database.read(lambda conn: compare_metadata(MigrationContext.configure(conn), metadata)) == []


class TestAgentsOnSqlite(OnSqlite, Stores, AgentStoreSuite):
    pass


class TestAgentsOnPostgres(OnPostgres, Stores, AgentStoreSuite):
    pass


class TestRunsOnSqlite(OnSqlite, Stores, RunStoreSuite):
    pass


class TestRunsOnPostgres(OnPostgres, Stores, RunStoreSuite):
    pass


class TestStepsOnSqlite(OnSqlite, Stores, StepStoreSuite):
    pass


class TestStepsOnPostgres(OnPostgres, Stores, StepStoreSuite):
    pass


class TestConversationsOnSqlite(OnSqlite, Stores, ConversationStoreSuite):
    pass


class TestConversationsOnPostgres(OnPostgres, Stores, ConversationStoreSuite):
    pass


class TestMigrationsOnSqlite(OnSqlite, Migrations):
    pass


class TestMigrationsOnPostgres(OnPostgres, Migrations):
    pass
