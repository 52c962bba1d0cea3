"""The settings of a service's database, its opening, and its maintenance."""

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa
from mnemesh_kit.config import StartupError
from mnemesh_kit.maintenance import maintain_database
from mnemesh_kit.sql import Database, SqlConfig, open_database


@dataclass(frozen=True, kw_only=True)
class Config(SqlConfig):
    port: int = 1


Config.__module__ = "mnemesh_shelf.config"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A service's package with one table."""
    versions = tmp_path / "mnemesh_shelf" / "store" / "migrations" / "versions"
    versions.mkdir(parents=True)
    for path in (tmp_path / "mnemesh_shelf" / "__init__.py", tmp_path / "mnemesh_shelf" / "store" / "__init__.py"):
        path.touch()
    (versions / "0001_shelf.py").write_text("revision, down_revision = '0001', None\n")
    (tmp_path / "mnemesh_shelf" / "store" / "tables.py").write_text(
        "import sqlalchemy as sa\nmetadata = sa.MetaData()\n"
        "sa.Table('books', metadata, sa.Column('title', sa.Text, primary_key=True))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("mnemesh_shelf", "mnemesh_shelf.store", "mnemesh_shelf.store.tables"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return "mnemesh_shelf"


def test_database_is_a_file_named_after_the_service_or_the_given_url(tmp_path: Path) -> None:
    assert Config(data_dir=str(tmp_path)).database == f"sqlite:///{tmp_path}/shelf.db"
    assert Config(database_url="postgresql://host/db").database == "postgresql://host/db"
    assert Config.from_env({"MNEMESH_SHELF_SQLITE_SYNCHRONOUS": "FULL"}).sqlite_synchronous == "FULL"


async def test_maintenance_purges_and_rewrites_a_database_that_is_not_in_use(tmp_path: Path, package: str) -> None:
    config = Config(data_dir=str(tmp_path))
    database = await open_database(config, package)
    books = [{"title": f"{number} {'x' * 500}"} for number in range(500)]
    await database.write(lambda c: c.execute(sa.text("INSERT INTO books VALUES (:title)"), books))

    async def purge(opened: Database) -> AsyncIterator[str]:
        count = await opened.write(lambda c: c.execute(sa.text("DELETE FROM books")).rowcount)
        yield f"books deleted: {count}"

    with pytest.raises(StartupError, match="in use"):
        _ = [line async for line in maintain_database(config, package, purge)]
    await database.close()

    report = [line async for line in maintain_database(config, package, purge)]
    assert report[0] == "books deleted: 500"
    assert report[1].startswith("shelf.db: ")
    assert (tmp_path / "shelf.db").stat().st_size < 50_000


async def test_database_that_cannot_be_opened_is_a_startup_error(tmp_path: Path, package: str) -> None:
    with pytest.raises(StartupError, match="cannot be used"):
        await open_database(Config(data_dir=str(tmp_path / "missing")), package)
