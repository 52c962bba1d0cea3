"""Measures the processes and files of a running tool, for the limits that the kernel does not enforce.

The kernel limits each process. The outer process sums over all of them and ends the tool that exceeds a limit.
"""

import contextlib
import os
import signal
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from . import descendants
from .plan import OWN_UID, PRIVATE_ROOT, Plan

INTERVAL = 0.05
_LONGEST_INTERVAL = 0.5
_MAX_DEPTH = 100
_BLOCK = 512
# A process starts with this many slots for descriptors. Each further one can be a socket with full buffers.
_FREE_DESCRIPTORS = 64
_SOCKET_BYTES = 425_984
# The descriptors of so few processes hold little memory.
_FEW_PROCESSES = 3
# The kernel keeps about 200 bytes for each lock.
_MAX_LOCKS = 10_000
_LOCKS_BYTES = 1 << 20
# A process that starts cannot be read for a moment.
_UNREADABLE_TIMES = 5
_KILLED = 1 << (signal.SIGKILL - 1)

MEMORY = "memory"
DISK = "disk"
UNREADABLE = "unreadable"


class Watch:
    """The measurement of one tool. It runs in the outer process, which the tool cannot reach."""

    def __init__(self, plan: Plan, init: int | None = None) -> None:
        """Stores the limits.

        Args:
            plan: The plan of the tool.
            init: Process 1 of the tool's namespace, which holds none of its files and may be unreadable.
        """
        self._init = init
        self._limits = plan.limits
        self._uid = plan.uid if OWN_UID in plan.layers else None
        self._interval = plan.measure_seconds
        # The private root has a file system of limited size; a directory that the task fills does not.
        self._directory = plan.output_directory if PRIVATE_ROOT in plan.layers else plan.work_directory
        self._connects = plan.proxy_fd is not None
        self._next = time.monotonic() + self._interval  # a task that ends sooner costs no measurement
        self._unreadable: dict[int, int] = {}

    @property
    def seconds(self) -> float:
        """The time until the next measurement."""
        return max(0.0, self._next - time.monotonic())

    def exceeded(self) -> str | None:
        """Measures if it is time to; returns the limit that the tool exceeds, or None."""
        if self.seconds > 0:
            return None
        started = time.monotonic()
        try:
            return self._measure()
        finally:
            now = time.monotonic()
            self._next = now + min(_LONGEST_INTERVAL, max(self._interval, 10 * (now - started)))

    def left(self) -> str | None:
        """Returns the limit that the files of an ended tool exceed, or None. It may end between two measurements."""
        if self._directory is None:
            return None
        return DISK if _tree_exceeds(self._directory, self._limits.disk_bytes, self._limits.files) else None

    def _measure(self) -> str | None:
        processes = {pid: _fields(f"/proc/{pid}/status") for pid in descendants.descendants()}
        if _locks(processes.keys()) > _MAX_LOCKS:
            return MEMORY
        started = [pid for pid, status in processes.items() if pid != self._init and self._is_started(status)]
        files = _Files()
        if self._directory is not None or self._connects or len(processes) > _FEW_PROCESSES:
            with _effective_uid(self._uid):
                files = _open_files(started)
        sockets = len(files.sockets) * _SOCKET_BYTES
        if sum(map(_resident, processes.values())) + sockets > self._limits.memory_bytes:
            with _effective_uid(self._uid):
                proportional = sum(_proportional(pid, status) for pid, status in processes.items())
            if proportional + sockets > self._limits.memory_bytes:
                return MEMORY
        # The first thread has ended and others have not: its memory and its descriptors are not shown.
        unreadable = {
            pid for pid, status in processes.items() if b"VmRSS" not in status and status.get(b"Threads", 0) > 1
        }
        unreadable |= files.unreadable
        self._unreadable = {pid: self._unreadable.get(pid, 0) + 1 for pid in unreadable if not _is_ending(pid)}
        if any(times >= _UNREADABLE_TIMES for times in self._unreadable.values()):
            return UNREADABLE
        if self._directory is None:
            return None
        left = self._limits.disk_bytes - files.deleted_bytes
        return DISK if _tree_exceeds(self._directory, left, self._limits.files) else None

    def _is_started(self, status: dict[bytes, int]) -> bool:
        """Returns whether a process has the tool's uid, memory, and descriptors: it is not ending.

        A process that ends loses its memory first, and cannot be read while it closes its files.
        """
        return b"VmRSS" in status and status.get(b"FDSize", 0) > 0 and self._uid in (None, status.get(b"Uid"))


@contextlib.contextmanager
def _effective_uid(uid: int | None) -> Iterator[None]:
    """Runs the block with the tool's uid, which can read /proc of the tool's processes without CAP_SYS_PTRACE.

    The real and the saved uid stay, so the tool cannot signal this process.
    """
    if uid is None:
        yield
        return
    own_uid, own_gid = os.geteuid(), os.getegid()
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(own_uid)
        os.setegid(own_gid)


