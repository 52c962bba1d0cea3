"""The files below a directory that belong to a folder."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from mnemesh_cli.directories.ignore import IgnoreRules
from mnemesh_kit.errors import FailedPrecondition


class DirectoryUnreadable(FailedPrecondition):
    """A directory cannot be read. It may be there again later."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The properties that distinguish two states of a file without reading it."""

    size: int
    modified_ns: int
    changed_ns: int
    inode: int


@dataclass(slots=True)
class Scan:
    """The files below a directory, and what could not be read."""

    files: dict[str, FileState] = field(default_factory=dict)
    """Relative path, with "/" between the parts, to state."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Relative path of a directory or file to the problem."""

    def may_exist(self, path: str) -> bool:
        """Returns whether a file may exist that was not found: it is unreadable, or below an unreadable directory."""
        return any(path == known or path.startswith(f"{known}/") for known in self.unreadable)


def scan(root: Path, rules: IgnoreRules, mounts: dict[str, int] | None = None) -> Scan:
    """Returns the files below a directory, without those that the rules ignore.

    A link to a file is followed if the file is in the directory too. Links to directories are not followed: they could
    form a circle.

    Args:
        root: the directory.
        rules: the rules that apply in it.
        mounts: the directories that earlier scans found to be the top of a file system, with its device; found ones
            are added. One that now has another device is unreadable: its file system is not mounted.

    Raises:
        DirectoryUnreadable: the directory itself cannot be read, or its file system is not mounted.
    """
    found, real_root = Scan(), Path(os.path.realpath(root))
    mounts = {} if mounts is None else mounts
    pending = [("", rules, -1)]
    while pending:
        base, inherited, outer_device = pending.pop()
        directory = real_root / base
        try:
            device = directory.stat().st_dev
            if device != outer_device:
                mounts.setdefault(base, device)
            if mounts.get(base, device) != device:
                raise OSError(errno.ENODEV, "its file system is not mounted")
            with os.scandir(directory) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if not base:
                raise DirectoryUnreadable(f"{root} cannot be read: {error.strerror}.") from error
            if not isinstance(error, FileNotFoundError) or base in mounts:
                found.unreadable[base.rstrip("/")] = str(error.strerror)
            continue
        own = inherited.within(directory, base)
        for entry in listed:
            path = f"{base}{entry.name}"
            if not _is_utf8(entry.name):
                found.unreadable[path] = "its name is not UTF-8"
            elif _is_directory(entry):
                if not own.ignores(f"{path}/"):
                    pending.append((f"{path}/", own, device))
            elif not own.ignores(path):
                _add(found, entry, path, real_root)
    found.unreadable |= {base.rstrip("/"): "it is gone" for base in mounts if not (real_root / base).is_dir()}
    return found


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _add(found: Scan, entry: os.DirEntry[str], path: str, root: Path) -> None:
    try:
        if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(root):
            return
        status = entry.stat()
    except OSError:
        return  # It was deleted meanwhile, or is a link to nothing.
    if stat.S_ISREG(status.st_mode):
        found.files[path] = FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
