"""PostgreSQL through asyncpg: reads on read-only snapshots; serializable writes that are repeated after a conflict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from mnemesh_kit.backoff import Backoff
from mnemesh_kit.sql.errors import DatabaseUnavailable, from_postgresql

T = TypeVar("T")

WRITE_ATTEMPTS: Final = 50
CONFLICT_BACKOFF: Final = Backoff(first=0.002, maximum=0.1, factor=1.2, jitter=1.0)
_CONFLICTS: Final = frozenset({"40001", "40P01"})
# A unique violation may be a race. Then a second run finds the other row and raises the rule's own error.
_UNIQUE_VIOLATION: Final = "23505"


class PostgresEngine:
    """A pool of connections to a PostgreSQL database."""

    dialect = "postgresql"

    def __init__(self, url: sa.URL, *, pool_size: int = 10, settings: Mapping[str, str] | None = None) -> None:
        query = dict(url.query)
        if "sslmode" in query:
            query["ssl"] = query.pop("sslmode")
        engine = create_async_engine(
            url.set(drivername="postgresql+asyncpg", query=query),
            pool_size=pool_size,
            max_overflow=0,
            pool_use_lifo=True,  # the connection that was used last has its statements prepared and its caches filled
            pool_timeout=10,
            connect_args={
                "timeout": 5,
                "server_settings": {"application_name": "mnemesh", "timezone": "UTC", **(settings or {})},
            },
        )
        self._engine = engine
        self._writer = engine.execution_options(isolation_level="SERIALIZABLE")
        self._reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._reader_without_snapshot = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._after_conflict = asyncio.Lock()

    async def read(self, fn: Callable[[sa.Connection], T], *, snapshot: bool = True) -> T:
        """Runs `fn` on one read-only snapshot or without one, and again if the pool's connection had broken."""
        engine = self._reader if snapshot else self._reader_without_snapshot
        for is_last in (False, True):
            try:
                async with _reachable(query_only=True), engine.connect() as connection:
                    return await connection.run_sync(fn)
            except DatabaseUnavailable as error:
                if is_last or not _was_broken(error):
                    raise
        raise AssertionError("unreachable")

    async def write(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` in a serializable transaction, and again after a conflict, or if the pool's connection had broken
        before `fn` began."""
        unique_violations, has_begun = 0, False

        def begin(connection: sa.Connection) -> T:
            nonlocal has_begun
            has_begun = True
            return fn(connection)

        async with AsyncExitStack() as turn:
            for attempt in range(1, WRITE_ATTEMPTS + 1):
                try:
                    async with _reachable(), self._writer.connect() as connection, connection.begin():
                        return await connection.run_sync(begin)
                except DatabaseUnavailable as error:
                    if has_begun or attempt > 1 or not _was_broken(error):
                        raise
                    continue
                except sa.exc.DBAPIError as error:
                    state = getattr(error.orig, "sqlstate", None)
                    unique_violations += state == _UNIQUE_VIOLATION
                    if state not in _CONFLICTS and not (state == _UNIQUE_VIOLATION and unique_violations == 1):
                        raise
                # Retries of this process run one at a time, so that one of them always succeeds.
                if attempt == 1:
                    await turn.enter_async_context(self._after_conflict)
                await asyncio.sleep(CONFLICT_BACKOFF.delay(attempt))
        raise DatabaseUnavailable("The database has too many conflicting writers. Retry later.")

    async def alter(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` under READ COMMITTED: after it has waited for a lock, it sees the changes of the lock's holder."""
        async with self._engine.begin() as connection:
            return await connection.run_sync(fn)

    async def close(self) -> None:
        """Closes the pool."""
        await self._engine.dispose()


def _was_broken(error: DatabaseUnavailable) -> bool:
    """Returns whether the connection broke, which it may have done in the pool: the next one is new."""
    return isinstance(error.__cause__, sa.exc.DBAPIError) and error.__cause__.connection_invalidated


@asynccontextmanager
async def _reachable(*, query_only: bool = False) -> AsyncIterator[None]:
    """Raises DatabaseUnavailable or DatabaseFull if the server is unavailable or full; other errors pass unchanged."""
    try:
        yield
    except (OSError, sa.exc.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        known = from_postgresql(error, query_only=query_only)
        if known is None:
            raise
        raise known from error
