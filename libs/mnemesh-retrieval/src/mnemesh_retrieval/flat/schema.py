"""The SQLite file of a FlatIndex: its tables, their versions, and its connections."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

NAME: Final = "vectors.db"
VERSION: Final = 3
"""The version of the tables. A file of an unknown version is replaced by an empty one."""
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
_UPGRADE_FROM_2: Final = f"""
    ALTER TABLE segments ADD COLUMN checksum INTEGER;
    PRAGMA user_version = {VERSION};
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
_UPGRADES: Final = {1: _UPGRADE_FROM_1, 2: _UPGRADE_FROM_2}
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
    return connection


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
            # For a new file. A segment takes three pages of this size, and five of the default size.
            "page_size = 8192",
            "journal_mode = WAL",
            # A crash of the process loses nothing; a power loss loses what no flush has written to disk.
            "synchronous = NORMAL",
            "secure_delete = ON",
            f"cache_size = -{_CACHE_KILOBYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection
