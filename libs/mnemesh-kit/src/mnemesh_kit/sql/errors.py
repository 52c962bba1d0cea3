"""The errors of a database that is unavailable or full, and the exceptions of the drivers that mean so."""

import errno
import sqlite3
from typing import Final

import sqlalchemy as sa

from mnemesh_kit.errors import MnemeshError, StorageFull, Unavailable


class DatabaseUnavailable(Unavailable):
    """The service's own database does not answer. Nothing was stored, or it is not known whether it was."""


class DatabaseFull(StorageFull):
    """The disk of the service's own database is full or read-only.

    Nothing was stored, or a write was that a power failure may lose.
    """

    def __init__(self) -> None:
        super().__init__("The disk of the database is full or read-only. Make space, then retry.")


_FULL_ERRNO: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_AWAY_CLASSES: Final = ("08", "57P")
"""Connections that broke (08), and a server that shuts down, crashed or starts (57P01 to 57P05)."""
_READ_ONLY: Final = "25006"
_AWAY_STATES: Final = frozenset(
    {
        "53300",  # too many connections
        "53200",  # out of memory
        _READ_ONLY,  # a standby, or a primary that becomes one
        "25P03",  # idle in transaction for too long
        "40003",  # the outcome of the statement is unknown
        "58030",  # I/O error
    }
)
_FULL_STATES: Final = frozenset({"53100"})

_SQLITE_FULL: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY})
_SQLITE_AWAY: Final = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL})


def from_os_error(error: OSError, problem: str = "cannot be reached") -> MnemeshError:
    """Returns the error for a failed system call on a file or connection of the database, whose `problem` this is."""
    return (
        DatabaseFull() if error.errno in _FULL_ERRNO else DatabaseUnavailable(f"The database {problem}. Retry later.")
    )


def from_sqlite(error: sa.exc.DBAPIError, *, query_only: bool = False) -> MnemeshError | None:
    """Returns the error for an exception of SQLite if the file cannot be read or written now; None for any other.

    A connection that is `query_only` refuses writes as a read-only disk does. That is a defect of the caller.
    """
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    if code in _SQLITE_FULL and not query_only:
        return DatabaseFull()
    if code in _SQLITE_AWAY:
        return DatabaseUnavailable("The database file cannot be read or written. Retry later.")
    return None


def from_postgresql(error: Exception, *, query_only: bool = False) -> MnemeshError | None:
    """Returns the error for an exception of PostgreSQL or its driver if the server is unavailable or full, else None.

    A transaction that is `query_only` refuses writes as a standby does. That is a defect of the caller.
    """
    if isinstance(error, OSError):
        return from_os_error(error)
    original = getattr(error, "orig", None) or error
    state = getattr(original, "sqlstate", None)
    if state in _FULL_STATES:
        return DatabaseFull()
    if query_only and state == _READ_ONLY:
        return None
    is_away = isinstance(state, str) and (state in _AWAY_STATES or state.startswith(_AWAY_CLASSES))
    if is_away or isinstance(error, sa.exc.InterfaceError):
        return DatabaseUnavailable("The database cannot be reached. Retry later.")
    if isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
        return DatabaseUnavailable("The connection to the database was lost. Retry later.")
    return None
