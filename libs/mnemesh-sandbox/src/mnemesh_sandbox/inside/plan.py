"""The plan of one sandbox process: its layers, limits and paths. The server passes it as JSON on the command line."""

import json
from dataclasses import asdict, dataclass, field

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
# Also visible for a tool with network access: the certificates of authorities, by distribution.
CERTIFICATE_DIRECTORIES = ("/etc/ssl/certs", "/etc/pki", "/etc/ca-certificates")
# The directory that a task fills for the server, in its private root.
OUTPUT_DIRECTORY = "/tmp/output"  # noqa: S108
# The proxy of a tool with network access, in its network namespace.
PROXY_ADDRESS, PROXY_PORT = "127.0.0.1", 3128
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
    proxy_fd: int | None = None
    """The socket on which the server expects a listener, for a tool with network access."""
    package_directories: list[str] = field(default_factory=list)
    """Directories of packages, which the tool can import."""
    programs: list[str] = field(default_factory=list)
    """Files of the host that are visible at their paths, in addition to those of the system."""
    node: str | None = None
    """The path of Node, which executes the task; None if Python does."""
    waits: bool = False
    """The process is started before its task is known."""
    calls_fd: int | None = None
    """The pipe to which a program writes its calls of tools."""
    replies_fd: int | None = None
    """The pipe from which it reads the answers."""
    output_directory: str | None = None
    """A directory of the host that the task fills, at OUTPUT_DIRECTORY. It needs a private root."""
    input_fd: int | None = None
    """The standard input of the task, once it is read."""
    starts_node: bool = False
    """The task becomes a program in Node."""
    measure_seconds: float = 0.05
    """The time between two measurements of the task."""
    is_confined: bool = True
    """False: no limits and no layers; only the end of all its processes is sure."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        raw = json.loads(text)
        return cls(**{**raw, "limits": Limits(**raw["limits"])})


class LayerFailed(Exception):
    """The host refuses a layer of the plan."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"{layer}: {reason}")
        self.layer = layer
        self.reason = reason
