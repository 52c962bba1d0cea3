"""Whose leases this process has: a name kept in the data directory, so that the next process takes them up at once."""

import fcntl
import os
from pathlib import Path

from mnemesh_kit.config import StartupError
from mnemesh_kit.ids import new_id


class Instance:
    """The name of an instance, which one process at a time has."""

    def __init__(self, path: Path, *, alone: bool) -> None:
        """Takes the name in the file, or makes one.

        Where another process has it already, this one gets a name of its own that is not kept: two that share a data
        directory must not take each other's runs for their own.

        Raises:
            StartupError: another process has it, and this one would have to be `alone` on its database.
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
            self.name = new_id("owner")
            return
        self.name = os.read(self._file, 200).decode().strip()
        if not self.name:
            self.name = new_id("owner")
            os.write(self._file, self.name.encode())

    async def close(self) -> None:
        """Leaves the name to the next process."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
