"""The work of the SQL engines for a call: full table scans, and rows or steps."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.call_context import current_correlation_id, set_correlation_id
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import observed

_PLANNED: Final = re.compile(r"\s*(SELECT|WITH|UPDATE|DELETE|INSERT)\b", re.IGNORECASE)
_READS: Final = re.compile(r"\s*(SELECT|WITH)\b(?!.*\b(INSERT INTO|UPDATE|DELETE FROM)\b)", re.IGNORECASE | re.DOTALL)
# A virtual table is read whole where its index is given no condition: "SCAN words VIRTUAL TABLE INDEX 0:".
_SQLITE_SCAN: Final = re.compile(r"SCAN (\w+)(?! VIRTUAL TABLE INDEX \d+:\S)(?! USING)")
_STEPS: Final = 20
_COUNTED_FOR: Final = "mnemesh_testkit.watch"


@dataclass(frozen=True, slots=True)
class Scan:
    """A full scan of a table by a statement."""

    table: str
    rows: int | None
    """The number of rows; None if the engine does not report it."""
    statement: str


@dataclass(slots=True)
class Watch:
    """The plans and the work of the SQL engines of this process for the calls of one context."""

    plans: list[tuple[str, str]] = field(default_factory=list)
    """Statements with their plans, as the engine writes them."""
    scans: list[Scan] = field(default_factory=list)
    work: int = 0
    """Rows looked at by PostgreSQL, found by an index or read and thrown away; on SQLite steps of its machine."""

    def scanned(self, tables: Sequence[str], more_than: int = 0) -> list[Scan]:
        """Returns the full scans of these tables with more rows than that, or with an unknown number."""
        return [scan for scan in self.scans if scan.table in tables and (scan.rows is None or scan.rows > more_than)]


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """A service's database on an SQL engine, and what a call may look at more when there is more of others."""

    package: str
    """Whose tables they are: "mnemesh_recall"."""
    url: str
    slack: int

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    async def execute(self, *statements: str) -> None:
        """Executes statements in the service's migrated database."""
        database = Database.open(self.url)
        await database.migrate(self.package)
        for statement in statements:
            await database.write(lambda conn, statement=statement: conn.execute(sa.text(statement)))  # type: ignore[misc]
        await database.close()

    async def prepare(self) -> None:
        """Makes PostgreSQL use indexes also for small tables."""
        if not self.is_sqlite:
            name = sa.make_url(self.url).database
            await self.execute(f'ALTER DATABASE "{name}" SET enable_seqscan = off')

    async def analyze(self) -> None:
        """Updates the statistics of PostgreSQL's planner."""
        if not self.is_sqlite:
            await self.execute("ANALYZE")


async def seen(call: Callable[[], Awaitable[Any]]) -> Watch:
    """Runs a call and returns the engines' work for it. The call must use a database.

    The work of background tasks meanwhile, for example of the indexer, is not counted.
    """

    async def run() -> Watch:
        with watched() as watch:
            await call()
        return watch

    # In a task of its own, so that the correlation id of the watch ends with it.
    watch = await asyncio.create_task(run())
    assert watch.plans
    return watch


def grown(
    few: Mapping[str, Watch], many: Mapping[str, Watch], tables: Sequence[str], slack: int, *, more_than: int
) -> list[str]:
    """The calls that look at more where there is more of others, or read one of these tables, with more rows than that,
    from its beginning to its end."""
    found = []
    for name, watch in many.items():
        if watch.work > few[name].work * 1.5 + slack:
            found.append(f"{name} looks at {watch.work}, which was {few[name].work}")
        found += [f"{name} reads {scan.table} whole: {scan.statement}" for scan in watch.scanned(tables, more_than)]
    return found


_watching: dict[str, Watch] = {}
"""The watches under way, by the correlation id of the calls that each counts."""


@contextmanager
def watched() -> Iterator[Watch]:
    """Explains every statement of this context and of the calls that it makes, also in servers of this process.

    On PostgreSQL each read is executed a second time for it. Statements of other tasks do not count: the correlation id
    tells them apart.
    """
    correlation_id, watch = set_correlation_id(), Watch()
    _watching[correlation_id] = watch
    try:
        with observed():
            yield watch
    finally:
        del _watching[correlation_id]


def _before(conn: sa.Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
    correlation_id = current_correlation_id()
    watch = _watching.get(correlation_id)
    is_sqlite = conn.dialect.name == "sqlite"
    if is_sqlite:
        _count_steps_for(conn, correlation_id if watch is not None else None)
    if watch is None or not _PLANNED.match(statement):
        return
    first = parameters[0] if many else parameters
    (_explain_sqlite if is_sqlite else _explain_postgresql)(watch, conn, statement, first)


def _count_steps_for(conn: sa.Connection, correlation_id: str | None) -> None:
    """Makes a connection count its steps for a watch from now on, or for none."""
    if conn.info.get(_COUNTED_FOR) == correlation_id:
        return
    conn.info[_COUNTED_FOR] = correlation_id

    def count() -> int:
        if (watch := _watching.get(correlation_id or "")) is not None:
            watch.work += _STEPS
        return 0

    driver: Any = conn.connection.dbapi_connection
    driver.set_progress_handler(count if correlation_id is not None else None, _STEPS)


# Once and for all: other threads run statements at any time, and their listeners must not change under them.
sa.event.listen(sa.Engine, "before_cursor_execute", _before)


def _explain_sqlite(watch: Watch, conn: sa.Connection, statement: str, parameters: Any) -> None:
    lines = [row[-1] for row in _run(conn, f"EXPLAIN QUERY PLAN {statement}", parameters)]
    watch.plans.append((statement, "\n".join(lines)))
    watch.scans += [Scan(found[1], None, statement) for line in lines if (found := _SQLITE_SCAN.match(line))]


def _explain_postgresql(watch: Watch, conn: sa.Connection, statement: str, parameters: Any) -> None:
    executed = _READS.match(statement) is not None
    how = "(ANALYZE, TIMING OFF, FORMAT JSON)" if executed else "(FORMAT JSON)"
    ((plan,),) = _run(conn, f"EXPLAIN {how} {statement}", parameters)
    told = json.loads(plan) if isinstance(plan, str) else plan
    watch.plans.append((statement, json.dumps(told, indent=1)))
    for node in _nodes(told[0]["Plan"]):
        if "Plans" in node and not node["Node Type"].startswith("Bitmap Heap"):
            continue
        looked_at = sum(node.get(key, 0) for key in ("Actual Rows", *_REMOVED)) * node.get("Actual Loops", 1)
        watch.work += int(looked_at)
        if node["Node Type"].endswith("Seq Scan"):
            rows = looked_at if executed else node["Plan Rows"]
            watch.scans.append(Scan(node["Relation Name"], int(rows), statement))


_REMOVED: Final = ("Rows Removed by Filter", "Rows Removed by Index Recheck")


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def _run(conn: sa.Connection, statement: str, parameters: Any) -> list[Any]:
    cursor = conn.connection.cursor()
    try:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())
    finally:
        cursor.close()
