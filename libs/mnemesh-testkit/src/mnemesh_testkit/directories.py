"""Directories that other accounts can enter, for tests that start processes as another account."""

import os
import tempfile
from pathlib import Path


def shared_parent() -> Path:
    """Returns a directory for temporary files which, if the tests run as root, other accounts can enter.

    It is the temporary directory of the tests, or another one if that is private or does not allow programs.

    Raises:
        RuntimeError: No directory for temporary files is open to other accounts.
    """
    for parent in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        if os.geteuid() != 0 or (is_open_to_all(parent) and not os.statvfs(parent).f_flag & os.ST_NOEXEC):
            return parent
    raise RuntimeError("the tests need a directory for temporary files that other accounts can enter: set TMPDIR")


def is_open_to_all(directory: Path) -> bool:
    """Returns whether every account can enter a directory."""
    directory = directory.resolve()
    return directory.is_dir() and all(place.stat().st_mode & 0o001 for place in (directory, *directory.parents))
