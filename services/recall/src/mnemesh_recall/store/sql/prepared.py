"""The writes of a step. For these, SQLAlchemy takes several times as long as SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

Statement = sa.Insert | sa.Update | sa.TextClause
Values = Mapping[str, Any]
Convert = Callable[[Any], Any]


class _Compiled(NamedTuple):
    text: str
    names: Sequence[str]
    """The parameters in the order of the text."""
    converted: Mapping[str, Convert]
    """The parameters that the type of their column converts."""

    def parameters(self, values: Values) -> tuple[Any, ...]:
        converted = {name: convert(values[name]) for name, convert in self.converted.items()}
        return tuple([converted[name] if name in converted else values[name] for name in self.names])


class Prepared:
    """An INSERT or UPDATE without lists, which is compiled once for SQLite. It may return numbers and texts.

    PostgreSQL, whose statements wait for the network, executes it as any other.

    Example:
        >>> insert = Prepared(sa.insert(turns))
        >>> insert.execute(conn, {"agent_id": agent_id, "turn_index": 1, "turn_id": "turn_0001"})
    """

    def __init__(self, statement: Statement) -> None:
        self._statement = statement
        self._compiled: dict[tuple[str, ...], _Compiled] = {}

    def execute(self, conn: sa.Connection, values: Values | Sequence[Values]) -> sa.CursorResult[Any]:
        """Executes the statement with values, or once for each of several. All have the same names."""
        if conn.dialect.name != "sqlite":
            return conn.execute(self._statement, values)
        names = tuple(values if isinstance(values, Mapping) else values[0])
        compiled = self._compiled.get(names)
        if compiled is None:
            compiled = self._compiled[names] = _compile(self._statement, conn.dialect, names)
        if isinstance(values, Mapping):
            return conn.exec_driver_sql(compiled.text, compiled.parameters(values))
        return conn.exec_driver_sql(compiled.text, list(map(compiled.parameters, values)))


def _compile(statement: Statement, dialect: sa.Dialect, names: Sequence[str]) -> _Compiled:
    compiled: Any = statement.compile(dialect=dialect, column_keys=list(names))
    processors = {
        name: parameter.type.dialect_impl(dialect).bind_processor(dialect) for name, parameter in compiled.binds.items()
    }
    converted = {name: convert for name, convert in processors.items() if convert is not None}
    return _Compiled(str(compiled), tuple(compiled.positiontup), converted)
