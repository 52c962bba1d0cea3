"""The directory of an embedded index: its lock, its mark, its reserve of space, and its damaged files."""

import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from mnemesh_retrieval.errors import IndexFull, IndexLocked

LOCK_FILE = "index.lock"


class DirectoryLock:
    """A lock of a directory, from `acquire` to `release`."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    @classmethod
    def acquire(cls, directory: Path) -> "DirectoryLock":
        """Locks the directory. Raises IndexLocked, with the id of the process that has the lock."""
        file = (directory / LOCK_FILE).open("a+", encoding="ascii")
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


MARK_FILE: Final = "index.mark"


class IndexMark:
    """A small file beside an index, which tells whether index and records have the same history.

    The indexer gives each state that it has flushed a new random name, and stores the name here before it stores it
    with the records. After a crash in between, the records still have the name before the last one.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / MARK_FILE

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


class DiskReserve:
    """Refuses writes of an index while the disk has less free space than the reserve.

    The engine writes into sparse mapped files; without space, the kernel would end the process with SIGBUS. And the
    records, from which the index is derived, need the rest of the disk more than the index does.
    """

    def __init__(self, directory: Path, reserve_bytes: int) -> None:
        self._directory = directory
        self._reserve_bytes = reserve_bytes

    def require(self) -> None:
        """Raises IndexFull if the disk has less free space than the reserve."""
        stat = os.statvfs(self._directory)
        free = stat.f_bavail * stat.f_frsize
        if free < self._reserve_bytes:
            raise IndexFull(
                f"the disk of {self._directory} has {free >> 20} MB of free space, and the index leaves "
                f"{self._reserve_bytes >> 20} MB to the records; free some space"
            )


FOLDER: Final = "damaged"
KEPT: Final = 2
"""The number of moves whose files are kept. They take as much disk space as the index."""


def discard(directory: Path) -> None:
    """Deletes the files of an index that were moved aside; they may have data that was deleted since."""
    shutil.rmtree(directory / FOLDER, ignore_errors=True)


def move_aside(directory: Path, paths: Sequence[Path]) -> Path | None:
    """Moves files of an index into a new folder below `damaged`, and deletes the oldest such folders.

    Returns:
        The folder; None if none of the paths exists.
    """
    present = [path for path in paths if path.exists()]
    if not present:
        return None
    parent = directory / FOLDER
    folder = parent / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    folder.mkdir(parents=True)
    for path in present:
        path.rename(folder / path.name)
    for old in sorted(parent.iterdir())[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder
