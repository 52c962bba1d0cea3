"""The `Database` of a service: its settings, the engine by the URL, its schema, types, and transactions on it."""

import asyncio
import itertools
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module, resources
from typing import Any, Final, Literal, Protocol, Self, TypeVar

import sqlalchemy as sa
import structlog

from mnemesh_kit.call_context import current_service
from mnemesh_kit.config import ConfigError, ServerConfig, StartupError, service_of
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.failpoints import Subject, async_failpoint, failpoint_after
from mnemesh_kit.metrics import Counter
from mnemesh_kit.retries import Backoff
from mnemesh_kit.sql.errors import DatabaseUnavailable
from mnemesh_kit.sql.postgresql import PostgresUrl, is_postgresql
from mnemesh_kit.tracing import span_of_call


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """An instant, stored in UTC and returned as an aware datetime. SQLite stores text that sorts by time."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        """The Python type of the values, which paging needs."""
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Converts an aware datetime to UTC. Raises ValueError for a naive one, which is ambiguous."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A stored datetime must be aware.")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[datetime | None], Any] | None:
        """Returns a function that writes SQLite's text in one step, in the form of SQLAlchemy's own DateTime."""
        return _text if dialect.name == "sqlite" else super().bind_processor(dialect)

    def result_processor(
        self,
        dialect: sa.Dialect,
        coltype: object,  # noqa: ARG002
    ) -> Callable[[Any], datetime | None] | None:
        """Returns a function that converts a value in one step: a search reads hundreds of instants."""
        return _instant if dialect.name == "sqlite" else _in_utc


def _text(value: datetime | None) -> str | None:
    if value is None:
        return None
    if value.tzinfo is None:
        raise ValueError("A stored datetime must be aware.")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def _instant(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(f"{value}+00:00")


def _in_utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)


VERSIONS: Final = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""The table in which Alembic keeps the revision of a schema."""
RESTORING: Final = "restoring"
"""The revision of a database that a restore fills. No service uses it."""


def is_newest(connection: sa.Connection, package: str) -> bool:
    """Returns whether the database has the newest revision; an empty database has none.

    Raises:
        StartupError: the database has a revision that this version of the service does not know, or is being restored.
    """
    if not sa.inspect(connection).has_table(VERSIONS.name):
        return False
    known = _revisions(package)
    current = list(connection.execute(sa.select(VERSIONS.c.version_num)).scalars())
    if current == [RESTORING]:
        raise StartupError("The restore of a backup into the database is not complete. Run `mnemesh restore` again.")
    unknown = next((revision for revision in current if revision not in known), None)
    if unknown:
        if unknown < known[0]:
            raise StartupError(
                f"The database has the schema of a version before the first release: revision {unknown}, and {package} "
                f"reads {known[0]} and later. Use an empty database, or another data directory."
            )
        raise StartupError(
            f"The database has the schema of a newer version: revision {unknown}, and this version knows {known[-1]}. "
            f"Install the newer version of {package}."
        )
    return current == known[-1:]


def _revisions(package: str) -> list[str]:
    """Returns the revisions of a service, oldest first. A file is named after its revision, such as `0101_tags.py`."""
    versions = resources.files(package) / "store" / "migrations" / "versions"
    return sorted(file.name.partition("_")[0] for file in versions.iterdir() if file.name.endswith(".py"))


T = TypeVar("T")

_log = structlog.get_logger("mnemesh.sql")

