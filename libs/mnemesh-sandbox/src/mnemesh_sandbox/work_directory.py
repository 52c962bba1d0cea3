"""The working directory of a tool that has no private root."""

import asyncio
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from mnemesh_sandbox.inside import plan as layer
from mnemesh_sandbox.inside.watch import open_directory

_PREFIX: Final = "mnemesh-sandbox-"
_BLOCK: Final = 512
_NAME: Final = re.compile(re.escape(_PREFIX) + "[a-z0-9_]{8}")
"""The names that `tempfile.mkdtemp` makes. Another directory with the prefix can be a person's."""


@asynccontextmanager
async def work_directory(uid: int | None, layers: Collection[str]) -> AsyncIterator[str | None]:
    """Yields a new directory that belongs to the tool and removes it afterwards.

    Yields None if the layers include a private root, which contains such a directory, or if nothing confines the tool
    to the directory: then the tool cannot create files.

    Args:
        uid: The tool's uid; None if it runs under that of the service.
        layers: The layers of the execution.
    """
    if layer.PRIVATE_ROOT in layers or layer.LANDLOCK not in layers:
        yield None
        return
    # Not in a thread: a caller who is cancelled meanwhile would leave the directory and its lock behind.
    directory, lock = _new_directory(_parents()[0] if uid is None else _open_parent())
    try:
        if uid is not None:
            os.chown(directory, uid, uid)
        yield directory
    finally:
        try:
            await asyncio.shield(asyncio.to_thread(remove_tree, directory))
        finally:
            os.close(lock)


def _parents() -> list[Path]:
    return list(dict.fromkeys(map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp"))))  # noqa: S108 - others are not followed


def _open_parent() -> Path:
    """Returns a directory for temporary files that a tool with a uid of its own can enter, if there is one."""

    def is_open(parent: Path) -> bool:
        places = (parent.resolve(), *parent.resolve().parents)
        return parent.is_dir() and all(place.stat().st_mode & stat.S_IXOTH for place in places)

    parents = _parents()
    return next(filter(is_open, parents), parents[0])


def _new_directory(parent: Path) -> tuple[str, int]:
    """Returns a new directory in `parent`, and the descriptor of the lock that keeps other servers from removing it."""
    while True:
        directory = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink > 0:
            return directory, lock
        os.close(lock)  # another server removed it before the lock was set


def remove_leftovers(uids: range) -> None:
    """Removes the working directories that servers left when they were killed.

    Args:
        uids: The uids of tools. Directories of other users are kept.
    """
    for directory in (found for parent in _parents() for found in parent.glob(f"{_PREFIX}*")):
        if not _NAME.fullmatch(directory.name):
            continue
        try:
            found = directory.lstat()
            if not stat.S_ISDIR(found.st_mode) or (found.st_uid != os.geteuid() and found.st_uid not in uids):
                continue
            file = open_directory(str(directory))
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(str(directory))
        except OSError:
            continue  # in use
        finally:
            os.close(file)


def usage(directory: str) -> tuple[int, int]:
    """Returns the bytes on the disk, and the number, of what a directory contains. No process may use it."""
    size = count = 0
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            size += os.lstat(f"{parent}/{name}").st_blocks * _BLOCK
            count += 1
    return size, count


def hand_over(directory: str, uid: int) -> None:
    """Gives a directory with all that it contains to a uid. No process of its former owner is left."""
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            os.chown(f"{parent}/{name}", uid, uid, follow_symlinks=False)
    os.chown(directory, uid, uid)


def remove_tree(directory: str) -> None:
    """Removes a directory of any depth, also if the tool has revoked permissions in it. The tool must have ended.

    Each directory inside is moved to the top before it is read, so that no path and no list of open files grows with
    the depth.
    """
    root = open_directory(directory)
    try:
        if os.geteuid() != 0:
            os.fchmod(root, stat.S_IRWXU)
        moved = 0
        while names := os.listdir(root):  # noqa: PTH208 - a descriptor
            for name in names:
                try:
                    os.unlink(name, dir_fd=root)
                except IsADirectoryError:
                    moved = _raise_directories(root, name, moved)
                    os.rmdir(name, dir_fd=root)
    finally:
        os.close(root)
    Path(directory).rmdir()


def _raise_directories(root: int, name: str, moved: int) -> int:
    """Removes the files of the directory `name`, and moves its directories to `root`; returns how many were moved."""
    child = open_directory(name, root)
    try:
        if os.geteuid() != 0:
            os.fchmod(child, stat.S_IRWXU)
        for entry in os.listdir(child):  # noqa: PTH208 - a descriptor
            try:
                os.unlink(entry, dir_fd=child)
            except IsADirectoryError:
                moved += 1
                if os.geteuid() != 0:
                    os.chmod(entry, stat.S_IRWXU, dir_fd=child)  # moving a directory writes to it
                os.rename(entry, f"{_PREFIX}{moved}-{os.urandom(8).hex()}", src_dir_fd=child, dst_dir_fd=root)
    finally:
        os.close(child)
    return moved
