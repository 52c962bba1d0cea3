"""All services of a mesh: started together, brought back when one dies, stopped in order."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from mnemesh_kit.config import StartupError

from mnemesh_client.supervisor import health
from mnemesh_client.supervisor.config import ROOMS, MeshConfig, module_of, service_environment
from mnemesh_client.supervisor.data_lock import DataDirectoryLock, PortTaken, require_free_ports
from mnemesh_client.supervisor.process import ServiceProcess

_FIRST_WAIT: Final = 0.25
_LONGEST_WAIT: Final = 30.0
_STEADY_SECONDS: Final = 60.0
_PORT_PATIENCE: Final = 1.0

Say = Callable[[str], None]


class Supervisor:
    """The supervisor's hold on its services."""

    def __init__(self, config: MeshConfig, say: Say, rooms: Sequence[str] = ROOMS) -> None:
        """Prepares a mesh; nothing starts before `start`. `say` gets one line at a time for whoever watches."""
        self.config = config
        self._say = say
        self._rooms = rooms
        self._instance: DataDirectoryLock | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self.services: dict[str, ServiceProcess] = {}

    async def start(self) -> None:
        """Starts all services at once and returns when each of them answers.

        Raises:
            StartupError: with the one line that says why it cannot be; nothing is left running.
        """
        self._instance = DataDirectoryLock.claim(self.config.data_path)
        try:
            await self._free_ports()
            self._say(f"starting; data and logs in {self.config.data_path}")
            modules = {room: module_of(room) for room in self._rooms}
            environment = service_environment(self.config)
            for room, module in modules.items():
                log = self.config.data_path / "logs" / f"{room}.log"
                self.services[room] = ServiceProcess(room, ("-P", "-m", module), environment, log)
            await self._first_start()
        except BaseException:
            await self.stop()
            raise
        self._keepers = [asyncio.create_task(self._keep(service)) for service in self.services.values()]

    def declare_ready(self) -> None:
        """Tells who looks at the data directory that the mesh answers."""
        if self._instance is not None:
            self._instance.tell(ready=True)

    async def stop(self) -> None:
        """Stops the orchestrator, then the rooms that it calls; returns when no process is left."""
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []
        first, *others = self.services.values() or [None]
        if first is not None:
            await self._end(first)
        await asyncio.gather(*(self._end(service) for service in others if service is not None))
        self.services = {}
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.release()

    def kill(self) -> None:
        """Ends every service at once, for whoever cannot wait for `stop`."""
        for service in self.services.values():
            service.kill()

    async def _free_ports(self) -> None:
        """Refuses taken ports, after a moment for those of processes that are just ending."""
        deadline = time.monotonic() + _PORT_PATIENCE
        while True:
            try:
                return require_free_ports(self.config)
            except PortTaken:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def _first_start(self) -> None:
        for service in self.services.values():
            await service.start()
        tasks = [asyncio.create_task(self._ready(service)) for service in self.services.values()]
        try:
            done, pending = await asyncio.wait(
                tasks, timeout=self.config.start_seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            if pending:
                late = [room for room, task in zip(self.services, tasks, strict=True) if task in pending]
                raise StartupError(
                    f"Not ready after {self.config.start_seconds:.0f} s: {', '.join(late)}; "
                    f"see {self.config.data_path / 'logs'}."
                )
        finally:
            for task in tasks:
                task.cancel()

    async def _ready(self, service: ServiceProcess) -> None:
        """Waits until the service answers; StartupError where it ends before."""
        ended = asyncio.create_task(service.wait())
        serving = asyncio.create_task(health.wait_until_serving(self.config.address(service.room)))
        try:
            await asyncio.wait((ended, serving), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                reason = f"{service.room} {_how(ended.result())} while starting; see {service.log}."
                raise StartupError(service.last_words() or reason)
            await serving
        finally:
            ended.cancel()
            serving.cancel()

    async def _keep(self, service: ServiceProcess) -> None:
        """Brings the service back whenever it ends, after a pause that grows while it keeps ending."""
        wait, since = _FIRST_WAIT, time.monotonic()
        while True:
            code = await service.wait()
            if time.monotonic() - since > _STEADY_SECONDS:
                wait = _FIRST_WAIT
            why = (service.last_words() or f"see {service.log}") if code > 0 else None
            self._say(f"{service.room} {_how(code)}{f' ({why})' if why else ''}; starting it again")
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)
            await service.start()
            since = time.monotonic()
            try:
                await self._ready(service)
                self._say(f"{service.room} is back")
            except StartupError:
                continue

    async def _end(self, service: ServiceProcess) -> None:
        if not await service.stop(self.config.stop_seconds):
            self._say(f"{service.room} did not end within {self.config.stop_seconds:.0f} s and was killed")


def _how(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
