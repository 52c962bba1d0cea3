"""SQLite in memory, for tests: one connection, whose transactions run at once on the event loop."""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import cache
from typing import TypeVar, cast

import sqlalchemy as sa

from mnemesh_kit.sql.errors import from_sqlite

T = TypeVar("T")


class MemoryEngine:
    """A database that exists while the engine is open.

    A transaction is a plain function call, so transactions never overlap, and nothing waits for a thread or a file. A
    caller still yields to the event loop after each, as it does with other engines.
    """

    dialect = "sqlite"
    start_errors: tuple[type[Exception], ...] = (OSError, sa.exc.DBAPIError)

    def __init__(self) -> None:
        self._connection = _engine().connect()

    async def read(self, fn: Callable[[sa.Connection], T], *, snapshot: bool = True) -> T:  # noqa: ARG002
        """Runs `fn` in a transaction that cannot write."""
        driver = self._driver()
        driver.execute("PRAGMA query_only=ON")
        try:
            result = self.run(fn, query_only=True)
        finally:
            driver.execute("PRAGMA query_only=OFF")
        await asyncio.sleep(0)
        return result

    async def write(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` in a transaction."""
        result = self.run(fn)
        await asyncio.sleep(0)
        return result

    async def alter(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` in a transaction. SQLite's schema changes are transactional."""
        return await self.write(fn)

    def run(self, fn: Callable[[sa.Connection], T], *, query_only: bool = False) -> T:
        """Runs `fn` in a transaction and returns its result."""
        try:
            with self._connection.begin():
                return fn(self._connection)
        except sa.exc.OperationalError as error:
            if (known := from_sqlite(error, query_only=query_only)) is not None:
                raise known from error
            raise

    def dump(self) -> bytes:
        """Returns the whole database."""
        return self._driver().serialize()

    def load(self, dump: bytes) -> None:
        """Replaces the database by one that `dump` returned."""
        self._driver().deserialize(dump)

    async def close(self) -> None:
        """Discards the database."""
        self._connection.close()

    def _driver(self) -> sqlite3.Connection:
        return cast("sqlite3.Connection", self._connection.connection.driver_connection)


@cache
def _engine() -> sa.Engine:
    """Returns the process's one engine, whose statements are compiled once for all databases."""
    engine = sa.create_engine(
        "sqlite+pysqlite://",
        poolclass=sa.NullPool,
        hide_parameters=True,
        # `begin` starts transactions: the driver would start them only before the first write.
        connect_args={"isolation_level": None, "check_same_thread": False},
        query_cache_size=5_000,
    )
    sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys=ON"))
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine
