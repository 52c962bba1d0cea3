"""Which isolation this machine has: user ids, control groups, and what was tried."""

import asyncio
import errno
import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final, Self

from mnemesh_sandbox.inside import descendants, watch
from mnemesh_sandbox.inside import plan as layer
from mnemesh_sandbox.process import EndedProcess, Serve
from mnemesh_sandbox.task import Task

_NAME: Final = "mnemesh-tools-uids"
PARENTS: Final = ("/run", "/var/run", "/dev/shm")  # noqa: S108 - the directory below is checked


class NoUidLeft(Exception):
    """Other executions use every uid of the range, or no directory can hold the claims."""


class UidPool:
    """Allocates uids of a range.

    A lock on a file with the name of the uid claims it. The files are in a directory that only root can enter, so no
    tool can claim a uid; servers on one machine never share one; and the uids of a server that crashes become free.
    """

    def __init__(self, first: int, count: int, parents: tuple[str, ...] = ()) -> None:
        """Claims `count` uids from `first`.

        Args:
            first: The first uid.
            count: The number of uids.
            parents: The directories in which the directory of the claims is created; the first that allows it is used.
        """
        self._range = range(first, first + count)
        self._parents = parents or (*PARENTS, tempfile.gettempdir())
        self._next = 0

    @contextmanager
    def claim(self) -> Iterator[tuple[int, int]]:
        """Yields a uid that no other execution uses until the block ends, and the descriptor that holds the claim.

        A process that inherits the descriptor extends the claim to its own end.

        Raises:
            NoUidLeft: All are in use, or no directory can hold the claims.
        """
        directory = self._directory()
        for offset in range(len(self._range)):
            uid = self._range[(self._next + offset) % len(self._range)]
            file = os.open(directory / str(uid), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                self._next = (self._next + offset + 1) % len(self._range)
                yield uid, file
                return
            finally:
                os.close(file)
        raise NoUidLeft(f"All {len(self._range)} uids from {self._range.start} are in use.")

    def _directory(self) -> Path:
        """Returns the directory of the claims. It belongs to this user, and no one else can enter it."""
        for parent in self._parents:
            path = Path(parent, _NAME)
            try:
                path.mkdir(mode=0o700, exist_ok=True)
                found = path.lstat()
            except OSError:
                continue
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
                return path
        raise NoUidLeft(f"No directory of {', '.join(self._parents)} can hold {_NAME} with mode 0700.")


_CONTROLLERS: Final = ("memory", "pids")
_PREFIX: Final = "mnemesh-run-"
_SERVICE: Final = "mnemesh-service"
_REMOVE_ATTEMPTS: Final = 500
_POLL_SECONDS: Final = 0.01


class NoCgroup(Exception):
    """No cgroup can be created here. The message is the reason."""


@dataclass(slots=True)
class Cgroups:
    """Creates the cgroups of executions below `home`."""

    home: Path
    _created: int = field(default=0, init=False)

    @classmethod
    def open(cls, setting: str, *, process: str = "self") -> Self:
        """Returns the cgroups below the directory that the operator named, or below the service's own cgroup.

        Args:
            setting: A directory of a cgroup without processes; empty for the own cgroup, if systemd delegated it.
            process: The process whose cgroup is the own one.

        Raises:
            NoCgroup: The directory is not a cgroup, or does not have the controllers of memory and processes.
        """
        home = Path(setting) if setting else _delegated(process)
        try:
            available = (home / "cgroup.controllers").read_text().split()
            if not set(_CONTROLLERS) <= set(available):
                raise NoCgroup(f"{home} does not have the controllers memory and pids")
            _enable(home, is_own=not setting)
        except OSError as error:
            raise NoCgroup(f"{home} cannot be used: {error.strerror}") from error
        found = cls(home)
        found._remove_leftovers()
        return found

    @asynccontextmanager
    async def create(self, limits: Mapping[str, str]) -> AsyncIterator[Path]:
        """Yields the directory of a new cgroup, and removes it when its processes have ended, which it makes them do.

        Args:
            limits: The content of each file that sets a limit.

        Raises:
            NoCgroup: It cannot be created.
        """
        self._created += 1
        directory = self.home / f"{_PREFIX}{os.getpid()}-{self._created}"
        try:
            directory.mkdir()
            try:
                for name, text in limits.items():
                    (directory / name).write_text(text)
            except OSError:
                directory.rmdir()
                raise
        except OSError as error:
            raise NoCgroup(f"{directory} cannot be created: {error.strerror}") from error
        try:
            yield directory
        finally:
            await asyncio.shield(_remove(directory))

    def _remove_leftovers(self) -> None:
        """Removes the cgroups of servers that were killed."""
        for directory in self.home.glob(f"{_PREFIX}*"):
            pid = directory.name.removeprefix(_PREFIX).partition("-")[0]
            if pid.isdigit() and not Path("/proc", pid).exists():
                with suppress(OSError):
                    (directory / "cgroup.kill").write_text("1")
                    directory.rmdir()


def limits_of(memory_bytes: int, processes: int) -> dict[str, str]:
    """Returns the limits of a cgroup, for `Cgroups.create`."""
    return {
        "memory.max": str(memory_bytes),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": str(processes),
    }


def was_out_of_memory(directory: Path) -> bool:
    """Returns whether the kernel ended processes of the cgroup because they reached its limit of memory."""
    try:
        lines = (directory / "memory.events").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("oom_kill ") and not line.endswith(" 0") for line in lines)


