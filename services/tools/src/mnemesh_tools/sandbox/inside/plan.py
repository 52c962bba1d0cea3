"""The plan of one sandbox process: its layers, limits and paths. The server passes it as JSON on the command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

# The layers of isolation. `LAYERS` has the order in which they are applied.
OWN_UID = "own_uid"
USER_NAMESPACE = "user_namespace"
PID_NAMESPACE = "pid_namespace"
NETWORK_NAMESPACE = "network_namespace"
IPC_NAMESPACE = "ipc_namespace"
PRIVATE_ROOT = "private_root"
PRIVATE_PROC = "private_proc"
LANDLOCK = "landlock"
SECCOMP = "seccomp"
# Not a layer: it limits the tool and hides nothing from it.
CGROUP = "cgroup"
LAYERS = (
    USER_NAMESPACE,
    PID_NAMESPACE,
    NETWORK_NAMESPACE,
    IPC_NAMESPACE,
    PRIVATE_ROOT,
    PRIVATE_PROC,
    OWN_UID,
    LANDLOCK,
    SECCOMP,
)

# The files of the host that a private root contains, all read-only.
SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types")
# Without /dev/zero: a shared mapping of it is memory that no measurement of a process shows.
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class Limits:
    """The limits of every process in the sandbox, and of the sandbox as a whole if a layer allows it."""

    cpu_seconds: int
    memory_bytes: int
    processes: int
    open_files: int
    disk_bytes: int
    files: int
    output_chars: int


@dataclass(frozen=True)
class Plan:
    """The configuration of one sandbox process."""

    layers: list[str]
    limits: Limits
    uid: int
    parent_pid: int
    python_directories: list[str]
    result_fd: int
    report_fd: int
    claim_fd: int | None = None
    """The lock on the uid, which the outer process holds until no process of the tool is left."""
    work_directory: str | None = None
    cgroup: str | None = None
    """The directory of the cgroup of all processes of the tool."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        raw = json.loads(text)
        return cls(**{**raw, "limits": Limits(**raw["limits"])})


class LayerFailed(Exception):
    """The host refuses a layer of the plan."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"{layer}: {reason}")
        self.layer = layer
        self.reason = reason
