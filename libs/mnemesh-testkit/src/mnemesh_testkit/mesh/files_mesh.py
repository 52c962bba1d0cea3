"""The services files and archival in this process, with a proxy in front of the first."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from mnemesh_archival.config import Config as ArchivalConfig
from mnemesh_archival.wiring import assemble as assemble_archival
from mnemesh_client import Mnemesh
from mnemesh_files.config import Config as FilesConfig
from mnemesh_files.wiring import assemble as assemble_files
from mnemesh_kit.server import RunningServer

from mnemesh_testkit.mesh.faulty_proxy import FaultyProxy
from mnemesh_testkit.mesh.in_process import EMBEDDER
from mnemesh_testkit.mesh.reserved_ports import ReservedPort


class FilesMesh:
    """An async context manager. `client` calls the files service, whose `settings` are given, through `proxy`."""

    def __init__(self, directory: Path, *, patience: float = 60.0, **settings: Any) -> None:
        self._port = ReservedPort()
        self._shared: dict[str, Any] = {"data_dir": str(directory), "shutdown_grace_seconds": 0.2}
        self._patience = patience
        self._settings = settings
        self._archival, self._files = RunningServer(), RunningServer()
        self._exits = AsyncExitStack()
        self.proxy = FaultyProxy(self._port.address)

    async def __aenter__(self) -> Self:
        """Starts the services."""
        config = ArchivalConfig(port=0, embedder=EMBEDDER, **self._shared)
        self._archival_address = await self._archival.start(await assemble_archival(config), config)
        await self.start()
        await self._exits.enter_async_context(self.proxy)
        self.client = await self._exits.enter_async_context(Mnemesh(files=self.proxy.address, patience=self._patience))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops the services."""
        await self._exits.aclose()
        await self._files.stop()
        await self._archival.stop()
        self._port.release()

    async def start(self) -> None:
        """Starts the files service, on the same port and store as before."""
        config = FilesConfig(
            port=self._port.number, archival_target=self._archival_address, **self._shared, **self._settings
        )
        self._files = RunningServer()
        await self._files.start(await assemble_files(config), config)

    async def stop(self) -> None:
        """Stops the files service."""
        await self._files.stop()
