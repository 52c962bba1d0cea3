"""The program of the fork server: imports all services once and forks a process from itself for each one to start.

Run as a module. Reads one line of JSON for each process to start. Writes a line when the process runs (its id) and one
when it has ended (its id, and its exit code or the negative number of the signal that ended it).
"""

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import Any, Final, NoReturn

from mnemesh_cli.supervisor import one_process
from mnemesh_kit.services import MESH, SERVICE_NAMES

_PR_SET_PDEATHSIG: Final = 1
_IMPORTED: Final = (
    *(f"mnemesh_{service}.{module}" for service in SERVICE_NAMES for module in ("main", "wiring")),
    # Modules that services import on first use.
    "alembic.command",
    "anyio._backends._asyncio",
    "mnemesh_kit.sql.sqlite",
    "mnemesh_kit.sql.database",
    "mnemesh_kit.sql.postgres_engine",
    "mnemesh_orchestrator.llm.openai_chat",
    "mnemesh_retrieval.edge",
    "mnemesh_retrieval.embedders.built_in",
    "mnemesh_testkit.failpoints.kill_observer",
    "httpcore2",
    "openai.resources.chat",
    "openai.resources.models",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "truststore",
)


def main() -> int:
    """Serves until its input ends; in a forked process, runs the service."""
    for module in _IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()
    writer, reader = socket.socketpair()
    for end in (writer, reader):
        end.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    orders = os.fdopen(0, "rb", buffering=0, closefd=False)
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    selector.register(reader, selectors.EVENT_READ)
    pending = b""
    while True:
        for key, _ in selector.select():
            if key.fileobj is reader:
                reader.recv(4096)
                _report_ended()
                continue
            piece = orders.read(65536)
            if not piece:
                return 0
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if not pid:
                    _run_and_exit(order)
                _report(pid=pid)


def _run_and_exit(order: dict[str, Any]) -> NoReturn:
    """Runs a service and ends the process at once.

    The interpreter's own end would visit and copy all objects that the process shares with the fork server: it takes
    as much time as the start of the service.
    """
    code = 1
    try:
        code = _run_service(order)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_service(order: dict[str, Any]) -> int:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    signal.set_wakeup_fd(-1)
    for received in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(received, signal.SIG_DFL)
    # A background job of a shell, as a test run may be, starts with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
    sys.argv = [order["service"]]
    directory = os.environ.get("TESTKIT_FAILPOINTS")
    if directory is not None:
        import_module("mnemesh_testkit.failpoints.kill_observer").observe(directory, order["name"])
    if order["service"] == MESH:
        return one_process.main(order["services"])
    code: int = import_module(f"mnemesh_{order['service']}.main").main()
    return code


def _report_ended() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _report(pid=pid, code=os.waitstatus_to_exitcode(status))


def _report(**fields: int) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    os._exit(main())
