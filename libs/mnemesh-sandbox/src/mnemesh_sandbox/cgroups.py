"""A cgroup of version 2 for each execution: the kernel bounds the memory and the number of all its processes together.

A cgroup must be delegated to the service: by systemd (`Delegate=yes`), or by the operator, who names one in a setting.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

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
