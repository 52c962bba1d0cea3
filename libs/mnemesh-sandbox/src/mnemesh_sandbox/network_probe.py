"""The probe of a task's network: it reaches its proxy, and nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from mnemesh_sandbox.cgroups import NoCgroup
from mnemesh_sandbox.process import EndedProcess, Serve
from mnemesh_sandbox.task import Task
from mnemesh_sandbox.uids import NoUidLeft

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
