"""The isolation that this host supports, found by trying it: the layers, their level, and the network of tasks."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from mnemesh_sandbox.cgroups import NoCgroup
from mnemesh_sandbox.inside import descendants, watch
from mnemesh_sandbox.inside import plan as layer
from mnemesh_sandbox.process import EndedProcess, Serve
from mnemesh_sandbox.task import Task
from mnemesh_sandbox.uids import NoUidLeft

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
