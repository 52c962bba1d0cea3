"""Services as processes that are forked from one which has imported them: a tenth of the usual start time."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Final, Self

from mnemesh_cli.supervisor import process as supervisor_process

_LAUNCH: Final = str(Path(supervisor_process.__file__).with_name("launch.py"))


class ForkServer:
    """The process that forks the services of all meshes of a test process; a context manager.

    The services end with it, and it ends with this process.
    """

    def __init__(self, log: Path, packages: Path | None = None) -> None:
        """Prepares it.

        Args:
            log: receives its own output.
            packages: a directory whose packages replace the installed ones.
        """
        self._log = log
        self._packages = {} if packages is None else {"PYTHONPATH": str(packages)}
        self._starting: deque[Future[int]] = deque()
        self._ended: dict[int, Future[int]] = {}

    def __enter__(self) -> Self:
        """Starts it. It accepts orders while it imports."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), "-m", "mnemesh_testkit.mesh.fork_server_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Forked processes would lack the threads that a library has started in the forking one.
                env={
                    **os.environ,
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                    "TOKENIZERS_PARALLELISM": "0",
                    **self._packages,
                },
                start_new_session=True,
            )
        self._reader = Thread(target=self._read, name="fork-server")
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kills it; the kernel then kills every process that it has forked."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join()

    async def fork(
        self, name: str, service: str, services: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> tuple[int, Future[int]]:
        """Starts the process of a service, or of several. Returns its id and the future of its exit code."""
        assert self._process.stdin is not None
        starting: Future[int] = Future()
        self._starting.append(starting)
        order = {
            "name": name,
            "service": service,
            "services": services,
            "environment": dict(environment),
            "log": str(log),
        }
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        pid = await asyncio.shield(asyncio.wrap_future(starting))
        return pid, self._ended[pid]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as reports:
            for line in reports:
                report = json.loads(line)
                if "code" in report:
                    self._ended[report["pid"]].set_result(report["code"])
                else:
                    self._ended[report["pid"]] = Future()
                    self._starting.popleft().set_result(report["pid"])
        for starting in self._starting:
            starting.set_exception(RuntimeError(f"the fork server has ended: {self._log.read_text(errors='replace')}"))


class ForkedService:
    """The process of one service, with the methods of the supervisor's `ServiceProcess`."""

    def __init__(
        self,
        server: ForkServer,
        name: str,
        service: str,
        environment: Mapping[str, str],
        log: Path,
        services: Sequence[str],
    ) -> None:
        """Prepares the process."""
        self._services = services
        self.service = service
        self.log = log
        self._server = server
        self._name = name
        self._environment = environment
        self._pid: int | None = None
        self._ended: Future[int] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the running process; None while it does not run."""
        return self._pid if self._ended is not None and not self._ended.done() else None

    async def start(self) -> None:
        """Starts the process; its output is appended to the log."""
        self._pid, self._ended = await self._server.fork(
            self._name, self.service, self._services, self._environment, self.log
        )

    async def wait(self) -> int:
        """Waits for the end of the process. Returns its exit code, or the negative number of the signal."""
        assert self._ended is not None, "a service must be started before it is awaited"
        return await asyncio.shield(asyncio.wrap_future(self._ended))

    async def stop(self, seconds: float) -> bool:
        """Sends SIGTERM, and SIGKILL after `seconds`. Returns whether the process ended by itself."""
        if self.pid is None:
            return True
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.wait(), seconds)
        except TimeoutError:
            self.kill()
            await self.wait()
            return False
        return True

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)
