"""The lock file of a data directory: one mesh per directory, and the status of the process that holds it."""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

from mnemesh_kit.config import StartupError
from mnemesh_kit.private_files import private_directory

LOCK_NAME: Final = "mnemesh.lock"

_ACQUIRE_SECONDS: Final = 1.0
"""Long enough for a `lock_holder` of another process, which also takes the lock, to release it on a busy machine."""
_POLL_SECONDS: Final = 0.02
_LARGEST_STATUS: Final = 4096


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The status that the process with the lock wrote into the lock file."""

    pid: int
    ready: bool = False
    """True if all services of its mesh serve."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """The addresses of the services by name, at which clients on this machine reach them."""


class DataDirectoryLock:
    """An exclusive lock on a data directory. The kernel releases it when the process ends."""

    def __init__(self, file: int) -> None:
        """Wraps the descriptor of a lock file that this process has locked. Use `acquire`."""
        self._file = file

    @classmethod
    def acquire(cls, directory: Path) -> "DataDirectoryLock":
        """Creates the directory if it is missing, and locks it.

        Raises:
            StartupError: the directory cannot be written, or another process holds the lock.
        """
        private_directory(directory)
        try:
            file = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartupError(
                f"The data directory {directory} cannot be written: {error.strerror}. "
                "Choose another with MNEMESH_DATA_DIR."
            ) from error
        if not _try_lock(file, _ACQUIRE_SECONDS):
            holder = lock_holder(directory)
            os.close(file)
            raise StartupError(
                f"Another mesh (pid {holder.pid if holder else 'unknown'}) is running on {directory}. "
                "Stop it with `mnemesh down`, or choose another directory with MNEMESH_DATA_DIR."
            )
        lock = cls(file)
        lock.write_status(ready=False)
        return lock

    def write_status(self, *, ready: bool, addresses: Mapping[str, str] | None = None) -> None:
        """Writes the status that `lock_holder` reads: this process, whether its services serve, and their addresses."""
        text = json.dumps(asdict(LockHolder(os.getpid(), ready, dict(addresses or {})))).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))

    def release(self) -> None:
        """Releases the lock. The lock file stays."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


def lock_holder(directory: Path) -> LockHolder | None:
    """Returns the process that holds the lock on a data directory, or None if no process does."""
    try:
        file = os.open(directory / LOCK_NAME, os.O_RDWR)
    except OSError:
        return None
    try:
        if _try_lock(file):
            return None
        status = json.loads(os.pread(file, _LARGEST_STATUS, 0))
        # A later release may write more fields.
        return LockHolder(**{known.name: status[known.name] for known in fields(LockHolder) if known.name in status})
    except ValueError:
        return None  # the file is empty: its holder has not written its status yet, or is releasing the lock
    finally:
        os.close(file)


def _try_lock(file: int, timeout_seconds: float = 0.0) -> bool:
    """Tries to lock a file until the timeout. `lock_holder` of another process also holds a lock for an instant."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            return True
