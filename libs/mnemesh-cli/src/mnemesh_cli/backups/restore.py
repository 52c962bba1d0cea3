"""Restores a backup into an empty mesh on any engine.

While a restore runs, each database has the revision RESTORING, so that no service starts on a part of a mesh. It is
replaced after all rows are in. An interrupted restore begins again.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_cli.backups.archive import (
    Manifest,
    Part,
    Sum,
    lines_of,
    listed_contents,
    part_name,
    read_content,
    read_part,
    row_decoder,
)
from mnemesh_cli.backups.keys import add_keys, key_marks, opened_keys
from mnemesh_cli.backups.places import BackupError, Place
from mnemesh_cli.backups.stores import MeshStores, ServiceStore, revision_of
from mnemesh_kit.maintenance import require_unused
from mnemesh_kit.sql.database import RESTORING, VERSIONS
from mnemesh_kit.sql.postgresql import is_postgresql
from mnemesh_kit.sql.snapshots import connect, transaction

_BATCH: Final = 500
_CLOSING_SECONDS: Final = 3.0
"""How long the server may take to end a session whose connection was closed, such as one of this program."""
Report = Callable[[str], None]


def restore_backup(
    stores: MeshStores, place: Place, manifest: Manifest, report: Report, *, passphrase: str | None = None
) -> None:
    """Restores a backup. Nothing is changed if the target is not empty or the backup does not fit.

    Args:
        stores: the target, whose services do not run.
        place: where the backup is.
        manifest: of the backup.
        report: receives lines about the progress.
        passphrase: decrypts the keys of the backup, which are then added to the key files of the target.

    Raises:
        BackupError: the target is not empty or in use; the backup is damaged, or of another version.
        StartupError: a database cannot be reached.
    """
    require_fitting(stores, manifest)
    keys = None if passphrase is None else opened_keys(manifest, passphrase)
    waiting = [store for store in stores.services.values() if _must_be_filled(store, manifest)]
    if keys is not None:
        add_keys(stores, keys)
    for store in waiting:
        _set_revision(store, RESTORING)
    for store in waiting:
        _require_unused(store)  # a service that started in between
    _restore_contents(stores, place, manifest, report)
    for store in waiting:
        _fill(store, place, manifest, report)
    for store in reversed(waiting):  # the orchestrator, which resumes runs, is the last
        _set_revision(store, store.newest_revision)
    if not set(manifest.key_marks) <= set(key_marks(stores)):
        report(
            "the secrets of the backup cannot be read with the keys of this mesh: add the keys of the first mesh to "
            "its key file, or restore a backup that was made with --with-key"
        )


def require_fitting(stores: MeshStores, manifest: Manifest) -> None:
    """Raises BackupError if the backup was made by a version with other tables."""
    for name, store in stores.services.items():
        stored = manifest.services.get(name)
        columns = {table.name: tuple(table.columns.keys()) for table in store.tables}
        if stored is None or stored.revision != store.newest_revision:
            raise BackupError(
                f"The backup has the schema {stored.revision if stored else None} of {name}, and this version of "
                f"mnemesh has {store.newest_revision}. Restore it with mnemesh {manifest.version}, then upgrade."
            )
        if columns != {table: part.columns for table, part in stored.tables.items()}:
            raise BackupError(
                f"The backup has other tables of {name} than this version of mnemesh. "
                f"Restore it with mnemesh {manifest.version}, then upgrade."
            )


def _must_be_filled(store: ServiceStore, manifest: Manifest) -> bool:
    """Creates the database if it is missing. Returns whether the rows of the backup are to be stored in it.

    They are there already if an earlier restore was interrupted at its very end.

    Raises:
        BackupError: the database has other rows, or is in use.
    """
    _require_unused(store)
    if not _is_being_restored(store):
        store.migrate()
    with connect(store.url) as connection:
        if revision_of(connection) == RESTORING:
            return True
        filled = [table.name for table in store.tables if connection.execute(sa.select(table).limit(1)).first()]
        if not filled:
            return True
        parts = manifest.services[store.name].tables
        if all(is_equal(connection, table, parts[table.name]) for table in store.tables):
            return False
    raise BackupError(
        f"The database of {store.name} is not empty: it has rows in {', '.join(filled[:3])}. "
        "Restore into an empty mesh: another MNEMESH_DATA_DIR, or other databases."
    )


def _require_unused(store: ServiceStore) -> None:
    """Raises StartupError if a service uses the database. One on PostgreSQL keeps its connections open.

    The connections of a pooler tell nothing about services: it keeps them.
    """
    require_unused(store.url)
    if not is_postgresql(store.url):
        return
    # With the URL of the service, this connection has the same name.
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND application_name = current_setting('application_name')"
    )
    give_up = time.monotonic() + _CLOSING_SECONDS
    with connect(store.url) as connection:
        driver: Any = connection.connection.driver_connection
        if connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() != driver.info.backend_pid:
            return
        while connection.exec_driver_sql(others).scalar_one():
            if time.monotonic() > give_up:
                raise BackupError(
                    f"The database of {store.name} is in use. Stop all services of the mesh, and everything else that "
                    "uses it."
                )
            time.sleep(0.05)


def is_equal(connection: sa.Connection, table: sa.Table, part: Part) -> bool:
    """Returns whether a table has exactly the rows of a part."""
    total = Sum()
    for _ in total.counted(lines_of(connection, table)):
        pass
    return (total.rows, str(total)) == (part.rows, part.sum)


def _restore_contents(stores: MeshStores, place: Place, manifest: Manifest, report: Report) -> None:
    async def restore() -> None:
        async with stores.contents() as target:
            for content_id, size, sha256 in listed_contents(place, manifest):
                await target.delete(content_id)  # the beginning that an interrupted restore has left
                writer = await target.create(content_id)
                try:
                    for piece in read_content(place, content_id, size, sha256):
                        await writer.write(piece)
                    await writer.finish()
                except BaseException:
                    await writer.abort()
                    raise

    asyncio.run(restore())
    report(f"contents: {manifest.contents.rows:,}, {manifest.content_bytes / 1e6:.1f} MB")


def _fill(store: ServiceStore, place: Place, manifest: Manifest, report: Report) -> None:
    parts = manifest.services[store.name].tables
    with connect(store.url) as connection:
        with transaction(connection):
            for table in reversed(store.metadata.sorted_tables):
                connection.execute(table.delete())
        for table in store.tables:
            with transaction(connection):
                lines = read_part(place, part_name(manifest.id, store.name, table.name), parts[table.name])
                _insert(connection, table, lines)
                _advance_sequence(connection, table)
    report(f"{store.name}: {sum(part.rows for part in parts.values()):,} rows")


def _insert(connection: sa.Connection, table: sa.Table, lines: Iterable[bytes]) -> None:
    decode, keys, statement = row_decoder(table), table.columns.keys(), table.insert()
    rows: Iterator[dict[str, Any]] = (dict(zip(keys, decode(line), strict=True)) for line in lines)
    while batch := list(islice(rows, _BATCH)):
        connection.execute(statement, batch)


def _advance_sequence(connection: sa.Connection, table: sa.Table) -> None:
    """Makes PostgreSQL give numbers above the stored ones to new rows."""
    column = table.autoincrement_column
    if column is None or connection.dialect.name != "postgresql":
        return
    sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
    connection.execute(
        sa.select(sa.func.setval(sequence, sa.func.max(column))).having(sa.func.max(column).is_not(None))
    )


def _is_being_restored(store: ServiceStore) -> bool:
    if not is_postgresql(store.url) and not Path(sa.make_url(store.url).database or "").exists():
        return False
    with connect(store.url) as connection:
        return revision_of(connection) == RESTORING


def _set_revision(store: ServiceStore, revision: str) -> None:
    """Changes the revision of a database, and makes everything before durable."""
    with connect(store.url) as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA synchronous=FULL")
        with transaction(connection):
            connection.execute(sa.update(VERSIONS).values(version_num=revision))
