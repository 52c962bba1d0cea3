"""Statements that are executed so often that SQLAlchemy's work for each execution counts.

That work takes several times as long as the statement itself. A `Prepared` statement is compiled once for an engine,
and then given to the driver with its parameters. On PostgreSQL, it is sent without waiting for those before it.
"""

import sqlite3
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import sqlalchemy as sa

if TYPE_CHECKING:
    from mnemesh_kit.sql.pipeline import Pipeline, Sent

Statement = sa.Select[Any] | sa.Insert | sa.Update | sa.Delete | sa.TextClause | sa.TextualSelect
S = TypeVar("S", bound=Statement)

_Convert = Callable[[Any], Any]


class Answer(ABC):
    """The answer to a statement that was sent. A reader waits until it and all earlier answers have arrived."""

    def first(self) -> Any:
        """Returns the first row, with columns as attributes; None if there is none."""
        rows = self.all()
        return rows[0] if rows else None

    @abstractmethod
    def all(self) -> Sequence[Any]:
        """Returns the rows, with columns as attributes."""

    @abstractmethod
    def changed(self) -> int:
        """Returns the number of rows that the statement changed."""

    def row_id(self) -> int:
        """Returns the row id of an inserted row, on SQLite. On PostgreSQL, the statement must return it."""
        return int(self.first()[0])


class Prepared(Generic[S]):
    """A statement whose executions all have parameters of the same names.

    Values and rows are converted by the types of their columns, and errors of the database are SQLAlchemy's, as with
    `Connection.execute`. SQLAlchemy's listeners see the statements in the context of `observed` only.

    Example:
        >>> FORGET = Prepared(journal.delete().where(journal.c.run_id == sa.bindparam("p_run")))
        >>> FORGET.change(conn, {"p_run": run_id})
        3
    """

    def __init__(self, statement: S) -> None:
        """Prepares a statement without parameters that are lists. Nothing is compiled before the first execution."""
        self.statement = statement
        self._plans: dict[str, _Plan] = {}

    def send(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> Answer:
        """Executes a statement. Returns its answer, for which PostgreSQL is not awaited yet.

        An error of the statement is raised by the first answer that is read after it, or at the end of the transaction.
        """
        driver: Any = conn.connection.driver_connection
        if _Observers.count > 0 or driver is None:
            return _Executed(conn.execute(self.statement, parameters))
        plan = self._plans.get(conn.dialect.name) or self._planned(conn, parameters)
        values = plan.values(parameters)
        if isinstance(driver, sqlite3.Connection):
            return _SqliteAnswer(conn, plan, values, driver)
        return _PostgresAnswer(plan, driver.statements, driver.statements.send(plan.encoded, values))

    def first(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> Any:
        """Returns the first row of a query or of RETURNING, with columns as attributes; None if there is none."""
        return self.send(conn, parameters).first()

    def all(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the rows of a query, with columns as attributes."""
        return self.send(conn, parameters).all()

    def change(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> int:
        """Executes a statement that writes. Returns the number of rows that it changed."""
        return self.send(conn, parameters).changed()

    def send_each(self, conn: sa.Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Executes a statement that writes once for each of the parameters, as `send` does."""
        for row in rows:
            self.send(conn, row)

    def _planned(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> "_Plan":
        name = conn.dialect.name
        if name not in self._plans:
            self._plans[name] = _Plan.of(self.statement, conn.dialect, frozenset(parameters))
        return self._plans[name]


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


class _Executed(Answer):
    """An answer of SQLAlchemy."""

    def __init__(self, result: sa.CursorResult[Any]) -> None:
        self._result = result
        self._rows = result.all() if result.returns_rows else []
        self._changed = result.rowcount

    def all(self) -> Sequence[Any]:
        return self._rows

    def changed(self) -> int:
        return self._changed

    def row_id(self) -> int:
        return super().row_id() if self._rows else self._result.lastrowid


class _SqliteAnswer(Answer):
    """An answer of SQLite, which is there when the statement was sent."""

    __slots__ = ("_cursor", "_plan", "_rows")

    def __init__(self, conn: sa.Connection, plan: "_Plan", values: Sequence[Any], driver: sqlite3.Connection) -> None:
        self._plan = plan
        try:
            self._cursor = driver.execute(plan.text, values)
            self._rows = self._cursor.fetchall()
        except sqlite3.Error as error:
            hides = conn.engine.hide_parameters
            raise sa.exc.DBAPIError.instance(
                plan.text, tuple(values), error, sqlite3.Error, hides, dialect=conn.dialect
            ) from error

    def all(self) -> Sequence[Any]:
        return self._plan.rows(lambda: [column[0] for column in self._cursor.description], self._rows)

    def changed(self) -> int:
        return self._cursor.rowcount

    def row_id(self) -> int:
        return self._cursor.lastrowid or 0


class _PostgresAnswer(Answer):
    """An answer of PostgreSQL."""

    __slots__ = ("_pipeline", "_plan", "_sent")

    def __init__(self, plan: "_Plan", pipeline: "Pipeline", sent: "Sent") -> None:
        self._plan = plan
        self._pipeline = pipeline
        self._sent = sent

    def all(self) -> Sequence[Any]:
        result = self._pipeline.wait(self._sent)
        return self._plan.rows(
            lambda: [(result.fname(number) or b"").decode() for number in range(result.nfields)],
            self._pipeline.rows(result),
        )

    def changed(self) -> int:
        return self._pipeline.wait(self._sent).command_tuples or 0


@dataclass(slots=True)
class _Plan:
    """How a statement is executed: its text, the sources of its values, and the conversions of its columns."""

    text: str
    encoded: bytes
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
        text = str(compiled)
        return cls(text, text.encode(), names, sources, conversions)

    def values(self, parameters: Mapping[str, Any]) -> list[Any]:
        """Returns the values of an execution. Raises ValueError or KeyError for parameters of other names."""
        if len(parameters) != len(self.names):
            raise ValueError(f"the parameters are {sorted(parameters)} instead of {sorted(self.names)}")
        return [
            constant if name is None else parameters[name] if convert is None else convert(parameters[name])
            for name, convert, constant in self.sources
        ]

    def rows(self, names: Callable[[], list[str]], found: Sequence[Any]) -> Sequence[Any]:
        """Returns rows with converted values, and with columns as attributes, which `names` returns."""
        if not found:
            return []
        if self.row_type is None:
            self.row_type = namedtuple("Row", names())  # type: ignore[misc]
        if not self.conversions:
            return list(map(self.row_type._make, found))
        rows = []
        for values in found:
            converted = list(values)
            for position, convert in self.conversions:
                converted[position] = convert(converted[position])
            rows.append(self.row_type._make(converted))
        return rows
