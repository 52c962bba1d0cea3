"""Databases in the state of an earlier version of a service."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from mnemesh_kit.sql import Database

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""By table, as SQLite holds them; bytes are {"bytes": text}."""


async def at_revision(url: str, package: str, revision: str, rows: Rows) -> None:
    """Migrates an empty database to a revision and fills it.

    Args:
        url: of the database, of either engine.
        package: the service's, `mnemesh_<service>`.
        revision: the last one that is applied.
        rows: what the version of that time had stored.
    """

    def make(conn: sa.Connection) -> None:
        with Operations.context(MigrationContext.configure(conn)):
            for step in _steps(package, revision):
                step.upgrade()
        conn.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
        conn.execute(sa.text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": revision})
        if conn.dialect.name == "sqlite":
            _fill_sqlite(conn, rows)
        else:
            _fill_postgresql(conn, rows)

    database = Database.open(url)
    await database.write(make)
    await database.close()


async def downgrade(url: str, package: str, revision: str) -> None:
    """Takes the revisions after one back, so that the next start of the service runs them again.

    Args:
        url: of a migrated database, of either engine.
        package: the service's, `mnemesh_<service>`.
        revision: the last one that stays applied.
    """

    def undo(conn: sa.Connection) -> None:
        with Operations.context(MigrationContext.configure(conn)):
            for step in reversed(_steps(package, "9999")):
                if step.revision > revision:
                    step.downgrade()
        conn.execute(sa.text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})

    database = Database.open(url)
    await database.write(undo)
    await database.close()


def _steps(package: str, revision: str) -> list[Any]:
    """The modules of the revisions up to one; their file names begin with their ids, which are in order."""
    folder = Path(import_module(package).__file__ or "").parent / "store" / "migrations" / "versions"
    found = []
    for file in sorted(folder.glob("[0-9]*.py")):
        if file.name.partition("_")[0] <= revision:
            spec = importlib.util.spec_from_file_location(f"{package}_{file.stem}", file)
            if spec is None or spec.loader is None:
                raise ImportError(f"{file} is no module")
            found.append(importlib.util.module_from_spec(spec))
            spec.loader.exec_module(found[-1])
    return found


def _fill_sqlite(conn: sa.Connection, rows: Rows) -> None:
    for table, entries in rows.items():
        for entry in entries:
            names = ", ".join(f'"{name}"' for name in entry)
            values = tuple(_bytes(value) for value in entry.values())
            conn.exec_driver_sql(f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" * len(entry))})', values)


def _fill_postgresql(conn: sa.Connection, rows: Rows) -> None:
    found = sa.MetaData()
    found.reflect(conn)
    for table in found.sorted_tables:
        if not (entries := rows.get(table.name)):
            continue
        conn.execute(
            table.insert(),
            [{name: _typed(table.c[name], value) for name, value in entry.items()} for entry in entries],
        )
        for column in table.primary_key:
            where = {"table": table.name, "column": column.name}
            counter = conn.execute(sa.text("SELECT pg_get_serial_sequence(:table, :column)"), where).scalar()
            if counter is not None:
                last = max(int(entry[column.name]) for entry in entries)
                conn.execute(sa.text("SELECT setval(:counter, :last)"), {"counter": counter, "last": last})


def _typed(column: sa.Column[Any], value: Any) -> Any:
    if value is None:
        return None
    match column.type:
        case sa.DateTime():
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        case sa.Boolean():
            return bool(value)
        case sa.JSON():
            return json.loads(value)
        case _:
            return _bytes(value)


def _bytes(value: Any) -> Any:
    return value["bytes"].encode() if isinstance(value, dict) else value
