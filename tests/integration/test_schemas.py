"""The revisions of each service create the tables that its code declares, on both SQL engines."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from mnemesh_kit.services import STORE_NAMES
from mnemesh_kit.sql import Database

UNDECLARED = ("message_terms", "ix_message_terms")
"""The prefixes of the names of the word index of recall, which differs by engine and is not declared."""


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'service.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.parametrize("service", STORE_NAMES)
async def test_revisions_create_the_declared_tables(service: str, database_url: str) -> None:
    import_module(f"mnemesh_{service}.wiring")  # imports every module that declares tables
    store = f"mnemesh_{service}.store."
    (tables,) = (sys.modules[name] for name in list(sys.modules) if name.startswith(store) and name.endswith(".tables"))
    options = {"include_name": lambda name, *_: not (name or "").startswith(UNDECLARED)}

    def differences(conn: sa.Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(conn, opts=options), tables.metadata))

    database = Database.open(database_url)
    await database.migrate(f"mnemesh_{service}")
    assert await database.read(differences) == []
    await database.close()
