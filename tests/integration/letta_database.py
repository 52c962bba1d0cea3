"""A database that a Letta server filled, and its migration to a mesh."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from mnemesh_letta.database.database import open_database
from mnemesh_letta.database.migration import Migration
from mnemesh_letta.database.report import Report
from mnemesh_testkit.mesh.in_process import Mesh

DATA = Path(__file__).parents[1] / "letta" / "data"
DUMP = DATA / "letta-0.16.7.db.gz"
"""An SQLite database of Letta, compressed."""


class Silent:
    """Shows no progress, and fails after so many messages, as a lost connection does."""

    def __init__(self, messages: int | None = None) -> None:
        self._left = messages

    def agent(self, *_: Any) -> None:
        """Does nothing."""

    def message(self) -> None:
        """Counts a message."""
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise ConnectionError("interrupted")


async def migrate(mesh: Mesh, path: Path, progress: Silent | None = None) -> Report:
    """Migrates an SQLite database of Letta to a mesh. Returns the report."""
    async with open_database(f"sqlite:///{path}") as letta:
        return await Migration(letta, mesh.client, progress=progress or Silent()).run()


def rows(path: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    """Returns the rows of a query of an SQLite database."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(query, values).fetchall()