POOL_SIZE: Final = 10
TURN_SECONDS: Final = 0.25
"""The longest time for which a contended write waits for the others of its process."""
START_SECONDS: Final = 60.0
"""How long a start waits for PostgreSQL."""
START_BACKOFF: Final = Backoff(first=0.2, maximum=5.0)
TRANSACTIONS: Final[defaultdict[str, Counter]] = defaultdict(
    lambda: Counter("mnemesh_sql_transactions", "SQL transactions begun, by kind.", ["kind"])
)
"""The transactions that each service of this process has begun, by kind: `read` or `write`."""


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

    `read` and `write` take a plain function of a Core connection and run it in one transaction: in a thread. The
    function may only use that connection and compute.

    Example:
        >>> database = Database.open("sqlite:////var/lib/mnemesh/blocks.db")
        >>> await database.write(lambda conn: conn.execute(blocks.insert(), row))
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self.dialect = engine.dialect
        self._one_writer = asyncio.Lock()

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
            from mnemesh_kit.sql.postgres_engine import PostgresEngine  # noqa: PLC0415  (only the engine in use is imported)

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
        TRANSACTIONS[current_service()].inc("read")
        await async_failpoint("sql.read.before", name or fn)
        with self._span("read", name or fn):
            return await self._engine.read(fn, snapshot=snapshot)

    async def write(
        self, fn: Callable[[sa.Connection], T], *, name: Subject | None = None, contended: bool = False
    ) -> T:
        """Runs `fn` in one serializable transaction, commits, and returns the result.

        An exception of `fn` rolls everything back. After a conflict with another writer, `fn` runs again from its
        beginning, so it must not change anything but the database. If the caller is cancelled, the
        transaction may still be committed. Failpoints know the transaction by `name`.

        `contended` says that such transactions conflict on PostgreSQL if they run at the same time, although they
        concern different rows: they read and write the same pages of indexes. Then they run one at a time in this
        process, so that none is executed in vain.

        Raises:
            DatabaseUnavailable: the database cannot be reached, or conflicts with other writers did not end. If the
                connection broke, the transaction may be committed.
            DatabaseFull: the disk of the database is full or read-only.
        """
        TRANSACTIONS[current_service()].inc("write")
        await async_failpoint("sql.write.before", name or fn)
        with self._span("write", name or fn):
            async with self._turn() if contended and self.dialect == "postgresql" else nullcontext():
                result = await self._engine.write(failpoint_after(fn, "sql.write.before_commit", name or fn))
        await async_failpoint("sql.write.after_commit", name or fn)
        return result

    def _span(self, kind: str, subject: Subject) -> AbstractContextManager[Any]:
        """Records a transaction within a trace. No statement and no value of one is recorded."""
        return span_of_call(
            f"{kind} {current_service()}",
            lambda: {
                "db.system.name": self.dialect,
                "db.namespace": current_service(),
                "db.operation.name": kind,
                "mnemesh.transaction": subject if isinstance(subject, str) else getattr(subject, "__qualname__", None),
            },
        )

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Waits until no other contended write runs, but not for long: a slow one must not stop the others."""
        has_turn = False
        with suppress(TimeoutError):
            async with asyncio.timeout(TURN_SECONDS):
                has_turn = await self._one_writer.acquire()
        try:
            yield
        finally:
            if has_turn:
                self._one_writer.release()

    async def migrate(self, package: str) -> None:
        """Brings the schema to the newest revision in `<package>/store/migrations/versions`.

        An empty database gets the tables of `<package>.store.tables`; another one the revisions that it does not have.
        Replicas may start at the same time: one migrates, and the others wait for it. A PostgreSQL server that does not
        answer is awaited for `START_SECONDS`.

        Raises:
            StartupError: the database cannot be reached or opened, or its schema is newer than the service.
        """

        def migrate_if_old(conn: sa.Connection) -> None:
            if not is_newest(conn, package):
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


@dataclass(frozen=True, kw_only=True)
class SqlConfig(ServerConfig):
    """The settings of every service with a database. The service's Config extends it."""

    database_url: str | None = None
    """`sqlite:////path` or `postgresql://…`; by default <service>.db in the data directory."""
    database_pool_size: int = POOL_SIZE
    """The largest number of connections of this process to PostgreSQL."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "FULL"
    """FULL flushes each write to the disk before it is acknowledged. NORMAL can lose the last writes in a power
    failure."""

    @property
    def database(self) -> str:
        """The URL of the service's own database."""
        return self.database_url or f"sqlite:///{self.data_path / f'{service_of(type(self))}.db'}"


async def open_database(
    config: SqlConfig, package: str, *, postgres_settings: Mapping[str, str] | None = None
) -> Database:
    """Opens the database of a service and migrates it to the newest schema.

    Args:
        config: the service's settings.
        package: the service's package, whose `store/migrations` has the revisions.
        postgres_settings: settings of each connection to PostgreSQL, by name.

    Raises:
        StartupError: the database cannot be reached or opened. It is closed again.
    """
    database = Database.open(
        config.database,
        synchronous=config.sqlite_synchronous,
        pool_size=config.database_pool_size,
        postgres_settings=postgres_settings,
    )
    try:
        await database.migrate(package)
    except BaseException:
        await database.close()
        raise
    return database


# The lock that all replicas of all services take while they migrate a database. Its value is the name in ASCII.
_LOCK: Final = 0x6D6E656D657368


def upgrade(connection: sa.Connection, package: str) -> None:
    """Creates the schema of an empty database, or runs the revisions that the database does not have yet.

    All of it happens in the caller's transaction, so an upgrade is atomic.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    if sa.inspect(connection).has_table(VERSIONS.name):
        _run_revisions(connection, package)
        return
    import_module(f"{package}.store.tables").metadata.create_all(connection, checkfirst=False)
    VERSIONS.create(connection)
    connection.execute(VERSIONS.insert().values(version_num=_revisions(package)[-1]))


def _run_revisions(connection: sa.Connection, package: str) -> None:
    from alembic.config import Config  # noqa: PLC0415  (a new database, or one of the newest schema, needs no Alembic)
    from alembic.runtime.environment import EnvironmentContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    with resources.as_file(resources.files(package) / "store" / "migrations") as directory:
        config = Config()
        config.set_main_option("script_location", str(directory).replace("%", "%%"))
        scripts = ScriptDirectory(str(directory), version_locations=[str(directory / "versions")])

        def to_newest(revision: Any, _context: object) -> Any:
            return scripts._upgrade_revs("head", revision)  # (as Alembic's upgrade command does)

        with EnvironmentContext(config, scripts, fn=to_newest) as environment:
            environment.configure(connection=connection, render_as_batch=True)
            environment.run_migrations()
