"""Template databases: a test process applies a service's migrations once, and copies the result for each test."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4
from weakref import WeakKeyDictionary

import psycopg
import sqlalchemy as sa
from mnemesh_kit.services import SERVICES
from mnemesh_kit.sql.database import Database
from mnemesh_kit.sql.memory import MemoryEngine

_PACKAGES: Final = {spec.package for spec in SERVICES}


@contextmanager
def template_databases() -> Iterator[None]:
    """Makes `Database.migrate` copy the first migrated database of a service into each later empty one.

    A database that is not empty is migrated as always.
    """
    original_open, original_migrate = Database.open, Database.migrate
    urls: WeakKeyDictionary[Database, sa.URL] = WeakKeyDictionary()

    def open_(url: str, **options: object) -> Database:
        database: Database = original_open(url, **options)  # type: ignore[arg-type]
        with suppress(sa.exc.ArgumentError, ValueError):  # such as a URL of several hosts
            parsed = sa.make_url(url)
            # A pooler keeps connections to a database, which can then be neither replaced nor copied.
            if "port" not in parsed.query:
                urls[database] = parsed
        return database

    async def migrate(self: Database, package: str) -> None:
        if package in _PACKAGES and self in urls:
            await templates.apply(urls[self], self, package)
        if not isinstance(self._engine, MemoryEngine):
            await original_migrate(self, package)

    with TemporaryDirectory(prefix="mnemesh-templates-") as directory:
        templates = _Templates(Path(directory), original_migrate)
        Database.open, Database.migrate = staticmethod(open_), migrate  # type: ignore[method-assign]
        try:
            yield
        finally:
            Database.open, Database.migrate = original_open, original_migrate  # type: ignore[method-assign]


class _Templates:
    """One migrated database of each package and engine."""

    def __init__(self, directory: Path, migrate: Callable[[Database, str], Awaitable[None]]) -> None:
        self._directory = directory
        self._migrate = migrate
        self._files: dict[str, Path] = {}
        self._dumps: dict[str, bytes] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def apply(self, url: sa.URL, database: Database, package: str) -> None:
        """Fills an empty database; leaves every other one as it is."""
        if isinstance(database._engine, MemoryEngine):
            await self._apply_to_memory(database, database._engine, package)
        elif url.get_backend_name() == "sqlite":
            await self._apply_to_file(Path(url.database or ""), package)
        else:
            lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
            async with lock:
                with suppress(OSError, psycopg.Error):  # the service reports a database that it cannot use
                    await self._apply_to_postgresql(url, package)

    async def _apply_to_memory(self, database: Database, engine: MemoryEngine, package: str) -> None:
        if package in self._dumps:
            engine.load(self._dumps[package])
        else:
            await self._migrate(database, package)
            self._dumps[package] = engine.dump()

    async def _apply_to_file(self, path: Path, package: str) -> None:
        if path.exists() or not path.parent.is_dir():  # noqa: ASYNC240  (two calls to a local file system)
            return
        if package not in self._files:
            template = self._directory / f"{package}-{uuid4()}.db"
            await self._migrated(f"sqlite:///{template}", package)
            self._files[package] = template
        await asyncio.to_thread(_copy, self._files[package], path)

    async def _apply_to_postgresql(self, url: sa.URL, package: str) -> None:
        if not await _is_empty(url):
            return
        async with _connected(url.set(database="postgres")) as connection:
            server = str(url.query)
            template = self._names.get((server, package))
            if template is None:
                template = f"template_{package}_{uuid4().hex[:8]}"
                await connection.execute(f'CREATE DATABASE "{template}"'.encode())
                await self._migrated(url.set(database=template).render_as_string(hide_password=False), package)
                self._names[server, package] = template
            await connection.execute(f'DROP DATABASE "{url.database}"'.encode())
            copied = f'CREATE DATABASE "{url.database}" TEMPLATE "{template}" STRATEGY FILE_COPY'
            await connection.execute(copied.encode())

    async def _migrated(self, url: str, package: str) -> None:
        database = Database.open(url)
        try:
            await self._migrate(database, package)
        finally:
            await database.close()


@asynccontextmanager
async def _connected(url: sa.URL) -> AsyncIterator[psycopg.AsyncConnection]:
    text = url.set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(text, autocommit=True) as connection:
        yield connection


async def _is_empty(url: sa.URL) -> bool:
    async with _connected(url) as connection:
        tables = await connection.execute("SELECT 1 FROM information_schema.tables WHERE table_schema = 'public'")
        return await tables.fetchone() is None


def _copy(template: Path, path: Path) -> None:
    """Copies the template to a path that does not exist; leaves errors for the service to find."""
    with suppress(OSError), TemporaryDirectory(dir=path.parent, prefix=".copy-") as directory:
        copied = shutil.copyfile(template, Path(directory) / "database")
        path.hardlink_to(copied)
