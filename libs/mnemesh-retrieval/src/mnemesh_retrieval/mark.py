"""The mark of an embedded index: the name of the last state that it shares with its records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NAME: Final = "index.mark"


class IndexMark:
    """A small file beside an index, which tells whether index and records have the same history.

    The indexer gives each state that it has flushed a new random name, and stores the name here before it stores it
    with the records. After a crash in between, the records still have the name before the last one.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME

    def names(self) -> tuple[str, ...]:
        """Returns the names of the last two states, the last one first; empty if there is no mark."""
        try:
            return tuple(self._path.read_text(encoding="ascii").split())
        except (FileNotFoundError, UnicodeDecodeError):
            return ()

    def store(self, last: str, before: str | None) -> None:
        """Stores the names on stable storage."""
        written = self._path.with_suffix(".new")
        with written.open("w", encoding="ascii") as file:
            file.write(f"{last} {before or ''}\n")
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._path)
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
