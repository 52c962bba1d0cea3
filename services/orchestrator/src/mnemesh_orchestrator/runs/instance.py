"""The id of this instance, kept in the data directory, so that the next process resumes the instance's runs at once."""

import fcntl
import os
from pathlib import Path

from mnemesh_kit.config import StartupError
from mnemesh_kit.ids import new_id


class Instance:
    """The id of an instance. One process at a time uses it."""

    def __init__(self, path: Path, *, alone: bool) -> None:
        """Reads the id from a file, or creates it.

        If another process uses the id, this process gets a temporary one, because two processes with one data
        directory must not take each other's runs for their own.

        Args:
            path: the file.
            alone: this process must be the only one on its database.

        Raises:
            StartupError: another process uses the id, and this one must be `alone`.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            self._file = -1
            if alone:
                raise StartupError(
                    f"Another orchestrator works in {path.parent}; give this one a directory of its own with "
                    "MNEMESH_DATA_DIR, or a PostgreSQL database to both."
                ) from error
            self.id = new_id("instance")
            return
        self.id = os.read(self._file, 200).decode().strip()
        if not self.id:
            self.id = new_id("instance")
            os.write(self._file, self.id.encode())

    async def close(self) -> None:
        """Releases the id for the next process."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