def _delegated(process: str) -> Path:
    """Returns the cgroup of this process, if systemd delegated it."""
    try:
        own = next(line[3:] for line in Path("/proc", process, "cgroup").read_text().splitlines() if line[:3] == "0::")
        mounts = [line.split() for line in Path("/proc", process, "mountinfo").read_text().splitlines()]
    except (OSError, StopIteration):
        raise NoCgroup("the kernel has no cgroups of version 2") from None
    for words in mounts:
        if words[words.index("-") + 1] == "cgroup2":
            home = Path(words[4], Path(own).relative_to("/") if words[3] == "/" else os.path.relpath(own, words[3]))
            for name in ("user.delegate", "trusted.delegate"):
                with suppress(OSError):
                    if os.getxattr(home, name) == b"1":
                        return home
            raise NoCgroup(f"{home} is not delegated to the service (Delegate=yes of systemd)")
    raise NoCgroup("no cgroups of version 2 are mounted")


def _enable(home: Path, *, is_own: bool) -> None:
    """Enables the controllers for the children of `home`. A cgroup with such children must have no processes."""
    control = home / "cgroup.subtree_control"
    if set(_CONTROLLERS) <= set(control.read_text().split()):
        return
    wanted = " ".join(f"+{name}" for name in _CONTROLLERS)
    try:
        control.write_text(wanted)
    except OSError as error:
        if error.errno != errno.EBUSY or not is_own:
            raise
        if (home / "cgroup.procs").read_text().split() != [str(os.getpid())]:
            raise NoCgroup(f"{home} has other processes than this service") from error
        (home / _SERVICE).mkdir(exist_ok=True)
        (home / _SERVICE / "cgroup.procs").write_text("0")
        control.write_text(wanted)


async def _remove(directory: Path) -> None:
    for _ in range(_REMOVE_ATTEMPTS):
        if _is_removed(directory):
            return
        await asyncio.sleep(_POLL_SECONDS)


def _is_removed(directory: Path) -> bool:
    """Removes the cgroup if it has no processes. Those that were killed leave it a moment later."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        with suppress(OSError):
            (directory / "cgroup.kill").write_text("1")
        return False
    return True


WANTED_AS_ROOT = frozenset(layer.LAYERS) - {layer.USER_NAMESPACE}
WANTED_AS_USER = frozenset(layer.LAYERS) - {layer.OWN_UID}
_NAMESPACES = frozenset(
    {
        layer.PID_NAMESPACE,
        layer.NETWORK_NAMESPACE,
        layer.IPC_NAMESPACE,
        layer.PRIVATE_ROOT,
        layer.PRIVATE_PROC,
    }
)


class Level(IntEnum):
    """The strength of a set of layers. Higher is safer."""

    NONE = 0
    """Tools are not executed."""
    MINIMAL = 1
    """No network and no IPC. Tools share the uid of the server, or read every file that its mode allows."""
    RESTRICTED = 2
    """Also no files of others, and no access to the processes of the server."""
    FULL = 3
    """Separate namespaces for processes, network, IPC and files, and a filter for system calls."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The result of probing a host."""

    layers: frozenset[str]
    missing: Mapping[str, str] = field(default_factory=dict)
    """The layers that the host refused, each with its reason."""
    has_cgroup: bool = False
    """Each execution has a cgroup, which is not a layer: it limits, and hides nothing."""
    network_problem: str | None = None
    """Why no task can have access to the network, although the level is FULL; None if a probe found no problem."""

    @property
    def level(self) -> Level:
        """The highest level whose conditions are all met."""
        layers = self.layers
        apart = layer.OWN_UID in layers or {layer.USER_NAMESPACE, layer.PID_NAMESPACE} <= layers
        if layer.SECCOMP not in layers or not (self.confines_files or layer.OWN_UID in layers):
            return Level.NONE
        if not (self.confines_files and apart):
            return Level.MINIMAL
        return Level.FULL if _NAMESPACES - {layer.PRIVATE_PROC} <= layers else Level.RESTRICTED

    @property
    def confines_files(self) -> bool:
        """Tools read only the system and the interpreter, and write only their own directory."""
        return bool({layer.PRIVATE_ROOT, layer.LANDLOCK} & self.layers)

    @property
    def bounds(self) -> dict[str, str]:
        """How each resource of an execution is bounded on this host."""
        measured = f"measured every {watch.INTERVAL:g} s"
        if layer.PRIVATE_ROOT in self.layers:
            disk = "file system of limited size"
        else:
            disk = measured if self.confines_files else "tools cannot create files"
        if self.has_cgroup:
            return {"memory": "cgroup", "processes": "cgroup", "disk": disk}
        memory = measured if descendants.supported() else "of each process only: the kernel does not list children"
        return {"memory": memory, "processes": "kernel", "disk": disk}


