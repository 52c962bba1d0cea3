"""The directories of installed packages on this host: shared when equal, read-only, and evicted by size."""

import asyncio
import os
import stat
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mnemesh_sandbox.work_directory import remove_tree

_BUILDING: Final = "building-"
_SIZE: Final = "size"
_BLOCK: Final = 512


MAX_BYTES: Final = 4 << 30
"""The size of the installed packages that are kept; beyond it, those used longest ago are removed."""


class PackageCache:
    """Directories of packages by key. The modification time of the file `size` is the time of the last use."""

    def __init__(self, root: Path, max_bytes: int = MAX_BYTES) -> None:
        """Opens the cache, and removes what killed builds left.

        Args:
            root: The directory of the cache, which belongs to this process.
            max_bytes: The size of all directories together that eviction keeps. Those in use are never evicted.
        """
        self._root = root
        self._max_bytes = max_bytes
        self._held: Counter[str] = Counter()
        self._sizes: dict[str, int] = {}
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for entry in root.iterdir():
            size = None if entry.name.startswith(_BUILDING) else _stored_size(entry)
            if size is None:
                remove_tree(str(entry))
            else:
                self._sizes[entry.name] = size

    def size(self, key: str) -> int | None:
        """Returns the bytes of a complete directory, or None if there is none."""
        return self._sizes.get(key)

    @property
    def total(self) -> int:
        """The bytes of all directories."""
        return sum(self._sizes.values())

    @contextmanager
    def hold(self, key: str) -> Iterator[Path]:
        """Yields the directory of packages, which is not evicted until the block ends.

        Raises:
            KeyError: There is none.
        """
        if key not in self._sizes:
            raise KeyError(key)
        self._held[key] += 1
        os.utime(self._root / key / _SIZE)
        try:
            yield self._root / key / "site"
        finally:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def new_directory(self) -> Path:
        """Returns a new empty directory for a build. Its parent is private."""
        parent = self._root / f"{_BUILDING}{uuid.uuid4().hex}"
        parent.mkdir(mode=0o700)
        directory = parent / "output"
        directory.mkdir()
        directory.chmod(0o777)
        return directory

    def discard(self, directory: Path) -> None:
        """Removes a directory of `new_directory`."""
        if directory.parent.exists():
            remove_tree(str(directory.parent))

    async def publish(self, key: str, site: Path) -> None:
        """Makes the directory of a finished build available, and evicts others if all are too large together."""
        if key not in self._sizes:
            self._sizes[key] = await asyncio.to_thread(self._publish, key, site)
        for doomed in self._evicted():
            await asyncio.to_thread(remove_tree, str(doomed))

    def _publish(self, key: str, site: Path) -> int:
        size = _taken_over(site)
        complete = site.parent.parent / "complete"
        complete.mkdir(mode=0o755)
        site.rename(complete / "site")
        (complete / _SIZE).write_text(str(size))
        os.sync()
        complete.rename(self._root / key)
        return size

    def _evicted(self) -> list[Path]:
        """Takes directories out of the cache that must be removed. Not in a thread: `hold` must not come between."""
        doomed: list[Path] = []
        by_use = sorted(self._sizes, key=lambda key: (self._root / key / _SIZE).stat().st_mtime)
        for key in by_use[:-1]:  # the newest stays, however large it is
            if self.total <= self._max_bytes:
                break
            if not self._held[key]:
                del self._sizes[key]
                # Renamed first: a directory with a name is always complete.
                doomed.append((self._root / key).rename(self._root / f"{_BUILDING}{key}-{time.monotonic_ns()}"))
        return doomed


def _stored_size(directory: Path) -> int | None:
    """Returns the size of a complete directory; None for one that is not complete."""
    try:
        return int((directory / _SIZE).read_text())
    except (OSError, ValueError):
        return None


def _taken_over(directory: Path) -> int:
    """Returns the bytes of a directory, and makes it that of this process: the uid of its build is that of later tools.

    The build has ended. Its directories are readable afterwards, and links are not followed.
    """
    total, is_root = 0, os.geteuid() == 0
    for parent, directories, files in os.walk(_owned(str(directory), is_root=is_root)[0]):
        for name in (*directories, *files):
            total += _owned(f"{parent}/{name}", is_root=is_root)[1]
    return total


def _owned(path: str, *, is_root: bool) -> tuple[str, int]:
    found = os.lstat(path)
    if is_root:
        os.chown(path, 0, 0, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode):
        os.chmod(path, 0o755)  # noqa: S103, PTH101 - tools read it
    return path, found.st_blocks * _BLOCK
