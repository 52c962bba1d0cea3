"""The private root of a sandbox: a read-only view of the system and the interpreter, and a /tmp of limited size."""

import os
import re

from . import linux
from .plan import (
    CERTIFICATE_DIRECTORIES,
    DEVICES,
    OUTPUT_DIRECTORY,
    PRIVATE_PROC,
    PRIVATE_ROOT,
    SYSTEM_DIRECTORIES,
    SYSTEM_FILES,
    LayerFailed,
    Plan,
)

WORK_DIRECTORY = "/tmp/work"  # noqa: S108 - in the private root, on a file system of limited size
SHARED_MEMORY_BYTES = 8 * 1024 * 1024
# The flags that a remount must keep, by their name in statvfs.
_KEPT_FLAGS = {os.ST_NOSUID: 2, os.ST_NODEV: 4, os.ST_NOEXEC: 8, os.ST_NOATIME: 1024, os.ST_NODIRATIME: 2048}


def enter(plan: Plan) -> None:
    """Moves this process into a new mount namespace with a new root.

    Raises:
        LayerFailed: The host refuses the layer.
    """
    try:
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS)
        linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
        visible = _visible_paths(plan)
        mounts = _mounts()
        # A file system on /tmp contains the old root and the new one until the new one is complete.
        linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")  # noqa: S108
        links = {path: os.readlink(path) for path in SYSTEM_DIRECTORIES if os.path.islink(path)}
        os.mkdir("/tmp/new")  # noqa: S108
        os.mkdir("/tmp/old")  # noqa: S108
        linux.pivot_root("/tmp", "/tmp/old")  # noqa: S108
        os.chdir("/")
        linux.mount("tmpfs", "/new", "tmpfs", linux.MS_NOSUID, "mode=755,size=1m")
        # These are mounted before the paths of the host, because the interpreter can be installed below them.
        _work_directory(plan)
        _output_directory(plan)
        _shared_memory()
        for path, source in visible.items():
            _bind(f"/old{source}", f"/new{path}")
            for mount in mounts:
                if mount.startswith(f"{source}/"):
                    _restrict_nested(f"/new{path}{mount.removeprefix(source)}")
        for path, target in links.items():
            if not os.path.lexists(f"/new{path}"):
                os.symlink(target, f"/new{path}")
        _devices()
    except OSError as error:
        raise LayerFailed(PRIVATE_ROOT, str(error)) from error
    if PRIVATE_PROC in plan.layers:
        _proc()
    try:
        _leave_old_root()
    except OSError as error:
        raise LayerFailed(PRIVATE_ROOT, str(error)) from error


def _visible_paths(plan: Plan) -> dict[str, str]:
    """Returns the paths of the host that the sandbox sees, none within another, each with its real path."""
    directories = [path for path in SYSTEM_DIRECTORIES if not os.path.islink(path)]
    certificates = () if plan.proxy_fd is None else CERTIFICATE_DIRECTORIES
    visible: dict[str, str] = {}
    own = (*plan.python_directories, *plan.package_directories, *plan.programs)
    for path in sorted({*directories, *SYSTEM_FILES, *DEVICES, *certificates, *own}):
        if os.path.exists(path) and not any(path.startswith(f"{other}/") for other in visible):
            visible[path] = os.path.realpath(path)
    return visible


def _bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    linux.mount(source, target, None, linux.MS_BIND | linux.MS_REC)
    _restrict(target)


def _restrict_nested(target: str) -> None:
    """Makes a mount read-only that came with the directory above it. One that another mount hides is out of reach."""
    try:
        _restrict(target)
    except OSError:
        if os.path.exists(target) and not os.statvfs(target).f_flag & os.ST_RDONLY:
            raise


def _mounts() -> list[str]:
    """Returns the mount points of this namespace."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split(" ", 5)[4] for line in file]
    return [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point) for point in points]


def _restrict(target: str) -> None:
    """Makes a mount read-only, and takes setuid programs and devices from it."""
    present = os.statvfs(target).f_flag
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID
    if target.removeprefix("/new") not in DEVICES:
        flags |= linux.MS_NODEV
    linux.mount(None, target, None, flags | sum(flag for name, flag in _KEPT_FLAGS.items() if present & name))


def _work_directory(plan: Plan) -> None:
    os.mkdir("/new/tmp")
    options = f"mode=1777,size={plan.limits.disk_bytes},nr_inodes={plan.limits.files}"
    linux.mount("tmpfs", "/new/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    os.mkdir(f"/new{WORK_DIRECTORY}")
    os.chmod(f"/new{WORK_DIRECTORY}", 0o777)  # noqa: S103 - only the tool uses it, under its own uid


def _output_directory(plan: Plan) -> None:
    if plan.output_directory is not None:
        os.mkdir(f"/new{OUTPUT_DIRECTORY}")
        linux.mount(f"/old{plan.output_directory}", f"/new{OUTPUT_DIRECTORY}", None, linux.MS_BIND)
        flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_NOSUID | linux.MS_NODEV
        linux.mount(None, f"/new{OUTPUT_DIRECTORY}", None, flags)


def _shared_memory() -> None:
    os.makedirs("/new/dev/shm")
    shared = f"mode=1777,size={SHARED_MEMORY_BYTES},nr_inodes=256"
    linux.mount("tmpfs", "/new/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, shared)


def _devices() -> None:
    os.mkdir("/new/proc")
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"/new/dev/{name}")


def _proc() -> None:
    try:
        # Read-only, because the owner of a process can make the kernel prefer another one when memory runs out.
        flags = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        linux.mount("proc", "/new/proc", "proc", flags)
    except OSError as error:
        raise LayerFailed(PRIVATE_PROC, str(error)) from error


def _leave_old_root() -> None:
    linux.unmount("/old")
    os.chdir("/new")
    linux.pivot_root(".", ".")
    linux.unmount(".")
    os.chdir("/")
    linux.mount(None, "/", None, linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV)
