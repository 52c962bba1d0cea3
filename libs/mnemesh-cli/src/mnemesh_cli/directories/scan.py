"""The files of a directory: which are ignored, which are there, and which have settled."""

import errno
import os
import stat
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from pathspec import GitIgnoreSpec

IGNORE_FILES: Final = (".gitignore", ".mnemeshignore")
"""In every directory; the second overrides the first."""

_ALWAYS: Final = (
    # Version control, whose files are never content.
    *(".git/", ".hg/", ".svn/", ".jj/"),
    # Temporary files of editors and office programs: Vim, Emacs, JetBrains, GNOME, LibreOffice, Microsoft Office.
    *("*.sw[a-p]", "4913", "*~", r"\#*#", ".#*", "___jb_tmp___", "___jb_old___", ".goutputstream-*"),
    *(".~lock.*#", "~$*", "*.tmp", "*.temp"),
    # Incomplete downloads and copies.
    *("*.part", "*.partial", "*.crdownload", "*.download", ".*.??????"),
    # What systems and programs leave in directories.
    *(".DS_Store", "Thumbs.db", "desktop.ini", "__pycache__/", "node_modules/"),
)
_HIDDEN: Final = ".*"
_LARGEST_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Rules:
    """Rules for the files below a directory. `base` is its relative path with a "/" at the end, or empty."""

    base: str
    spec: GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """Returns whether a path is ignored; None if no rule is about it."""
        return self.spec.check_file(path[len(self.base) :]).include


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that apply in one directory, with the semantics of .gitignore.

    Of all matching rules the last one decides, and rules of a directory come after those of its parents. Files below an
    ignored directory are not looked at, so no rule can include them again.
    """

    rules: tuple[_Rules, ...]

    @classmethod
    def of_root(cls, patterns: Sequence[str] = (), *, hidden: bool = False) -> "IgnoreRules":
        """Returns the built-in rules and those of the caller, which precede the ignore files.

        Args:
            patterns: further rules, in the syntax of .gitignore.
            hidden: whether files and directories whose name begins with "." are included.

        Raises:
            InvalidArgument: a pattern is invalid.
        """
        for pattern in patterns:
            if not _is_valid(pattern):
                raise InvalidArgument(
                    f"{pattern!r} is not a rule. Use the syntax of .gitignore, such as '*.log'.", field="ignore"
                )
        built_in = [*_ALWAYS, *(() if hidden else (_HIDDEN,))]
        return cls((_Rules("", _spec([*built_in, *patterns])),))

    def within(self, directory: Path, base: str) -> "IgnoreRules":
        """Returns the rules with those of the ignore files in a directory, whose relative path is `base`.

        Invalid rules are left out, as git does.
        """
        own = tuple(
            _Rules(base, _spec(filter(_is_valid, lines)))
            for name in IGNORE_FILES
            if (lines := _lines(directory / name))
        )
        return IgnoreRules((*self.rules, *own)) if own else self

    def ignores(self, path: str) -> bool:
        """Returns whether a relative path is ignored. The path of a directory ends with "/"."""
        for rules in reversed(self.rules):
            verdict = rules.verdict(path)
            if verdict is not None:
                return verdict
        return False


def _spec(rules: Iterable[str]) -> GitIgnoreSpec:
    # Without the argument, the result would depend on which engines of expressions are installed.
    return GitIgnoreSpec.from_lines(rules, backend="simple")


def _is_valid(rule: str) -> bool:
    try:
        _spec([rule])
    except ValueError:
        return False
    return True


def _lines(path: Path) -> list[str]:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            return []
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


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


class Settling:
    """The states in which files were seen, and since when."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._seen: dict[str, tuple[FileState | None, float]] = {}

    def is_settled(self, path: str, state: FileState | None) -> bool:
        """Returns whether a file is in a state long enough; None is the state of an absent file."""
        now = self._clock()
        seen = self._seen.get(path)
        if seen is None or seen[0] != state:
            # A file that changed long before it is seen for the first time is complete.
            is_old = seen is None and state is not None and time.time() - state.changed_ns / 1e9 > self._seconds
            seen = self._seen[path] = (state, now - self._seconds if is_old else now)
        return now - seen[1] >= self._seconds

    def keep(self, paths: Container[str]) -> None:
        """Forgets all other files."""
        self._seen = {path: seen for path, seen in self._seen.items() if path in paths}