def _resident(status: dict[bytes, int]) -> int:
    """Returns the bytes of memory of a process, with all that it shares with others."""
    kilobytes = sum(status.get(name, 0) for name in (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE"))
    return 1024 * kilobytes + _socket_bytes(status)


def _proportional(pid: int, status: dict[bytes, int]) -> int:
    """Returns the bytes of memory of a process, with its part of the memory that it shares with others."""
    parts = _fields(f"/proc/{pid}/smaps_rollup")
    if not parts:
        return _resident(status)
    kilobytes = sum(parts.get(name, 0) for name in (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")) + status.get(b"VmPTE", 0)
    return 1024 * kilobytes + _socket_bytes(status)


def _is_ending(pid: int) -> bool:
    """Returns whether every thread of a process has ended or is about to, which takes time on a busy host."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                lines = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        except OSError:
            continue
        if b"VmRSS" in lines and not int(lines.get(b"SigPnd", b"0"), 16) & _KILLED:
            return False
    return True


def _socket_bytes(status: dict[bytes, int]) -> int:
    return max(0, status.get(b"FDSize", 0) - _FREE_DESCRIPTORS) * _SOCKET_BYTES


def _fields(path: str) -> dict[bytes, int]:
    """Returns the numbers of a file with lines like `Name: 12 kB`; none if the process has ended."""
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    found: dict[bytes, int] = {}
    for line in lines:
        name, _, text = line.partition(b":")
        words = text.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found


@dataclass
class _Files:
    """The open files of processes."""

    deleted_bytes: int = 0
    """The size of deleted files that are still in use."""
    sockets: set[str] = field(default_factory=set)
    """The names of all sockets, each once."""
    unreadable: set[int] = field(default_factory=set)
    """The processes that cannot be read."""


def _open_files(pids: Collection[int]) -> _Files:
    found = _Files()
    deleted: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:"):
                    found.sockets.add(target)
                elif target.endswith(" (deleted)"):
                    file = os.stat(f"/proc/{pid}/fd/{name}")
                    if stat.S_ISREG(file.st_mode) and file.st_nlink == 0:
                        deleted[file.st_dev, file.st_ino] = file.st_blocks * _BLOCK
            with open(f"/proc/{pid}/maps", "rb") as maps:
                for line in maps:
                    if line.endswith(b"(deleted)\n"):
                        start, _, end = line.split(maxsplit=1)[0].partition(b"-")
                        key = (-1, int(line.split(maxsplit=5)[4]))
                        deleted[key] = deleted.get(key, 0) + int(end, 16) - int(start, 16)
        except PermissionError:
            found.unreadable.add(pid)
        except OSError:
            continue  # the process or the descriptor is gone
    found.deleted_bytes = sum(deleted.values())
    return found


def _locks(pids: Collection[int]) -> int:
    """Returns how many locks on files these processes hold, of those at the beginning of the list."""
    try:
        with open("/proc/locks", "rb") as file:
            lines = file.read(_LOCKS_BYTES).replace(b"-> ", b"").splitlines()
    except OSError:
        return 0
    known = {b"%d" % pid for pid in pids}
    return sum(1 for line in lines if len(words := line.split(maxsplit=5)) == 6 and words[4] in known)


def _tree_exceeds(directory: str, max_bytes: int, max_files: int) -> bool:
    """Returns whether a directory has more bytes or files than this, or is nested too deeply to be measured."""
    left = [max_bytes, max_files]

    def visit(parent: int, depth: int) -> bool:
        with os.scandir(parent) as entries:
            for entry in entries:
                try:
                    found = os.stat(entry.name, dir_fd=parent, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                left[0] -= found.st_blocks * _BLOCK
                left[1] -= 1
                if min(left) < 0 or (stat.S_ISDIR(found.st_mode) and enter(entry.name, parent, depth + 1)):
                    return True
        return min(left) < 0

    def enter(name: str, parent: int | None, depth: int) -> bool:
        try:
            child = open_directory(name, parent)
        except OSError:
            return False  # removed or replaced in the meantime
        try:
            return depth > _MAX_DEPTH or visit(child, depth)
        except FileNotFoundError:
            return False
        finally:
            os.close(child)

    return enter(directory, None, 0)


def open_directory(name: str, parent: int | None = None) -> int:
    """Opens a directory, also if its owner has revoked the permissions. Does not follow a symbolic link."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags | os.O_RDONLY, dir_fd=parent)
    except PermissionError:
        # By its descriptor, because a running tool can replace the name.
        found = os.open(name, flags | os.O_PATH, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{found}", stat.S_IRWXU)
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            os.close(found)
