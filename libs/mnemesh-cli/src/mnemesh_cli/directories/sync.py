"""The files of a directory, and what makes a folder equal to it."""

import asyncio
import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from mnemesh.files.v1 import files_pb2, files_service_pb2
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_client.uploads import folder_name_of, sha256_of
from mnemesh_kit.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    MnemeshError,
    ResourceExhausted,
)
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


T = TypeVar("T")

_REFUSED_SECONDS: Final = 600.0
"""The time after which a refused file is tried again although it did not change."""


async def for_each(items: Iterable[T], parallel: int, action: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    """Runs an action for each item, at most `parallel` at a time.

    Raises:
        MnemeshError: the first error of an action. It ends the others.
    """
    waiting = deque(items)

    async def work() -> None:
        while waiting:
            await action(waiting.popleft())

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(parallel, len(waiting))):
                workers.create_task(work())
    except BaseExceptionGroup as group:  # before Python 3.11.4, `except*` wraps what it raises
        errors, others = group.split(MnemeshError)
        if errors is None or others is not None:
            raise
        raise _first(errors) from None


def _first(group: BaseExceptionGroup[MnemeshError]) -> MnemeshError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


class Action(StrEnum):
    """The change of a file of a folder."""

    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: what to do so that it is gone."""

    action: Action
    path: str
    file: files_pb2.File | None = None
    """The file of the folder that is replaced or deleted."""
    renamed: files_pb2.File | None = None
    """The file of the folder with the old name of a renamed file. It is deleted after the upload."""


class FolderFiles:
    """The files of a folder, found by the relative path with which they were uploaded, or else by name."""

    def __init__(self, files: Iterable[files_pb2.File]) -> None:
        self._by_path: dict[str, files_pb2.File] = {}
        self._by_name: dict[str, files_pb2.File] = {}
        for file in files:
            self.add(file)

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, file: files_pb2.File) -> None:
        """Adds a file, or replaces the one with its name."""
        self._by_name[file.name] = file
        if file.path:
            self._by_path[file.path] = file

    def remove(self, file: files_pb2.File) -> None:
        self._by_name.pop(file.name, None)
        if self._by_path.get(file.path, file).id == file.id:
            self._by_path.pop(file.path, None)

    def of(self, path: str) -> files_pb2.File | None:
        """Returns the file of a relative path. A file without a path counts if it has the name of this one."""
        known = self._by_path.get(path)
        if known is not None:
            return known
        named = self._by_name.get(folder_name_of(path))
        return named if named is not None and not named.path else None

    def named(self, name: str) -> files_pb2.File | None:
        return self._by_name.get(name)

    def from_directories(self) -> Mapping[str, files_pb2.File]:
        """Returns the files that were uploaded with a relative path, by that path."""
        return {path: file for path, file in self._by_path.items() if not path.startswith("/")}


def compare(
    hashes: Mapping[str, str], folder: FolderFiles, missing: Mapping[str, bool], *, deletes: bool
) -> list[Change]:
    """Returns the changes that make a folder equal to a directory.

    A file that is missing and has the content of a new one was renamed. Its old name is deleted in any case. Files that
    were uploaded without a relative path are not deleted.

    Args:
        hashes: relative path to SHA-256 of the files of the directory.
        folder: the files of the folder.
        missing: relative path of each file of the folder that the directory does not have, to whether it is certainly
            gone. As long as it is not, it is not deleted, and files with its content are not uploaded.
        deletes: whether files that are gone are deleted.
    """
    absent = {path: file for path, file in folder.from_directories().items() if path in missing}
    moved = {file.sha256: path for path, file in absent.items() if file.size_bytes > 0}
    changes = []
    for path, sha256 in hashes.items():
        known = folder.of(path)
        if known is not None and known.sha256 == sha256:
            continue
        old = moved.get(sha256)
        if old is not None and not missing[old]:
            continue
        renamed = absent.pop(moved.pop(sha256)) if old is not None else None
        action = Action.CREATE if known is None else Action.REPLACE
        changes.append(Change(action, path, known, renamed))
    if deletes:
        changes += [Change(Action.DELETE, path, file) for path, file in absent.items() if missing[path]]
    return changes


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What happened to one file."""

    path: str
    done: str
    """"created", "replaced", "renamed" or "deleted"; "refused" with an error; "unprocessed" if the server failed."""
    file: files_pb2.File | None = None
    error: MnemeshError | None = None


@dataclass(slots=True)
class Pass:
    """The result of one pass."""

    files: int = 0
    """The number of files of the directory."""
    changes: int = 0
    is_first: bool = False
    is_settled: bool = True
    """False if files are still being written or were just deleted: another pass must follow."""
    unreadable: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    """The duration of the comparison."""


