"""Connections to the databases of services for programs beside them, and snapshots of several at one instant.

A service survives the loss of power at any instant, so the state of all databases at one instant is a whole mesh.
"""

import functools
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from mnemesh_kit.config import StartupError
from mnemesh_kit.retries import Backoff
from mnemesh_kit.sql.postgresql import PostgresUrl, is_postgresql

HOLD_SECONDS: Final = 2.0
"""The longest time for which writers of services wait."""
ATTEMPTS: Final = 10
_BACKOFF: Final = Backoff(first=0.1, maximum=2.0)
_CONTENDED: Final = frozenset({"55P03", "40P01"})
"""The states of PostgreSQL for a lock that was not granted in time, and for a deadlock."""
_UNLIMITED: Final = ("SET LOCAL statement_timeout = 0", "SET LOCAL idle_in_transaction_session_timeout = 0")


def connect(url: str) -> sa.Connection:
    """Returns a connection to an existing database. `transaction`, or statements, begin and end its transactions.

    Its statements raise StartupError if the database refuses them: it is locked, its disk is full, its server is away.

    Raises:
        ConfigError: the URL is wrong.
        StartupError: the database does not exist, or cannot be reached.
    """
    path = None if is_postgresql(url) else Path(sa.make_url(url).database or "")
    if path is not None and not path.is_file():
        raise StartupError(f"The database {path} does not exist. Check MNEMESH_DATA_DIR and the database URLs.")
    connection = _engine(url).connect()
    if path is not None:
        connection.exec_driver_sql("PRAGMA foreign_keys=ON")
    return connection


@functools.lru_cache(maxsize=16)
def _engine(url: str) -> sa.Engine:
    """Returns the engine of a database. It keeps no connections, but the compiled statements."""
    options: dict[str, Any] = {"poolclass": sa.NullPool, "hide_parameters": True}
    if is_postgresql(url):
        parsed = PostgresUrl.parse(url)

        def connect_postgresql() -> Any:
            try:
                return parsed.connect(None, keeps_statements=False)
            except OSError as error:
                raise StartupError(f"The database {parsed.shown} cannot be reached: {error}".splitlines()[0]) from error

        made = {"creator": connect_postgresql, "paramstyle": "numeric_dollar", "use_native_hstore": False}
        engine, name = sa.create_engine("postgresql+psycopg://", **made, **options), parsed.shown
    else:
        file = sa.make_url(url).set(drivername="sqlite+pysqlite")
        arguments = {"isolation_level": None, "timeout": HOLD_SECONDS}
        engine, name = sa.create_engine(file, connect_args=arguments, **options), str(file.database)

    def explain(context: sa.engine.ExceptionContext) -> None:
        if isinstance(context.sqlalchemy_exception, sa.exc.DBAPIError):
            error = context.original_exception
            raise StartupError(f"The database {name} cannot be used: {error}".splitlines()[0]) from error

    sa.event.listen(engine, "handle_error", explain)
    return engine


@contextmanager
def transaction(connection: sa.Connection) -> Iterator[None]:
    """Runs the block in a transaction of a connection of `connect`."""
    connection.exec_driver_sql("BEGIN")
    try:
        yield
    except BaseException:
        with suppress(StartupError, sa.exc.SQLAlchemyError):  # a full disk, or a lost connection, has ended it
            connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")


@contextmanager
def snapshots(urls: Mapping[str, str], tables: Mapping[str, Sequence[str]]) -> Iterator[Mapping[str, sa.Connection]]:
    """Opens a connection to each database on a snapshot, all of the same instant, also while services write.

    Writers are held back for some milliseconds, and at most for HOLD_SECONDS: on SQLite by the lock of the writer, on
    PostgreSQL by locks that let readers through. Meanwhile the snapshots are opened.

    Args:
        urls: the databases by name.
        tables: of each, the names of the tables whose writers are held back.

    Raises:
        StartupError: a database cannot be reached, or its writers did not give way in any of some attempts.
    """
    with ExitStack() as exits:
        readers = {name: exits.enter_context(connect(url)) for name, url in urls.items()}
        for attempt in range(1, ATTEMPTS + 1):
            try:
                _open_at_once(urls, tables, readers)
                break
            except StartupError as error:
                if not _is_contended(error.__cause__):
                    raise
                if attempt == ATTEMPTS:
                    raise StartupError("A long transaction does not let others write. Try again later.") from error
            time.sleep(_BACKOFF.delay(attempt))
        yield readers


def _open_at_once(
    urls: Mapping[str, str], tables: Mapping[str, Sequence[str]], readers: Mapping[str, sa.Connection]
) -> None:
    with ExitStack() as exits:
        holders = {name: exits.enter_context(connect(url)) for name, url in urls.items()}
        give_up = time.monotonic() + HOLD_SECONDS
        for name, holder in holders.items():
            _hold(holder, tables[name], max(0.05, give_up - time.monotonic()))
        for reader in readers.values():
            _fix(reader)


def _hold(connection: sa.Connection, tables: Sequence[str], seconds: float) -> None:
    """Waits until no transaction that writes runs, and lets none begin before this one ends."""
    milliseconds = int(seconds * 1000)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA busy_timeout={milliseconds}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED")
    for statement in (*_UNLIMITED, f"SET LOCAL lock_timeout = {milliseconds}"):
        connection.exec_driver_sql(statement)
    names = ", ".join(f'"{name}"' for name in tables)
    connection.exec_driver_sql(f"LOCK TABLE {names} IN SHARE MODE")


def _fix(connection: sa.Connection) -> None:
    """Begins a transaction whose snapshot is of now: its first query makes it."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN DEFERRED")
    else:
        connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for statement in _UNLIMITED:
            connection.exec_driver_sql(statement)
    connection.exec_driver_sql("SELECT version_num FROM alembic_version").all()


def _is_contended(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
    return getattr(error, "sqlstate", None) in _CONTENDED
