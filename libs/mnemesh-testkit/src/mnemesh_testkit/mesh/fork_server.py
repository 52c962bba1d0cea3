"""Rooms that are forked from a process which has imported them: what `Service` is, at a tenth of its start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Final, Self

from mnemesh_client.supervisor import process

_LAUNCH: Final = str(Path(process.__file__).with_name("launch.py"))


class ForkServer:
    """The process that forks rooms, for all meshes of a test process; a context manager.

    The rooms end with it, and it ends with this process.
    """

    def __init__(self, log: Path) -> None:
        """Describes it; what it has to say of itself goes into `log`."""
        self._log = log
        self._started: deque[Future[int]] = deque()
        self._ended: dict[int, Future[int]] = {}

    def __enter__(self) -> Self:
        """Starts it; it takes orders while it imports."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), "-m", "mnemesh_testkit.mesh.fork_server_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # A thread of a library in the process that forks would be missing in those that it makes.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "0"},
                start_new_session=True,
            )
        self._reading = Thread(target=self._read, name="fork-server")
        self._reading.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it, and with it whatever it has forked."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reading.join()

    async def fork(self, name: str, room: str, environment: Mapping[str, str], log: Path) -> tuple[int, Future[int]]:
        """Makes the process of a room; its id, and the future of its exit code."""
        assert self._process.stdin is not None
        started: Future[int] = Future()
        self._started.append(started)
        order = {"name": name, "room": room, "environment": dict(environment), "log": str(log)}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        pid = await asyncio.shield(asyncio.wrap_future(started))
        return pid, self._ended[pid]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as told:
            for line in told:
                fact = json.loads(line)
                if "code" in fact:
                    self._ended[fact["pid"]].set_result(fact["code"])
                else:
                    self._ended[fact["pid"]] = Future()
                    self._started.popleft().set_result(fact["pid"])
        for started in self._started:
            started.set_exception(RuntimeError(f"the fork server has ended: {self._log.read_text(errors='replace')}"))


class ForkedService:
    """The process of one room, as `Service` has it."""

    def __init__(self, server: ForkServer, name: str, room: str, environment: Mapping[str, str], log: Path) -> None:
        """Describes the process."""
        self.room = room
        self.log = log
        self._server = server
        self._name = name
        self._environment = environment
        self._pid: int | None = None
        self._ended: Future[int] | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._pid if self._ended is not None and not self._ended.done() else None

    async def start(self) -> None:
        """Starts the process; its output is appended to the log."""
        self._pid, self._ended = await self._server.fork(self._name, self.room, self._environment, self.log)

    async def wait(self) -> int:
        """Waits for the end of the process; its exit code, or the negative number of the signal that ended it."""
        assert self._ended is not None, "a service is started before it is waited for"
        return await asyncio.shield(asyncio.wrap_future(self._ended))

    async def stop(self, seconds: float) -> bool:
        """Asks the process to end, and kills it when it has not after `seconds`; whether it ended by itself."""
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
        """Ends the process at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)
