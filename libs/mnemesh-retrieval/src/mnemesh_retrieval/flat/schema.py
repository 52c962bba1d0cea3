"""The SQLite file of a FlatIndex: its tables, their versions, and its connections."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

import structlog
from mnemesh_kit.sql.sqlite import LOG_BYTES

_log = structlog.get_logger("mnemesh.retrieval")

NAME: Final = "vectors.db"
VERSION: Final = 4
"""The version of the file. A file of an unknown version is replaced by an empty one."""
PAGE_BYTES: Final = 32_768
"""The size of SQLite's pages. A full segment of vectors of 256 numbers is one page, and a read of a page that is not
cached costs about as much as one of a small page."""
_TABLES: Final = f"""
    CREATE TABLE collections (collection INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL);
    CREATE TABLE segments (
        segment INTEGER PRIMARY KEY, collection INTEGER NOT NULL, tenant TEXT NOT NULL,
        oldest INTEGER NOT NULL, newest INTEGER NOT NULL,
        labels TEXT NOT NULL, headers BLOB NOT NULL, vectors BLOB NOT NULL, checksum INTEGER
    );
    CREATE INDEX ix_segments_tenant ON segments (collection, tenant, segment);
    CREATE TABLE segment_labels (
        collection INTEGER NOT NULL, label TEXT NOT NULL, newest INTEGER NOT NULL, segment INTEGER NOT NULL,
        oldest INTEGER NOT NULL, PRIMARY KEY (collection, label, newest, segment)
    ) WITHOUT ROWID;
    CREATE TABLE points (
        collection INTEGER NOT NULL, id BLOB NOT NULL, segment INTEGER NOT NULL, PRIMARY KEY (collection, id)
    ) WITHOUT ROWID;
    PRAGMA user_version = {VERSION};
"""
_UPGRADE_FROM_3: Final = f"PRAGMA user_version = {VERSION};"
"""Segments of version 3 have at most 64 points, in smaller pages."""
_UPGRADE_FROM_2: Final = f"""
    ALTER TABLE segments ADD COLUMN checksum INTEGER;
    {_UPGRADE_FROM_3}
"""
"""Rows of version 2 have no checksum until they are written again."""
_UPGRADE_FROM_1: Final = f"""
    DROP INDEX ix_blocks_tenant;
    ALTER TABLE blocks RENAME TO segments;
    ALTER TABLE segments RENAME COLUMN block TO segment;
    ALTER TABLE segments RENAME COLUMN head TO headers;
    CREATE INDEX ix_segments_tenant ON segments (collection, tenant, segment);
    ALTER TABLE block_labels RENAME TO segment_labels;
    ALTER TABLE segment_labels RENAME COLUMN block TO segment;
    ALTER TABLE points RENAME COLUMN block TO segment;
    {_UPGRADE_FROM_2}
"""
"""Version 1 has other names for the same tables."""
_UPGRADES: Final = {1: _UPGRADE_FROM_1, 2: _UPGRADE_FROM_2, 3: _UPGRADE_FROM_3}
_CACHE_KILOBYTES: Final = 4_096


def open_writer(directory: Path) -> sqlite3.Connection:
    """Opens the connection that writes. Creates or upgrades the file if needed."""
    path = directory / NAME
    connection = _connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version in _UPGRADES:
        connection.executescript(f"BEGIN; {_UPGRADES[version]} COMMIT;")
    elif version != VERSION:
        connection.close()
        for part in parts(directory):
            part.unlink(missing_ok=True)
        connection = _connect(path)
        connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
    try:
        _resize_pages(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _resize_pages(connection: sqlite3.Connection) -> None:
    """Rewrites a file of an earlier version with pages of the current size: some seconds for each million points.

    Searches work with any size. If there is no space for the copy, or if someone reads the file, it stays as it is
    until the next start.
    """
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    if size == PAGE_BYTES:
        return
    try:
        # SQLite changes the size of pages only without a log.
        for command in ("PRAGMA journal_mode = DELETE", f"PRAGMA page_size = {PAGE_BYTES}", "VACUUM"):
            connection.execute(command).fetchall()
    except sqlite3.OperationalError as error:
        _log.warning("vector_pages_not_resized", error=str(error), page_bytes=size)
    finally:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()


def parts(directory: Path) -> tuple[Path, ...]:
    """Returns the paths of the file, its log, and the index of the log."""
    return tuple(directory / name for name in (NAME, f"{NAME}-wal", f"{NAME}-shm"))


def open_reader(directory: Path) -> sqlite3.Connection:
    """Opens a connection that only reads. The file must exist."""
    connection = _connect(directory / NAME, "rw")
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(path: Path, mode: str = "rwc") -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, isolation_level=None, check_same_thread=False, cached_statements=256, uri=True)
    try:
        for pragma in (
            f"page_size = {PAGE_BYTES}",  # for a new file
            "journal_mode = WAL",
            # A crash of the process loses nothing; a power loss loses what no flush has written to disk.
            "synchronous = NORMAL",
            "secure_delete = ON",
            f"cache_size = -{_CACHE_KILOBYTES}",
            f"journal_size_limit = {LOG_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection
