"""PostgreSQL in threads: reads on read-only snapshots; serializable writes that are repeated after a conflict."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
import sqlalchemy as sa
import structlog

from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.retries import Backoff
from mnemesh_kit.sql.errors import DatabaseUnavailable, from_postgresql
from mnemesh_kit.sql.pipeline import Pipeline, PostgresConnection
from mnemesh_kit.sql.postgresql import PostgresUrl
from mnemesh_kit.sql.threads import Threads

_log = structlog.get_logger("mnemesh.sql")

T = TypeVar("T")

WRITE_ATTEMPTS: Final = 50
CONFLICT_BACKOFF: Final = Backoff(first=0.002, maximum=0.1, factor=1.2, jitter=1.0)
_CONFLICTS: Final = frozenset({"40001", "40P01"})
# A unique violation may be a race. Then a second run finds the other row and raises the rule's own error.
_UNIQUE_VIOLATION: Final = "23505"
_OUTDATED: Final = frozenset({"0A000", "26000"})
"""The states of a statement that the server kept and cannot execute: a column has another type, or it was forgotten."""


class _Kind(Enum):
    """The kinds of transactions."""

    WRITE = auto()
    READ = auto()
    READ_WITHOUT_SNAPSHOT = auto()
    ALTER = auto()


_BEGINNINGS: Final = {
    _Kind.WRITE: b"BEGIN ISOLATION LEVEL SERIALIZABLE",
    _Kind.READ: b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    _Kind.READ_WITHOUT_SNAPSHOT: b"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY",
    _Kind.ALTER: b"BEGIN ISOLATION LEVEL READ COMMITTED",
}


@dataclass(frozen=True)
class _Opened:
    """How to connect, and the statements that begin a transaction of each kind."""

    engine: sa.Engine
    beginnings: Mapping[_Kind, Sequence[bytes]]


@dataclass(frozen=True)
class _Session:
    """The connection of one thread."""

    connection: sa.Connection
    pipeline: Pipeline


class PostgresEngine:
    """The connections to a PostgreSQL database, each in a thread of its own.

    The connections may lead to a pooler that gives each transaction another connection of the server: PgBouncer in
    transaction mode, Supabase, Neon. Then no statement is prepared under a name, and `settings` are made in each
    transaction.
    """

    dialect = "postgresql"
    start_errors: tuple[type[Exception], ...] = (OSError, sa.exc.DBAPIError, psycopg.Error, MnemeshError)

    def __init__(self, url: PostgresUrl, *, pool_size: int = 10, settings: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._settings = settings or {}
        self._threads = Threads(pool_size, "postgres")
        self._opened: _Opened | None = None
        self._opening = threading.Lock()
        self._local = threading.local()
        self._sessions: set[_Session] = set()
        self._after_conflict = asyncio.Lock()

    async def read(self, fn: Callable[[sa.Connection], T], *, snapshot: bool = True) -> T:
        """Runs `fn` on one read-only snapshot or without one, and again if its connection broke."""
        kind = _Kind.READ if snapshot else _Kind.READ_WITHOUT_SNAPSHOT
        try:
            return await self._run(fn, kind)
        except DatabaseUnavailable as error:
            if not _was_broken(error):
                raise
        return await self._run(fn, kind)

    async def write(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` in a serializable transaction, and again after a conflict."""
        unique_violations = 0
        async with AsyncExitStack() as turn:
            for attempt in range(1, WRITE_ATTEMPTS + 1):
                try:
                    return await self._run(fn, _Kind.WRITE)
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
        return await self._run(fn, _Kind.ALTER)

    async def close(self) -> None:
        """Waits for running transactions and closes the connections."""
        await self._threads.close()
        for session in self._sessions:
            session.connection.close()
        self._sessions.clear()

    async def _run(self, fn: Callable[[sa.Connection], T], kind: _Kind) -> T:
        return await self._threads.submit(partial(self._transact, fn, kind))

    def _transact(self, fn: Callable[[sa.Connection], T], kind: _Kind) -> T:
        """Runs `fn` in a transaction on this thread's connection."""
        with _reachable(query_only=kind in (_Kind.READ, _Kind.READ_WITHOUT_SNAPSHOT)):
            session = self._begin(kind)
            try:
                result = fn(session.connection)
                session.pipeline.end(waits=kind in (_Kind.WRITE, _Kind.ALTER))
            except BaseException as error:
                session.pipeline.rollback()
                if session.pipeline.is_broken or _state_of(error) in _OUTDATED:
                    self._discard(session)
                raise
            finally:
                if session.connection.in_transaction():
                    session.connection.rollback()  # which ends nothing but SQLAlchemy's own record of a transaction
            return result

    def _begin(self, kind: _Kind) -> _Session:
        """Begins a transaction on this thread's connection, or on a new one if that was closed."""
        opened = self._opened or self._open()
        session: _Session | None = getattr(self._local, "session", None)
        if session is not None:
            if session.pipeline.begin(opened.beginnings[kind]):
                return session
            self._discard(session)
        connection = opened.engine.connect()
        driver: Any = connection.connection.driver_connection
        session = self._local.session = _Session(connection, driver.statements)
        self._sessions.add(session)
        if not session.pipeline.begin(opened.beginnings[kind]):
            raise ConnectionError("the new connection is lost")
        return session

    def _discard(self, session: _Session) -> None:
        self._sessions.discard(session)
        self._local.session = None
        session.connection.invalidate()
        session.connection.close()

    def _open(self) -> _Opened:
        """Connects once, if the URL does not say whether the connections lead to a pooler."""
        with self._opening:
            if self._opened is None:
                is_pooled = self._url.is_pooled
                if is_pooled is None:
                    is_pooled = _leads_to_pooler(self._url)
                self._opened = self._create(is_pooled=is_pooled)
            return self._opened

    def _create(self, *, is_pooled: bool) -> _Opened:
        def connect() -> PostgresConnection:
            # A pooler refuses most settings of a connection: its connections to the server are shared.
            connection = self._url.connect(None if is_pooled else self._settings, keeps_statements=not is_pooled)
            connection.statements = Pipeline(connection, engine.dialect, keeps_statements=not is_pooled)
            return connection

        engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=connect,
            paramstyle="numeric_dollar",  # which a PostgresCursor passes on as it is
            use_native_hstore=False,
            poolclass=sa.NullPool,
            hide_parameters=True,
        )
        begun = dict.fromkeys(_Kind, ()) | {kind: (beginning,) for kind, beginning in _BEGINNINGS.items()}
        if is_pooled and self._settings:
            made = tuple(f"SET LOCAL {name} = '{value}'".encode() for name, value in self._settings.items())
            return _Opened(engine, {kind: (*beginning, *made) for kind, beginning in begun.items()})
        return _Opened(engine, begun | {_Kind.READ_WITHOUT_SNAPSHOT: ()})


def _leads_to_pooler(url: PostgresUrl) -> bool:
    """Returns whether the process at the other end of a connection is another than the one that runs its statements.

    A pooler tells its clients a process id of its own.
    """
    with url.connect(None, keeps_statements=False) as connection:
        (server_pid,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (None,)
        is_pooled = server_pid != connection.info.backend_pid
    if is_pooled:
        _log.info("database_pooler_detected", database=url.shown)
    return is_pooled


def _state_of(error: BaseException) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _was_broken(error: DatabaseUnavailable) -> bool:
    """Returns whether the connection broke, which it may have done while it was idle: the next one is new."""
    return isinstance(error.__cause__, sa.exc.DBAPIError) and error.__cause__.connection_invalidated


@contextmanager
def _reachable(*, query_only: bool = False) -> Iterator[None]:
    """Raises DatabaseUnavailable or DatabaseFull if the server is unavailable or full; other errors pass unchanged."""
    try:
        yield
    except (OSError, sa.exc.SQLAlchemyError, psycopg.Error) as error:
        known = from_postgresql(error, query_only=query_only)
        if known is None:
            raise
        raise known from error
