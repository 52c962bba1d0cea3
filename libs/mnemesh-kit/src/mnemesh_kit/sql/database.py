"""The `Database` that rooms hold: opens the engine that the URL names and hands transactions to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, Self, TypeVar

import sqlalchemy as sa

from mnemesh_kit.config import ConfigError, StartupError
from mnemesh_kit.metrics import Counter
from mnemesh_kit.sql.revisions import is_newest

T = TypeVar("T")

TRANSACTIONS: Final = Counter("mnemesh_sql_transactions", "SQL transactions begun, by kind.", ["kind"])
"""The transactions that this process has begun, by kind: `read` or `write`."""


class Engine(Protocol):
    """One kind of SQL engine."""

    dialect: str

    async def read(self, fn: Callable[[sa.Connection], T]) -> T:
        """See `Database.read`."""
        ...

    async def write(self, fn: Callable[[sa.Connection], T]) -> T:
        """See `Database.write`."""
        ...

    async def alter(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn`, which takes locks and changes the schema, in one transaction that sees what others commit."""
        ...

    async def close(self) -> None:
        """Waits for running transactions and lets go of the connections."""
        ...


class Database:
    """A service's own database.

    Both verbs take a plain function over a Core connection and run it inside one transaction, off the event loop on
    SQLite and on it on PostgreSQL. The function must do nothing but talk to that connection and compute.
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
        synchronous: str = "NORMAL",
        readers: int = 2,
        postgres_settings: Mapping[str, str] | None = None,
    ) -> Self:
        """Opens a database; nothing is read or made before the first transaction.

        Args:
            url: `sqlite:////absolute/path.db`, or `postgresql://user:password@host/database`.
            synchronous: SQLite's setting. NORMAL survives the death of the process; FULL also a loss of power.
            readers: how many reads run side by side on SQLite.
            postgres_settings: what each connection sets on PostgreSQL.
        """
        try:
            parsed = sa.make_url(url)
        except sa.exc.ArgumentError as error:
            raise ConfigError(
                "The database URL cannot be read; it looks like sqlite:////path or postgresql://…"
            ) from error
        shown = parsed.render_as_string(hide_password=True)
        match parsed.get_backend_name():
            case "sqlite":
                from mnemesh_kit.sql.sqlite import SqliteEngine  # noqa: PLC0415  (an engine is imported where it is used)

                return cls(SqliteEngine(parsed, synchronous=synchronous, readers=readers), shown)
            case "postgresql" | "postgres":
                from mnemesh_kit.sql.postgresql import PostgresEngine  # noqa: PLC0415

                return cls(PostgresEngine(parsed, settings=postgres_settings), shown)
            case other:
                raise ConfigError(f"A database of kind {other!r} is not supported; use sqlite or postgresql.")

    async def read(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` on one consistent snapshot. Writes fail."""
        TRANSACTIONS.inc("read")
        return await self._engine.read(fn)

    async def write(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` in one serializable transaction: it sees every commit before it, and none in between.

        An exception from `fn` rolls everything back. A conflict with another writer runs the whole of `fn` again, so
        it must not count on running once. A caller that is cancelled may still have committed.
        """
        TRANSACTIONS.inc("write")
        return await self._engine.write(fn)

    async def migrate(self, package: str) -> None:
        """Brings the schema to the newest revision under `<package>/store/migrations/versions`.

        Replicas may start together: one migrates, the others wait.

        Raises:
            StartupError: the database cannot be reached or opened.
        """

        def bring_up(conn: sa.Connection) -> None:
            if not is_newest(conn, package):
                from mnemesh_kit.sql.migrations import upgrade  # noqa: PLC0415  (Alembic costs 12 MB and most of a start)

                upgrade(conn, package)

        try:
            await self._engine.alter(bring_up)
        except (sa.exc.ProgrammingError, sa.exc.IntegrityError):
            raise  # a defect of a migration, not of the place
        except (OSError, sa.exc.DBAPIError) as error:
            cause = str(getattr(error, "orig", None) or error).strip().splitlines()
            raise StartupError(f"The database {self._name} cannot be used: {cause[0] if cause else error!r}") from error

    async def close(self) -> None:
        """Waits for running transactions and closes the connections."""
        await self._engine.close()