async def probe(
    attempt: Callable[[Collection[str]], Awaitable[tuple[str, str] | None]], wanted: Collection[str] | None = None
) -> Isolation:
    """Tries all wanted layers, and again without each one that the host refuses, until an execution succeeds.

    Args:
        attempt: Executes a trivial tool with these layers. Returns None, or the layer that failed and the reason. The
            name is empty if the failure is not caused by a layer.
        wanted: The layers to try. The default is all that are useful for the uid of this process.
    """
    root = os.geteuid() == 0
    candidates = set(wanted if wanted is not None else WANTED_AS_ROOT if root else WANTED_AS_USER)
    missing: dict[str, str] = {}
    while candidates:
        failed = await attempt(_without_redundant(candidates))
        if failed is None:
            return Isolation(frozenset(_without_redundant(candidates)), missing)
        name, reason = failed
        missing[name or "interpreter"] = reason
        # Without its own uid, the tool of a root server would be root. An unnamed failure names no layer to remove.
        if name not in candidates or (root and name == layer.OWN_UID):
            break
        candidates -= {name, *(_NAMESPACES if name == layer.USER_NAMESPACE else ())}
    return Isolation(frozenset(), missing)


def _without_redundant(layers: Collection[str]) -> set[str]:
    """Returns the layers without Landlock if there is a private root, and without a private /proc if it cannot exist.

    A private /proc needs a private root and a pid namespace.
    """
    kept = set(layers)
    if layer.PRIVATE_ROOT in kept:
        kept -= {layer.LANDLOCK}
    if not {layer.PRIVATE_ROOT, layer.PID_NAMESPACE} <= kept:
        kept -= {layer.PRIVATE_PROC}
    return kept


_GREETING: Final = b"mnemesh"
_SOURCE: Final = """
def probe(port, greeting):
    import os, socket
    reached = []
    proxy = os.environ["https_proxy"].removeprefix("http://").split(":")
    with socket.create_connection((proxy[0], int(proxy[1])), 5) as connection:
        if connection.recv(16).decode() == greeting:
            reached.append("proxy")
    def connects():
        socket.create_connection(("127.0.0.1", port), 5).close()
    for name, attempt in (
        ("the host's loopback", connects),
        ("UDP", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        ("IPv6", lambda: socket.socket(socket.AF_INET6)),
        ("unix sockets", lambda: socket.socket(socket.AF_UNIX)),
        ("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
        ("raw sockets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
        ("vsock", lambda: socket.socket(40)),
    ):
        try:
            attempt()
        except OSError:
            continue
        reached.append(name)
    return ", ".join(reached)
"""


async def greet(listener: socket.socket) -> None:
    """Answers each connection of a task with a greeting."""
    loop = asyncio.get_running_loop()
    while True:
        connection, _ = await loop.sock_accept(listener)
        with connection:
            await loop.sock_sendall(connection, _GREETING)


async def probe_network(run: Callable[[Task, Serve], Awaitable[EndedProcess]]) -> str | None:
    """Returns why tasks must not have access to the network; None if the probe reached its proxy and nothing else.

    Args:
        run: Runs a task with access to the network, which is served.
    """
    with socket.create_server(("127.0.0.1", 0)) as outside:
        arguments = {"port": outside.getsockname()[1], "greeting": _GREETING.decode()}
        try:
            ended = await run(Task(_SOURCE, "probe", arguments), greet)
        except (NoCgroup, NoUidLeft) as error:
            return str(error)
    if ended.refused is not None:
        return ": ".join(ended.refused)
    if b'"text": "proxy"' in ended.result.data:
        return None
    detail = (ended.result.data or ended.stderr.data or str(ended.status).encode()).decode(errors="replace")
    return f"the probe did not reach its proxy alone: {detail[-300:]}"
