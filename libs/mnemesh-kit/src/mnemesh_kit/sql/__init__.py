"""The SQL database of a service: SQLite in process or PostgreSQL, with the same two methods, `read` and `write`."""

from mnemesh_kit.sql.database import Database, SqlConfig, UtcDateTime, open_database
from mnemesh_kit.sql.errors import DatabaseFull, DatabaseUnavailable

__all__ = [
    "Database",
    "DatabaseFull",
    "DatabaseUnavailable",
    "SqlConfig",
    "UtcDateTime",
    "open_database",
]
