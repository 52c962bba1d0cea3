"""PostgreSQL through asyncpg: reads on read-only snapshots; serializable writes that are repeated after a conflict."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import asyncpg
import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.retries import Backoff
from mnemesh_kit.sql.errors import DatabaseUnavailable, from_postgresql
from mnemesh_kit.sql.postgresql import PostgresUrl

_log = structlog.get_logger("mnemesh.sql")

T = TypeVar("T")

WRITE_ATTEMPTS: Final = 50
CONFLICT_BACKOFF: Final = Backoff(first=0.002, maximum=0.1, factor=1.2, jitter=1.0)
_CONFLICTS: Final = frozenset({"40001", "40P01"})
# A unique violation may be a race. Then a second run finds the other row and raises the rule's own error.
_UNIQUE_VIOLATION: Final = "23505"

_UNNAMED_STATEMENTS: Final[Mapping[str, Any]] = {
    "prepared_statement_cache_size": 0,
    "prepared_statement_name_func": lambda: "",
}
"""Options of SQLAlchemy with which a statement lasts until the next one, so that no connection keeps it."""


@dataclass(frozen=True)
class _Pools:
    """One pool of connections, and its views by the isolation of their transactions."""

    any: AsyncEngine
    writer: AsyncEngine
    reader: AsyncEngine
    reader_without_snapshot: AsyncEngine


class PostgresEngine:
    """A pool of connections to a PostgreSQL database.

    The connections may lead to a pooler that gives each transaction another connection of the server: PgBouncer in
    transaction mode, Supabase, Neon. Then no statement is prepared under a name, every statement is in a transaction,
    and `settings` are made in each.
    """

    dialect = "postgresql"
    start_errors: tuple[type[Exception], ...] = (
        OSError,
        sa.exc.DBAPIError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        MnemeshError,
    )

    def __init__(self, url: PostgresUrl, *, pool_size: int = 10, settings: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._pool_size = pool_size
        self._settings = settings or {}
        self._opened: _Pools | None = None
        self._opening = asyncio.Lock()
        self._after_conflict = asyncio.Lock()

    async def read(self, fn: Callable[[sa.Connection], T], *, snapshot: bool = True) -> T:
        """Runs `fn` on one read-only snapshot or without one, and again if the pool's connection had broken."""
        for is_last in (False, True):
            try:
                async with _reachable(query_only=True):
                    pools = self._opened or await self._open()
                    engine = pools.reader if snapshot else pools.reader_without_snapshot
                    async with engine.connect() as connection:
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
                    async with _reachable():
                        pools = self._opened or await self._open()
                        async with pools.writer.connect() as connection, connection.begin():
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
        async with _reachable():
            pools = self._opened or await self._open()
            async with pools.any.begin() as connection:
                return await connection.run_sync(fn)

    async def close(self) -> None:
        """Closes the pool."""
        if self._opened is not None:
            await self._opened.any.dispose()

    async def _open(self) -> _Pools:
        """Creates the pool. Connects once, if the URL does not say whether the connections lead to a pooler."""
        async with self._opening:
            if self._opened is None:
                is_pooled = self._url.is_pooled
                if is_pooled is None:
                    is_pooled = await _leads_to_pooler(self._url)
                self._opened = self._create_pools(is_pooled=is_pooled)
            return self._opened

    def _create_pools(self, *, is_pooled: bool) -> _Pools:
        async def connect() -> Any:
            # A pooler refuses most settings of a connection: its connections to the server are shared.
            return await self._url.connect({} if is_pooled else self._settings, caches_statements=not is_pooled)

        engine = create_async_engine(
            "postgresql+asyncpg://",
            pool_size=self._pool_size,
            max_overflow=0,
            pool_use_lifo=True,  # the connection that was used last has its statements prepared and its caches filled
            pool_timeout=10,
            hide_parameters=True,
            connect_args={"async_creator_fn": connect, **(_UNNAMED_STATEMENTS if is_pooled else {})},
        )
        if is_pooled and self._settings:
            _set_in_transactions(engine, self._settings)
        return _Pools(
            engine,
            engine.execution_options(isolation_level="SERIALIZABLE"),
            engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True),
            engine.execution_options(
                isolation_level="READ COMMITTED" if is_pooled else "AUTOCOMMIT", postgresql_readonly=is_pooled
            ),
        )


async def _leads_to_pooler(url: PostgresUrl) -> bool:
    """Returns whether the process at the other end of a connection is another than the one that runs its statements.

    A pooler tells its clients a process id of its own.
    """
    connection = await url.connect({}, caches_statements=False)
    try:
        async with connection.transaction():
            server_pid = await connection.fetchval("SELECT pg_backend_pid()")
        is_pooled: bool = server_pid != connection.get_server_pid()
    finally:
        await connection.close()
    if is_pooled:
        _log.info("database_pooler_detected", database=url.shown)
    return is_pooled


def _set_in_transactions(engine: AsyncEngine, settings: Mapping[str, str]) -> None:
    @sa.event.listens_for(engine.sync_engine, "begin")
    def _set(connection: sa.Connection) -> None:
        for name, value in settings.items():
            connection.exec_driver_sql(f"SET LOCAL {name} = '{value}'")


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
