"""Fresh SQLite databases that begin as copies: a test process carries a room's revisions out once, not in each test."""

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
from mnemesh_kit.services import SERVICE_NAMES
from mnemesh_kit.sql.database import Database

_PACKAGES: Final = {f"mnemesh_{room}" for room in SERVICE_NAMES}


@contextmanager
def template_databases() -> Iterator[None]:
    """Has `Database.migrate` copy what it made before into files that are not there yet, and go on from that.

    A database that has anything in it is migrated as ever, and so is every one on PostgreSQL.
    """
    opened, migrate = Database.open, Database.migrate
    paths: WeakKeyDictionary[Database, Path] = WeakKeyDictionary()
    made: dict[str, Path] = {}

    def open_(url: str, **options: object) -> Database:
        database: Database = opened(url, **options)  # type: ignore[arg-type]
        place = sa.make_url(url)
        if place.get_backend_name() == "sqlite" and place.database:
            paths[database] = Path(place.database)
        return database

    async def migrate_(self: Database, package: str) -> None:
        path = paths.get(self)
        if path is None or path.exists() or package not in _PACKAGES:
            return await migrate(self, package)
        known = made.get(package)
        if known is not None and path.parent.is_dir():
            await asyncio.to_thread(_place, known, path)
            return await migrate(self, package)
        await migrate(self, package)
        made[package] = await asyncio.to_thread(_copy, path, Path(directory) / f"{package}-{uuid4()}.db")
        return None

    with TemporaryDirectory(prefix="mnemesh-migrated-") as directory:
        Database.open, Database.migrate = staticmethod(open_), migrate_  # type: ignore[method-assign]
        try:
            yield
        finally:
            Database.open, Database.migrate = opened, migrate  # type: ignore[method-assign]


def _copy(path: Path, copy: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    return copy


def _place(known: Path, path: Path) -> None:
    """Puts a copy where nothing is yet; where that cannot be, the room finds out by itself why not."""
    with suppress(OSError), TemporaryDirectory(dir=path.parent, prefix=".copy-") as directory:
        copied = shutil.copyfile(known, Path(directory) / "database")
        path.hardlink_to(copied)
