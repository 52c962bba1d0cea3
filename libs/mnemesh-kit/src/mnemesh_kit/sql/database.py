"""The `Database` of a service: chooses the engine by the URL, and runs transactions on it."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol, Self, TypeVar

import sqlalchemy as sa
import structlog

from mnemesh_kit.backoff import Backoff
from mnemesh_kit.config import ConfigError, StartupError
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.failpoints import async_failpoint, failpoint_after
from mnemesh_kit.metrics import Counter
from mnemesh_kit.sql.errors import DatabaseUnavailable
from mnemesh_kit.sql.postgres_url import PostgresUrl, is_postgresql
from mnemesh_kit.sql.revisions import is_newest

T = TypeVar("T")

_log = structlog.get_logger("mnemesh.sql")

POOL_SIZE: Final = 10
START_SECONDS: Final = 60.0
"""How long a start waits for PostgreSQL."""
START_BACKOFF: Final = Backoff(first=0.2, maximum=5.0)
TRANSACTIONS: Final = Counter("mnemesh_sql_transactions", "SQL transactions begun, by kind.", ["kind"])
"""The transactions that this process has begun, by kind: `read` or `write`."""

_AFTER_COMMIT: Final = "mnemesh_after_commit"


def after_commit(conn: sa.Connection, call: Callable[[], object]) -> None:
    """Calls `call` on the event loop after the commit of the transaction of a `Database.write` that runs now.

    It is not called if the transaction is rolled back, or if the caller of the write is cancelled before the commit.
    """
    conn.info.setdefault(_AFTER_COMMIT, []).append(call)


class Engine(Protocol):
    """A kind of SQL engine.

    Example:
        >>> engine = SqliteEngine(sa.make_url("sqlite:////tmp/blocks.db"), synchronous="FULL", readers=2)
        >>> await engine.read(lambda conn: conn.execute(sa.select(1)).scalar_one())
        1
    """

    dialect: str
    start_errors: tuple[type[Exception], ...]
    """What `alter` raises if the environment is the reason: the server, the network, the URL, the disk."""

    async def read(self, fn: Callable[[sa.Connection], T], *, snapshot: bool = True) -> T:
        """Runs `fn` in a read-only transaction; see `Database.read`."""
        ...

    async def write(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` in a serializable transaction; see `Database.write`."""
        ...

    async def alter(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn`, which takes locks and changes the schema, in one transaction that sees the commits of others."""
        ...

    async def close(self) -> None:
        """Waits for running transactions and closes the connections."""
        ...


class Database:
    """The database of one service.

    `read` and `write` take a plain function of a Core connection and run it in one transaction: on SQLite in a thread,
    on PostgreSQL on the event loop. The function may only use that connection and compute.

    Example:
        >>> database = Database.open("sqlite:////var/lib/mnemesh/blocks.db")
        >>> await database.write(lambda conn: conn.execute(blocks.insert(), row))
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self.dialect = engine.dialect

    @classmethod
    def open(
        cls,
        url: str,
        *,
        synchronous: str = "FULL",
        readers: int = 2,
        pool_size: int = POOL_SIZE,
        postgres_settings: Mapping[str, str] | None = None,
    ) -> Self:
        """Opens a database. Nothing is connected or created before the first transaction.

        Args:
            url: `sqlite:////absolute/path.db` or `postgresql://user:password@host/database`, with libpq's parameters.
            synchronous: FULL makes a write of SQLite durable before its result is returned. NORMAL does not: the writes
                since the last checkpoint survive a crash of the process, but not a power failure.
            readers: the number of concurrent reads on SQLite.
            pool_size: the largest number of connections to PostgreSQL.
            postgres_settings: settings of each connection to PostgreSQL, by name.

        Raises:
            ConfigError: the URL is malformed, names another engine, or has a parameter that is unknown.
        """
        if is_postgresql(url):
            from mnemesh_kit.sql.postgresql import PostgresEngine  # noqa: PLC0415  (only the engine in use is imported)

            address = PostgresUrl.parse(url)
            return cls(PostgresEngine(address, pool_size=pool_size, settings=postgres_settings), address.shown)
        try:
            parsed = sa.make_url(url)
        except sa.exc.ArgumentError as error:
            raise ConfigError(
                "The database URL is malformed. Use sqlite:////path or postgresql://user:password@host/database."
            ) from error
        shown = parsed.render_as_string(hide_password=True)
        match parsed.get_backend_name():
            case "sqlite" if parsed.database == ":memory:":
                from mnemesh_kit.sql.memory import MemoryEngine  # noqa: PLC0415

                return cls(MemoryEngine(), shown)
            case "sqlite":
                from mnemesh_kit.sql.sqlite import SqliteEngine  # noqa: PLC0415

                return cls(SqliteEngine(parsed, synchronous=synchronous, readers=readers), shown)
            case other:
                raise ConfigError(f"The database engine {other!r} is not supported. Use sqlite or postgresql.")

    async def read(self, fn: Callable[[sa.Connection], T], *, name: str | None = None, snapshot: bool = True) -> T:
        """Runs `fn` on one consistent snapshot and returns its result. Writes fail. Failpoints know it by `name`.

        Without `snapshot`, each statement of `fn` may see another state. `fn` must not write. PostgreSQL then needs no
        transaction, whose beginning and end take as long as a statement.

        Raises:
            DatabaseUnavailable: the database cannot be reached.
        """
        TRANSACTIONS.inc("read")
        await async_failpoint("sql.read.before", name or fn)
        return await self._engine.read(fn, snapshot=snapshot)

    async def write(self, fn: Callable[[sa.Connection], T], *, name: str | None = None) -> T:
        """Runs `fn` in one serializable transaction, commits, and returns the result.

        An exception of `fn` rolls everything back. After a conflict with another writer, `fn` runs again from its
        beginning, so it must not change anything but the database; see `after_commit`. If the caller is cancelled, the
        transaction may still be committed. Failpoints know the transaction by `name`.

        Raises:
            DatabaseUnavailable: the database cannot be reached, or conflicts with other writers did not end. If the
                connection broke, the transaction may be committed.
            DatabaseFull: the disk of the database is full or read-only.
        """
        TRANSACTIONS.inc("write")
        await async_failpoint("sql.write.before", name or fn)
        calls: list[Callable[[], object]] = []
        observed = failpoint_after(fn, "sql.write.before_commit", name or fn)

        def write(conn: sa.Connection) -> T:
            nonlocal calls
            calls = conn.info[_AFTER_COMMIT] = []
            return observed(conn)

        result = await self._engine.write(write)
        for call in calls:
            call()
        await async_failpoint("sql.write.after_commit", name or fn)
        return result

    async def migrate(self, package: str) -> None:
        """Migrates the schema to the newest revision in `<package>/store/migrations/versions`.

        Replicas may start at the same time: one migrates, and the others wait for it. A PostgreSQL server that does not
        answer is awaited for `START_SECONDS`.

        Raises:
            StartupError: the database cannot be reached or opened, or its schema is newer than the service.
        """

        def migrate_if_old(conn: sa.Connection) -> None:
            if not is_newest(conn, package):
                from mnemesh_kit.sql.migrations import upgrade  # noqa: PLC0415  (Alembic costs 12 MB and most of a start)

                upgrade(conn, package)

        give_up = time.monotonic() + START_SECONDS
        for attempt in itertools.count(1):
            try:
                await self._engine.alter(migrate_if_old)
            except (sa.exc.ProgrammingError, sa.exc.IntegrityError):
                raise  # a defect of a migration, not of the environment
            except self._engine.start_errors as error:
                delay = START_BACKOFF.delay(attempt)
                if not _may_end(error) or self.dialect == "sqlite" or time.monotonic() + delay > give_up:
                    raise StartupError(f"The database {self._name} cannot be used: {_cause(error)}") from error
                _log.warning("database_awaited", database=self._name, cause=_cause(error), retry_in=round(delay, 2))
                await asyncio.sleep(delay)
            else:
                return

    async def close(self) -> None:
        """Waits for running transactions and closes the connections."""
        await self._engine.close()


def _may_end(error: Exception) -> bool:
    """Returns whether a later attempt may succeed: the server does not answer, or not yet."""
    return isinstance(error, (OSError, DatabaseUnavailable)) and not isinstance(error.__cause__ or error, ssl.SSLError)


def _cause(error: Exception) -> str:
    """Returns the first line of what the driver says, which has no values of rows."""
    original = error.__cause__ if isinstance(error, MnemeshError) and error.__cause__ else error
    lines = str(getattr(original, "orig", None) or original).strip().splitlines()
    return lines[0] if lines else repr(original)
