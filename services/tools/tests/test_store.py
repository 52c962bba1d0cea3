"""The store behind the service: organizations are apart, and the migrated schema is the one in the code."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from mnemesh_kit.clock import SystemClock
from mnemesh_kit.ids import RandomIds
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.principal import Principal, as_principal
from mnemesh_kit.sql import Database
from mnemesh_tools.errors import ToolNotFound
from mnemesh_tools.model.tools import ToolFilter, ToolOrder, ToolSpec
from mnemesh_tools.store.sql.tables import metadata
from mnemesh_tools.store.sql.tools import SqlToolStore
from mnemesh_tools.usecases.tools import ToolService

SPEC = ToolSpec(source_code='def f():\n    """F."""\n', tags=("t",))
OTHER = Principal("org-00000000-0000-4000-8000-00000000000b", "user-00000000-0000-4000-8000-00000000000b")


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database on each engine."""
    opened = Database.open(database_url)
    await opened.migrate("mnemesh_tools")
    yield opened
    await opened.close()


@pytest.fixture
def service(database: Database) -> ToolService:
    """The use cases over that database."""
    return ToolService(SqlToolStore(database, SystemClock()), SystemClock(), RandomIds())


async def test_organizations_do_not_meet(service: ToolService) -> None:
    """The same name may live in each, and nothing of another's is found, changed or deleted."""
    mine = await service.create(SPEC, None)
    with as_principal(OTHER):
        for call in (
            service.get(mine.id),
            service.get_by_name("f"),
            service.update(mine.id, SPEC, {"tags"}, None),
        ):
            with pytest.raises(ToolNotFound):
                await call
        await service.delete(mine.id, None)
        assert await service.count(ToolFilter(tags_any=("t",))) == 0
        assert (await service.list(ToolFilter(), ToolOrder.NAME, PageQuery(10, True))).items == ()
        assert await service.get_many([mine.id], ["f"]) == ()
        theirs = await service.create(SPEC, None)
    assert theirs.id != mine.id
    assert theirs.created_by_id == OTHER.subject_id
    assert await service.get(mine.id) == mine


async def test_migrations_give_the_tables_of_the_code(database: Database) -> None:
    """Nothing to add, nothing left over."""

    def differences(conn: sa.Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(conn), metadata))

    assert await database.read(differences) == []
