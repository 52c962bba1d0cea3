"""One process per index directory: a lock file that the kernel releases when its process ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from mnemesh_retrieval.errors import IndexLocked

NAME = "index.lock"


class DirectoryLock:
    """A lock of a directory, from `acquire` to `release`."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    @classmethod
    def acquire(cls, directory: Path) -> DirectoryLock:
        """Locks the directory. Raises IndexLocked, with the id of the process that has the lock."""
        file = (directory / NAME).open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise IndexLocked(
                f"the vector index in {directory} is in use by another process (pid {holder}); stop that process, "
                "configure another data directory, or use a Qdrant server"
            ) from None
        with suppress(OSError):  # a full disk: the lock holds without the id
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())
        return cls(file)

    def release(self) -> None:
        """Releases the lock. The file stays: otherwise two processes could lock two files with the same name."""
        self._file.close()
