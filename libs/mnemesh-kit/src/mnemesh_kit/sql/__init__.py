"""One SQL database of one service: SQLite in process, or PostgreSQL, behind the same two verbs, `read` and `write`."""

from mnemesh_kit.sql.config import SqlConfig, open_database
from mnemesh_kit.sql.database import Database
from mnemesh_kit.sql.types import UtcDateTime

__all__ = ["Database", "SqlConfig", "UtcDateTime", "open_database"]
