"""A file system that forgets everything that was not flushed, as a disk does in a power failure."""

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final, Self

_SHUTDOWN: Final = 0x8004587D
"""The ioctl EXT4_IOC_SHUTDOWN."""
_WITHOUT_FLUSH: Final = struct.pack("I", 2)
"""Drop the journal's open transaction and all dirty pages."""
_MEGABYTES: Final = 1024
_MOUNT_OPTIONS: Final = "loop,commit=300,data=writeback"
"""The journal is committed by flushes only, and a flush of one file does not write the data of others."""


class CuttableDisk:
    """An ext4 file system in a sparse file; a context manager. Needs root, loop devices and mkfs.ext4.

    Example:
        >>> with CuttableDisk(tmp_path / "disk.img", tmp_path / "data") as disk:
        ...     (disk.path / "flushed").write_text(...)  # and os.fsync
        ...     disk.cut()
        ...     ...  # end every process that has open files there
        ...     disk.restore()
    """

    def __init__(self, image: Path, path: Path) -> None:
        """Prepares it.

        Args:
            image: the file to create.
            path: the directory where the file system appears. It is created.
        """
        self.path = path
        self._image = image

    @staticmethod
    def obstacle() -> str | None:
        """Returns why this machine cannot provide such a disk; None if it can."""
        if os.geteuid() != 0:
            return "a file system can be mounted by root only"
        if not Path("/dev/loop-control").exists():
            return "this machine has no loop devices"
        return None if shutil.which("mkfs.ext4") else "mkfs.ext4 is not installed"

    def __enter__(self) -> Self:
        """Creates and mounts the file system."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as image:
            image.truncate(_MEGABYTES << 20)
        _call("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()
        return self

    def __exit__(self, *_: object) -> None:
        """Unmounts and deletes the file system. No process may have open files there."""
        _call("umount", str(self.path))
        self._image.unlink()

    def cut(self) -> None:
        """Drops everything that was not flushed. Every access fails until `restore`."""
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory, _SHUTDOWN, _WITHOUT_FLUSH)
        finally:
            os.close(directory)

    def restore(self) -> None:
        """Mounts the file system again, as the next boot does. No process may have open files there."""
        _call("umount", str(self.path))
        self._mount()

    def _mount(self) -> None:
        _call("mount", "-o", _MOUNT_OPTIONS, str(self._image), str(self.path))


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)} failed: {done.stderr.strip()}")
