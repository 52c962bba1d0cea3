"""Reads a Letta database, PostgreSQL or SQLite, without writing to it."""

import asyncio
import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from mnemesh_kit.unicode import well_formed_value
from sqlalchemy import (
    Connection,
    LargeBinary,
    MetaData,
    String,
    Table,
    and_,
    cast,
    event,
    func,
    inspect,
    select,
    type_coerce,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SAWarning, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.sql import ColumnElement
from sqlalchemy.types import NullType

from mnemesh_letta.convert.values import Row

TABLES: Final = (
    "organizations", "agents", "agents_tags", "agent_environment_variables", "tools", "tools_agents", "block",
    "block_history", "blocks_agents", "blocks_conversations", "blocks_tags", "identities", "identities_agents",
    "identities_blocks", "groups", "groups_agents", "groups_blocks", "conversations", "conversation_messages",
    "messages", "runs", "steps", "archives", "archives_agents", "archival_passages", "source_passages", "sources",
    "sources_agents", "files", "file_contents", "files_agents", "providers", "mcp_server", "jobs", "provider_traces",
    "llm_batch_items", "sandbox_configs", "prompts",
)  # fmt: skip
"""The tables that are read or reported. Tables that a release does not have are empty."""
_REQUIRED: Final = ("organizations", "agents", "messages", "block")
_BATCH_ROWS: Final = 200
_CLOSE_SECONDS: Final = 5.0

T = TypeVar("T")


class LettaDatabase:
    """An open database, in one read-only transaction: all rows are of one moment.

    A reader may be cancelled: the database is still read by others, and is still closed.
    """

    def __init__(self, connection: AsyncConnection, tables: Mapping[str, Table]) -> None:
        self._connection = connection
        self._tables = tables
        self._organization_id: str | None = None
        self._in_use = asyncio.Lock()

    async def organizations(self) -> list[Row]:
        """Returns the organizations that have agents, blocks or tools of their own."""
        rows = [row async for row in self.rows("organizations")]
        used: set[str] = set()
        for name in ("agents", "block", "archives", "sources"):
            table = self._tables.get(name)
            if table is not None:
                query = select(table.c.organization_id).distinct()
                used |= set(await self._complete(partial(self._connection.scalars, query)))
        return [row for row in rows if row["id"] in used]

    def select_organization(self, organization_id: str) -> None:
        """Limits all further reads of tables with an organization to this one."""
        self._organization_id = organization_id

    def has(self, table: str) -> bool:
        """Returns whether the release that wrote the database has a table."""
        return table in self._tables

    async def rows(self, name: str, *, order: Sequence[str] = ("id",), **equal: Any) -> AsyncIterator[Row]:
        """Yields rows that are not deleted, in an order, as mappings of the columns.

        Characters that no text can have, such as lone surrogates in JSON, are replaced.

        Args:
            name: the table. One that the database does not have yields nothing.
            order: columns. Columns that the table does not have are left out.
            equal: values that columns must have: one value, None, or a list of possible ones.
        """
        table = self._tables.get(name)
        if table is None:
            return
        columns = [_readable(column) for column in table.c]
        keys = [table.c[key] for key in order if key in table.c]
        query = select(*columns).where(self._filter(table, equal)).order_by(*keys)
        options = {"yield_per": _BATCH_ROWS}
        stream = await self._complete(partial(self._connection.stream, query, execution_options=options))
        mappings = stream.mappings()
        while batch := await self._complete(mappings.fetchmany):
            for row in batch:
                yield {key: well_formed_value(value) for key, value in row.items()}

    async def all(self, name: str, *, order: Sequence[str] = ("id",), **equal: Any) -> list[Row]:
        """Returns what `rows` yields."""
        return [row async for row in self.rows(name, order=order, **equal)]

    async def count(self, name: str, **equal: Any) -> int:
        """Returns the number of rows that `rows` yields."""
        table = self._tables.get(name)
        if table is None:
            return 0
        query = select(func.count()).select_from(table).where(self._filter(table, equal))
        return int(await self._complete(partial(self._connection.scalar, query)) or 0)

    async def close(self) -> None:
        """Closes the connection, after a read whose reader was cancelled. A read that takes long is given up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._complete(self._connection.close)

    async def _complete(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of an operation, which ends even if its caller is cancelled.

        gRPC cancels the reader of a call that ends early. A connection that is cancelled in an operation is lost for
        all later ones, and two tasks that close it can wait for each other forever.
        """

        async def alone() -> T:
            async with self._in_use:
                return await operation()

        return await asyncio.shield(asyncio.ensure_future(alone()))

    def _filter(self, table: Table, equal: Mapping[str, Any]) -> ColumnElement[bool]:
        conditions: list[ColumnElement[bool]] = [table.c["id"].is_not(None)] if "id" in table.c else []
        if "is_deleted" in table.c:
            conditions.append(table.c.is_deleted.is_(False))
        if self._organization_id is not None and "organization_id" in table.c:
            conditions.append(table.c.organization_id == self._organization_id)
        for key, value in equal.items():
            if isinstance(value, list):
                conditions.append(table.c[key].in_(value))
            elif key in table.c:
                conditions.append(table.c[key] == value if value is not None else table.c[key].is_(None))
        return and_(True, *conditions)


@asynccontextmanager
async def open_database(url: str) -> AsyncIterator[LettaDatabase]:
    """Opens a database for reading.

    Raises:
        InvalidArgument: the URL is none of PostgreSQL or SQLite, or the file does not exist.
        FailedPrecondition: the database cannot be reached, or it is none of Letta 0.16.
    """
    engine = _engine(url)
    try:
        try:
            connection = await engine.connect()
        except (OSError, SQLAlchemyError) as error:
            raise FailedPrecondition(f"The database of Letta cannot be opened: {_reason(error)}") from error
        try:
            tables = await connection.run_sync(_reflect)
        except BaseException:
            await connection.close()
            raise
        database = LettaDatabase(connection, tables)
        try:
            yield database
        finally:
            await database.close()
    finally:
        await engine.dispose()


def _engine(url: str) -> AsyncEngine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidArgument("database-url must be a URL such as postgresql://…", field="database-url") from error
    backend = parsed.drivername.split("+")[0]
    if backend in ("postgresql", "postgres"):
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        return create_async_engine(parsed.set(drivername="postgresql+psycopg"), execution_options=options)
    if backend == "sqlite":
        return _sqlite(parsed)
    raise InvalidArgument("database-url must be of PostgreSQL or SQLite.", field="database-url")


def _sqlite(url: URL) -> AsyncEngine:
    path = Path(url.database or "")
    if not path.is_file():
        raise InvalidArgument(f"There is no database file {path}.", field="database-url")
    # SQLite refuses every write to a file that is opened with mode=ro.
    engine = create_async_engine(f"sqlite+aiosqlite:///file:{path.resolve()}?mode=ro&uri=true")

    @event.listens_for(engine.sync_engine, "connect")
    def _refuse_writes(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA query_only = ON")

    return engine


def _reflect(connection: Connection) -> dict[str, Table]:
    inspector = inspect(connection)
    present = set(inspector.get_table_names())
    missing = [name for name in _REQUIRED if name not in present]
    if missing:
        raise FailedPrecondition(f"This is not a database of Letta: it has no table {missing[0]}.")
    with warnings.catch_warnings():
        # The type of vectors is an extension that SQLAlchemy does not know. They are read as text.
        warnings.simplefilter("ignore", SAWarning)
        metadata = MetaData()
        names = [name for name in TABLES if name in present]
        metadata.reflect(connection, only=names, resolve_fks=False)
    return {name: metadata.tables[name] for name in names}


def _readable(column: Any) -> ColumnElement[Any]:
    """Vectors have a type that SQLAlchemy does not know: they are text in PostgreSQL, and bytes in SQLite."""
    if column.name == "embedding":
        is_text = isinstance(column.type, NullType | String)
        return (cast(column, String) if is_text else type_coerce(column, LargeBinary)).label(column.name)
    return column  # type: ignore[no-any-return]


def _reason(error: BaseException) -> str:
    """The first line of an error, without the password of a URL."""
    line = str(getattr(error, "orig", None) or error).splitlines()[0]
    return re.sub(r"://[^@\s]*@", "://…@", line)
