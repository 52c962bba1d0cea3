"""Template databases: a test process applies a service's migrations once, and copies the result for each test."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from mnemesh_kit.services import SERVICES
from mnemesh_kit.sql.database import Database
from mnemesh_kit.sql.memory import MemoryEngine

_PACKAGES: Final = {spec.package for spec in SERVICES}


@contextmanager
def template_databases() -> Iterator[None]:
    """Makes `Database.migrate` copy the first migrated SQLite database of a service into each later empty one.

    A database that is not empty, and every one on PostgreSQL, is migrated as always.
    """
    original_open, original_migrate = Database.open, Database.migrate
    paths: WeakKeyDictionary[Database, Path] = WeakKeyDictionary()
    files: dict[str, Path] = {}
    dumps: dict[str, bytes] = {}

    def open_(url: str, **options: object) -> Database:
        database: Database = original_open(url, **options)  # type: ignore[arg-type]
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, ":memory:"):
            paths[database] = Path(parsed.database)
        return database

    async def migrate_in_memory(database: Database, engine: MemoryEngine, package: str) -> None:
        if package not in dumps:
            await original_migrate(database, package)
            dumps[package] = engine.dump()
        else:
            engine.load(dumps[package])

    async def migrate(self: Database, package: str) -> None:
        if isinstance(self._engine, MemoryEngine) and package in _PACKAGES:
            return await migrate_in_memory(self, self._engine, package)
        path = paths.get(self)
        if path is None or path.exists() or package not in _PACKAGES:
            return await original_migrate(self, package)
        template = files.get(package)
        if template is not None and path.parent.is_dir():
            await asyncio.to_thread(_copy_to, template, path)
            return await original_migrate(self, package)
        await original_migrate(self, package)
        files[package] = await asyncio.to_thread(_dump, path, Path(directory) / f"{package}-{uuid4()}.db")
        return None

    with TemporaryDirectory(prefix="mnemesh-templates-") as directory:
        Database.open, Database.migrate = staticmethod(open_), migrate  # type: ignore[method-assign]
        try:
            yield
        finally:
            Database.open, Database.migrate = original_open, original_migrate  # type: ignore[method-assign]


def _dump(path: Path, copy: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    return copy


def _copy_to(template: Path, path: Path) -> None:
    """Copies the template to a path that does not exist; leaves errors for the service to find."""
    with suppress(OSError), TemporaryDirectory(dir=path.parent, prefix=".copy-") as directory:
        copied = shutil.copyfile(template, Path(directory) / "database")
        path.hardlink_to(copied)
