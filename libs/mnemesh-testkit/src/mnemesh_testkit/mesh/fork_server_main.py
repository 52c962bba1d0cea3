"""Forks rooms: a process that has imported all of them, so that one starts within a tenth of a second.

Run as a module. Reads a line of JSON for each process to be started, and writes a line when it is there (its process
id) and when it has ended (its process id and its exit code, or the negative number of the signal that ended it).
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
from importlib import import_module
from typing import Any, Final

from mnemesh_kit.services import SERVICE_NAMES

_PR_SET_PDEATHSIG: Final = 1
_IMPORTED: Final = (
    *(f"mnemesh_{room}.{module}" for room in SERVICE_NAMES for module in ("main", "wiring")),
    # What rooms import when they first need it.
    "alembic.command",
    "anyio._backends._asyncio",
    "mnemesh_kit.sql.sqlite",
    "mnemesh_kit.sql.migrations",
    "mnemesh_orchestrator.llm.openai_chat.client",
    "mnemesh_retrieval.edge",
    "mnemesh_retrieval.embedders.hashing",
    "mnemesh_testkit.failpoints.observer",
    "httpcore2",
    "openai.resources.chat",
    "openai.resources.models",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "truststore",
)


def main() -> int:
    """Serves until its input ends; in a process that it forked, does what the room does."""
    for module in _IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()
    waking, woken = socket.socketpair()
    for end in (waking, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    orders = os.fdopen(0, "rb", buffering=0, closefd=False)
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    read = b""
    while True:
        for key, _ in selector.select():
            if key.fileobj is woken:
                woken.recv(4096)
                _tell_ended()
                continue
            piece = orders.read(65536)
            if not piece:
                return 0
            *lines, read = (read + piece).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if not pid:
                    return _become(order)
                _tell(pid=pid)


def _become(order: dict[str, Any]) -> int:
    """The life of a room, in the process that was made for it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        (2, order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [order["room"]]
    directory = os.environ.get("TESTKIT_POINTS")
    if directory is not None:
        import_module("mnemesh_testkit.failpoints.observer").watch(directory, order["name"])
    code: int = import_module(f"mnemesh_{order['room']}.main").main()
    return code


def _tell_ended() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _tell(pid=pid, code=os.waitstatus_to_exitcode(status))


def _tell(**fact: int) -> None:
    os.write(1, json.dumps(fact).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
