"""One process per index directory: a lock file that the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from mnemesh_retrieval.errors import IndexLocked

NAME = "index.lock"


class DirectoryLock:
    """Held from `acquire` to `release`."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    @classmethod
    def acquire(cls, directory: Path) -> DirectoryLock:
        """Take the directory, or raise IndexLocked naming the process that holds it."""
        file = (directory / NAME).open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise IndexLocked(
                f"the vector index in {directory} is in use by another process (pid {holder}): stop that one, "
                "give this one a data directory of its own, or use a Qdrant server"
            ) from None
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        return cls(file)

    def release(self) -> None:
        """Let go. The file stays: removing it would let two processes lock two files of one name."""
        self._file.close()
