"""Stores of a mesh whose every table has rows, generated from the tables."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_cli.backups.stores import MeshStores
from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_kit.sql import UtcDateTime
from mnemesh_kit.sql.snapshots import connect, transaction

ROWS: Final = 3
START: Final = datetime(2026, 11, 29, 12, tzinfo=UTC)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for a while."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def stores_of(data_dir: Path, urls: Mapping[str, str] | None = None) -> MeshStores:
    """Returns the stores in a data directory, or with databases at these URLs by service."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with environment({f"MNEMESH_{name.upper()}_DATABASE_URL": url for name, url in (urls or {}).items()}):
        return MeshStores.of(MeshConfig(data_dir=str(data_dir)))


def content_of(number: int) -> bytes:
    """Returns the content of a file."""
    return bytes(range(256)) * (number + 1)


def content_path(stores: MeshStores, content_id: str) -> Path:
    """Returns the file of a content."""
    return Path(stores.data_path / "files" / content_id[-2:] / content_id)


def fill(stores: MeshStores) -> None:
    """Creates the databases, and stores rows in each table, and the contents of files."""
    for store in stores.services.values():
        store.migrate()
        with connect(store.url) as connection, transaction(connection):
            for table in store.tables:
                rows = [_row(table, number) for number in range(ROWS)]
                connection.execute(table.insert(), rows)
    for number in range(ROWS):
        store_content(stores, f"blob-{number:02}", content_of(number))


def store_content(stores: MeshStores, content_id: str, content: bytes) -> None:
    """Stores a content as the service files does."""
    path = content_path(stores, content_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _row(table: sa.Table, number: int) -> dict[str, Any]:
    row = {column.key: _value(column, number) for column in table.columns}
    content = content_of(number)
    if table.name in ("agents", "conversations") and "state" in row:
        row |= {"state": "active"}
    if table.name == "approvals":
        row |= {"state": "pending"}
    if table.name == "files":
        row |= {"deleted_at": None, "blob_id": f"blob-{number:02}"}
    if table.name == "blobs":
        row |= {"id": f"blob-{number:02}", "stored": True, "removing_at": None}
        row |= {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    if table.name == "upload_parts":
        row |= {"blob_id": f"blob-{number:02}", "size_bytes": len(content)}
    return row


def _value(column: sa.Column[Any], number: int) -> Any:
    if column.foreign_keys:
        return _value(next(iter(column.foreign_keys)).column, number)
    if column.nullable and number == ROWS - 1:
        return None
    match column.type:
        case UtcDateTime():
            return START + timedelta(microseconds=number)
        case sa.JSON():
            return [{"b": [number, None, "é"], "a": 0.5}]
        case sa.LargeBinary():
            return bytes([0, 255, number])
        case sa.Boolean():
            return number % 2 == 0
        case sa.Double():
            return number + 0.1
        case sa.BigInteger() if not column.primary_key:
            return 2**53 + 1 + number
        case sa.Integer():
            return number + 1
        case _:
            return f'{column.table.name}.{column.name}\n{number} "é" \u2028 \U0001d11e'


def rows_of(stores: MeshStores) -> dict[str, list[str]]:
    """Returns all rows of the record, by service and table, in no order of the engine."""
    found = {}
    for name, store in stores.services.items():
        with connect(store.url) as connection:
            for table in store.tables:
                rows = connection.execute(sa.select(table)).all()
                found[f"{name}.{table.name}"] = sorted(repr(tuple(row)) for row in rows)
    return found
