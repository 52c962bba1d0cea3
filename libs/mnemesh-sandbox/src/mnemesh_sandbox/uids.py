"""The uids that tools run under. Each is used by one execution at a time on the whole machine."""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_NAME: Final = "mnemesh-tools-uids"
PARENTS: Final = ("/run", "/var/run", "/dev/shm")  # noqa: S108 - the directory below is checked


class NoUidLeft(Exception):
    """Other executions use every uid of the range, or no directory can hold the claims."""


class UidPool:
    """Allocates uids of a range.

    A lock on a file with the name of the uid claims it. The files are in a directory that only root can enter, so no
    tool can claim a uid; servers on one machine never share one; and the uids of a server that crashes become free.
    """

    def __init__(self, first: int, count: int, parents: tuple[str, ...] = ()) -> None:
        """Claims `count` uids from `first`.

        Args:
            first: The first uid.
            count: The number of uids.
            parents: The directories in which the directory of the claims is created; the first that allows it is used.
        """
        self._range = range(first, first + count)
        self._parents = parents or (*PARENTS, tempfile.gettempdir())
        self._next = 0

    @contextmanager
    def claim(self) -> Iterator[tuple[int, int]]:
        """Yields a uid that no other execution uses until the block ends, and the descriptor that holds the claim.

        A process that inherits the descriptor extends the claim to its own end.

        Raises:
            NoUidLeft: All are in use, or no directory can hold the claims.
        """
        directory = self._directory()
        for offset in range(len(self._range)):
            uid = self._range[(self._next + offset) % len(self._range)]
            file = os.open(directory / str(uid), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                self._next = (self._next + offset + 1) % len(self._range)
                yield uid, file
                return
            finally:
                os.close(file)
        raise NoUidLeft(f"All {len(self._range)} uids from {self._range.start} are in use.")

    def _directory(self) -> Path:
        """Returns the directory of the claims. It belongs to this user, and no one else can enter it."""
        for parent in self._parents:
            path = Path(parent, _NAME)
            try:
                path.mkdir(mode=0o700, exist_ok=True)
                found = path.lstat()
            except OSError:
                continue
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
                return path
        raise NoUidLeft(f"No directory of {', '.join(self._parents)} can hold {_NAME} with mode 0700.")
