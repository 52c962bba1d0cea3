"""The reserve of disk space that an embedded index leaves to the records."""

from __future__ import annotations

import os
from pathlib import Path

from mnemesh_retrieval.errors import IndexFull


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
