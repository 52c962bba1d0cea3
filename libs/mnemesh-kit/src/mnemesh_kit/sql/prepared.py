"""Statements that are executed so often that SQLAlchemy's work for each execution counts.

On SQLite, that work takes several times as long as the statement itself. A `Prepared` statement is compiled once, and
then given to the driver with its parameters.
"""

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

import sqlalchemy as sa

Statement = sa.Select[Any] | sa.Insert | sa.Update | sa.Delete | sa.TextClause | sa.TextualSelect
S = TypeVar("S", bound=Statement)

T = TypeVar("T")
_changed: Callable[[sqlite3.Cursor], int] = attrgetter("rowcount")
_inserted: Callable[[sqlite3.Cursor], int | None] = attrgetter("lastrowid")

_Convert = Callable[[Any], Any]


class Prepared(Generic[S]):
    """A statement whose executions all have parameters of the same names.

    Values and rows are converted by the types of their columns, and errors of the database are SQLAlchemy's, as with
    `Connection.execute`, which executes the statements on PostgreSQL. On SQLite, SQLAlchemy's listeners see them in the
    context of `observed` only.

    Example:
        >>> FORGET = Prepared(journal.delete().where(journal.c.run_id == sa.bindparam("p_run")))
        >>> FORGET.change(conn, {"p_run": run_id})
        3
    """

    def __init__(self, statement: S) -> None:
        """Prepares a statement without parameters that are lists. Nothing is compiled before the first execution."""
        self.statement = statement
        self._plan: _Plan | None = None

    def first(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> Any:
        """Returns the first row of a query or of RETURNING, with columns as attributes; None if there is none."""
        if _is_left_to_sqlalchemy(conn):
            return conn.execute(self.statement, parameters).first()
        plan = self._planned(conn, parameters)
        return _execute(conn, plan, parameters, plan.first)

    def all(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the rows of a query, with columns as attributes."""
        if _is_left_to_sqlalchemy(conn):
            return conn.execute(self.statement, parameters).all()
        plan = self._planned(conn, parameters)
        return _execute(conn, plan, parameters, plan.all)

    def change(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> int:
        """Executes a statement that writes. Returns the number of rows that it changed."""
        if _is_left_to_sqlalchemy(conn):
            return conn.execute(self.statement, parameters).rowcount
        return _execute(conn, self._planned(conn, parameters), parameters, _changed)

    def insert(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> int:
        """Inserts a row on SQLite. Returns its row id."""
        if _is_left_to_sqlalchemy(conn):
            return conn.execute(self.statement, parameters).lastrowid
        return _execute(conn, self._planned(conn, parameters), parameters, _inserted) or 0

    def change_each(self, conn: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Executes a statement that writes once for each of the parameters, of which there is at least one."""
        if _is_left_to_sqlalchemy(conn):
            conn.execute(self.statement, rows)
            return
        for row in rows:
            _execute(conn, self._planned(conn, row), row, _changed)

    def _planned(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> "_Plan":
        if self._plan is None:
            self._plan = _Plan.of(self.statement, conn.dialect, frozenset(parameters))
        return self._plan


class _Observers:
    """The number of contexts in which SQLAlchemy executes everything."""

    count = 0


@contextmanager
def observed() -> Iterator[None]:
    """Has SQLAlchemy execute the prepared statements of this process meanwhile, so that its listeners see them."""
    _Observers.count += 1
    try:
        yield
    finally:
        _Observers.count -= 1


def _is_left_to_sqlalchemy(conn: sa.Connection) -> bool:
    return _Observers.count > 0 or conn.dialect.name != "sqlite"


def _execute(
    conn: sa.Connection, plan: "_Plan", parameters: Mapping[str, Any], result: Callable[[sqlite3.Cursor], T]
) -> T:
    """Executes a statement and returns its result. Reading a row can fail like the statement itself."""
    values = plan.values(parameters)
    try:
        return result(cast("sqlite3.Connection", conn.connection.driver_connection).execute(plan.text, values))
    except sqlite3.Error as error:
        hides = conn.engine.hide_parameters
        raise sa.exc.DBAPIError.instance(
            plan.text, tuple(values), error, sqlite3.Error, hides, dialect=conn.dialect
        ) from error


@dataclass(slots=True)
class _Plan:
    """How a statement is executed: its text, the sources of its values, and the conversions of its columns."""

    text: str
    names: frozenset[str]
    sources: Sequence[tuple[str | None, _Convert | None, Any]]
    """For each value, the name of a parameter and its conversion, or a constant."""
    conversions: Sequence[tuple[int, _Convert]]
    """The conversions of columns, by position."""
    row_type: Any = None

    @classmethod
    def of(
        cls,
        statement: Statement,
        dialect: sa.Dialect,
        names: frozenset[str],
    ) -> "_Plan":
        """Compiles a statement. Raises ValueError if it does not have exactly these parameters."""
        compiled = statement.compile(dialect=dialect, column_keys=sorted(names))
        order = compiled.positiontup or []
        if compiled.post_compile_params or not names.issubset(order):
            raise ValueError("a prepared statement uses all its parameters, and none is a list")
        sources: list[tuple[str | None, _Convert | None, Any]] = []
        for name in order:
            bind = compiled.binds[name]
            convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
            if name in names:
                sources.append((name, convert, None))
            elif bind.required:
                raise ValueError(f"the parameter {name} is missing")
            else:
                constant = bind.effective_value
                sources.append((None, None, constant if convert is None else convert(constant)))
        columns: Iterable[Any] = () if isinstance(statement, sa.TextClause) else statement.exported_columns
        converted = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]
        conversions = [(position, convert) for position, convert in enumerate(converted) if convert is not None]
        return cls(str(compiled), names, sources, conversions)

    def values(self, parameters: Mapping[str, Any]) -> list[Any]:
        """Returns the values of an execution. Raises ValueError or KeyError for parameters of other names."""
        if len(parameters) != len(self.names):
            raise ValueError(f"the parameters are {sorted(parameters)} instead of {sorted(self.names)}")
        return [
            constant if name is None else parameters[name] if convert is None else convert(parameters[name])
            for name, convert, constant in self.sources
        ]

    def first(self, cursor: sqlite3.Cursor) -> Any:
        """Returns the first row; None if there is none."""
        values = cursor.fetchone()
        row = None if values is None else self.row(cursor, values)
        cursor.close()
        return row

    def all(self, cursor: sqlite3.Cursor) -> Sequence[Any]:
        """Returns all rows."""
        return [self.row(cursor, values) for values in cursor]

    def row(self, cursor: sqlite3.Cursor, values: Sequence[Any]) -> Any:
        """Returns a row with converted values."""
        if self.row_type is None:
            self.row_type = namedtuple("Row", [column[0] for column in cursor.description])  # type: ignore[misc]
        converted = list(values)
        for position, convert in self.conversions:
            converted[position] = convert(converted[position])
        return self.row_type._make(converted)