class FolderSync:
    """Makes a folder equal to a directory, with one pass after another.

    A file is uploaded when it has not changed for `settle_seconds`, so that files that are being written, and files
    that an editor replaces in several steps, are uploaded once. The state of the folder is the only one: after a
    restart, files whose content the folder has are not uploaded again.
    """

    def __init__(
        self,
        mnemesh: Mnemesh,
        folder_id: str,
        root: Path,
        rules: IgnoreRules,
        report: Callable[[SyncReport], None],
        *,
        deletes: bool = False,
        parallel: int = 4,
        settle_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = Path(os.path.realpath(root))
        self.rules = rules
        self._mnemesh = mnemesh
        self._folder_id = folder_id
        self._report = report
        self._deletes = deletes
        self._parallel = parallel
        self._clock = clock
        self._settling = Settling(settle_seconds, clock)
        self._hashes: dict[str, tuple[FileState, str]] = {}
        self._refused: dict[str, tuple[FileState | None, float]] = {}
        self._folder: FolderFiles | None = None
        self._processing: dict[str, str] = {}
        self._passes = 0
        self._mounts: dict[str, int] = {}

    @property
    def is_processing(self) -> bool:
        """Whether the server may still be processing files that were uploaded."""
        return bool(self._processing)

    def forget(self) -> None:
        """Makes the next pass read the folder again, in case that someone else changed it."""
        self._folder = None

    async def run(self) -> Pass:
        """Compares once and applies the differences, several at a time.

        Raises:
            DirectoryUnreadable: the directory cannot be read. Nothing is deleted then.
            NotFound: the folder was deleted.
            MnemeshError: the mesh does not answer. The next pass continues.
        """
        try:
            return await self._run()
        except MnemeshError:
            self.forget()  # The server may have done what it did not acknowledge.
            raise

    async def check_processing(self, *, waits: bool = False) -> None:
        """Reports the uploaded files that the server could not process, and forgets those that it is done with.

        With `waits`, all of them are.
        """
        try:
            async for file in self._mnemesh.files.wait_all(self._processing, timeout=None if waits else 0):
                path = self._processing.pop(file.id, "")
                if file.status == files_pb2.FILE_STATUS_ERROR:
                    self._report(SyncReport(path, "unprocessed", file))
            self._processing.clear()  # What is left was deleted.
        except DeadlineExceeded:
            return  # Others are still being processed.

    async def _run(self) -> Pass:
        began = self._clock()
        found = await asyncio.to_thread(scan, self.root, self.rules, self._mounts)
        if self._folder is None:
            self._folder = await self._list_files()
        folder = self._folder
        settled = {path: state for path, state in found.files.items() if self._settling.is_settled(path, state)}
        missing = {
            path: self._settling.is_settled(path, None)
            for path in folder.from_directories()
            if path not in found.files and not found.may_exist(path)
        }
        await self._hash(settled, found)
        hashes = {path: self._hashes[path][1] for path in settled if path in self._hashes}
        changes = [
            change
            for change in compare(hashes, folder, missing, deletes=self._deletes)
            if not self._was_refused(change, found)
        ]
        result = Pass(
            len(found.files),
            len(changes),
            is_first=self._passes == 0,
            is_settled=len(settled) == len(found.files) and all(missing.values()),
            unreadable=found.unreadable,
            seconds=self._clock() - began,
        )
        await for_each(changes, self._parallel, lambda change: self._apply(change, folder, found))
        self._passes += 1
        self._settling.keep({*found.files, *folder.from_directories()})
        return result

    async def _list_files(self) -> FolderFiles:
        await self._mnemesh.folders.get(self._folder_id)
        return FolderFiles([file async for file in self._mnemesh.files.list(folder_id=self._folder_id)])

    async def _hash(self, files: dict[str, FileState], found: Scan) -> None:
        """Computes the hashes of files that are new or changed. Files that are gone meanwhile are left out."""
        self._hashes = {path: known for path, known in self._hashes.items() if files.get(path, known[0]) == known[0]}
        missing = [path for path in files if path not in self._hashes]

        async def one(path: str) -> None:
            try:
                self._hashes[path] = (files[path], await sha256_of(self.root / path))
            except FileNotFoundError:
                return
            except OSError as error:
                found.unreadable[path] = str(error.strerror)

        await for_each(missing, self._parallel, one)

    def _was_refused(self, change: Change, found: Scan) -> bool:
        state, until = self._refused.get(change.path, (None, 0.0))
        return self._clock() < until and state == found.files.get(change.path)

    async def _apply(self, change: Change, folder: FolderFiles, found: Scan) -> None:
        try:
            if change.action is Action.DELETE:
                await self._delete(change.file, folder)
                self._report(SyncReport(change.path, "deleted", change.file))
                return
            file = (await self._upload(change)).file
            folder.add(file)
            self._processing[file.id] = change.path
            if change.renamed is not None:
                await self._delete(change.renamed, folder)
            done = "renamed" if change.renamed is not None else f"{change.action}d"
            self._report(SyncReport(change.path, done, file))
        except (InvalidArgument, FailedPrecondition, AlreadyExists, Aborted, ResourceExhausted) as error:
            self._refused[change.path] = (found.files.get(change.path), self._clock() + _REFUSED_SECONDS)
            self._report(SyncReport(change.path, "refused", error=error))
        except FileNotFoundError:
            return  # It was deleted meanwhile.
        except OSError as error:
            found.unreadable[change.path] = str(error.strerror)

    async def _upload(self, change: Change) -> files_service_pb2.UploadFileResponse:
        name = folder_name_of(change.path) if change.file is None else change.file.name
        return await self._mnemesh.files.upload(
            self._folder_id,
            self.root / change.path,
            name=name,
            path=change.path,
            on_duplicate="suffix" if change.file is None else "replace",
        )

    async def _delete(self, file: files_pb2.File | None, folder: FolderFiles) -> None:
        if file is not None:
            await self._mnemesh.files.delete(file.id)
            folder.remove(file)
