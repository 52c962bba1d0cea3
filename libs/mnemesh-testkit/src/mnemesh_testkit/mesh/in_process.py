"""The whole mesh in this process: the real wiring of every room, on free loopback ports, over embedded stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Final, Self

from mnemesh_client import Mnemesh
from mnemesh_kit.channels import Channels
from mnemesh_kit.clock import Clock
from mnemesh_kit.ids import IdSource
from mnemesh_kit.server import RunningServer
from mnemesh_kit.services import SERVICE_NAMES

from mnemesh_testkit.mesh.faulty_proxy import FaultyProxy
from mnemesh_testkit.mesh.reserved_ports import ReservedPort
from mnemesh_testkit.mesh.stubs import Stubs

EMBEDDER: Final = "mnemesh/hashing-256"
"""Quick, and finds what shares words."""
REHEARSAL: Final = "mnemesh/rehearsal"

Settings = Mapping[str, Mapping[str, Any]]


class Mesh:
    """Five rooms, wired to each other; an async context manager.

    ```python
    async with Mesh(tmp_path, openai_base_url=fake.base_url) as mesh:
        agent = await mesh.client.agents.create(model="openai/fake-model")
        await mesh.restart("recall")
    ```

    Args:
        directory: of the stores; a second mesh on it finds what the first one stored.
        openai_base_url: of a fake OpenAI; None leaves the provider unconfigured.
        anthropic_base_url: of a fake Anthropic, likewise.
        model: what an agent gets that names none.
        embedder: of recall and archival.
        clock: of every room; None is the system's.
        ids: of every room; None is random.
        settings: room → fields of its Config, laid over everything else.
        proxied: rooms that are reached through a `FaultyProxy` in `mesh.proxies`, by the other rooms and by clients.
    """

    def __init__(
        self,
        directory: Path,
        *,
        openai_base_url: str | None = None,
        anthropic_base_url: str | None = None,
        model: str = REHEARSAL,
        embedder: str = EMBEDDER,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        settings: Settings | None = None,
        proxied: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self._given: dict[str, Any] = {"clock": clock, "ids": ids}
        self._ports = {room: ReservedPort() for room in SERVICE_NAMES}
        self.proxies = {room: FaultyProxy(self._ports[room].address) for room in proxied}
        self.addresses = {
            room: self.proxies[room].address if room in self.proxies else port.address
            for room, port in self._ports.items()
        }
        shared = {"data_dir": str(directory), "shutdown_grace_seconds": 0.5}
        self._settings = {room: {**shared, "port": self._ports[room].number} for room in SERVICE_NAMES}
        self._settings["recall"]["embedder"] = self._settings["archival"]["embedder"] = embedder
        self._settings["orchestrator"] |= {
            **{f"{room}_target": self.addresses[room] for room in SERVICE_NAMES if room != "orchestrator"},
            **_provider("openai", openai_base_url),
            **_provider("anthropic", anthropic_base_url),
            "model": model,
            "embedder": embedder,
        }
        for room, fields in (settings or {}).items():
            self._settings[room] |= fields
        self._running: dict[str, RunningServer] = {}
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Starts every room, and the proxies before them."""
        try:
            for proxy in self.proxies.values():
                await self._exits.enter_async_context(proxy)
            for room in reversed(SERVICE_NAMES):
                await self.start(room)
        except BaseException:
            await self.__aexit__()
            raise
        self.stubs, self.client = await connected(self.addresses, self._exits)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the clients, stops the rooms, gives the ports back."""
        await self._exits.aclose()
        for room in reversed(tuple(self._running)):
            await self.stop(room)
        for port in self._ports.values():
            port.release()

    async def start(self, room: str) -> None:
        """Starts a room that is not running, on its old port and store."""
        config = import_module(f"mnemesh_{room}.config").Config(**self._settings[room])
        assemble = import_module(f"mnemesh_{room}.wiring").assemble
        taken = signature(assemble).parameters
        given = {name: value for name, value in self._given.items() if name in taken and value is not None}
        server = RunningServer()
        await server.start(await assemble(config, **given), config)
        self._running[room] = server

    async def stop(self, room: str) -> None:
        """Stops a room in order: calls on their way get their grace."""
        await self._running.pop(room).stop()

    async def restart(self, room: str) -> None:
        """Stops a room and starts it again."""
        await self.stop(room)
        await self.start(room)


async def connected(addresses: Mapping[str, str], exits: AsyncExitStack) -> tuple[Stubs, Mnemesh]:
    """Stubs and a client for the rooms at these addresses, closed with `exits`."""
    channels = Channels()
    exits.push_async_callback(channels.close)
    client = Mnemesh(
        addresses["orchestrator"],
        blocks=addresses["blocks"],
        recall=addresses["recall"],
        archival=addresses["archival"],
        tools=addresses["tools"],
    )
    return Stubs(addresses, channels), await exits.enter_async_context(client)


def _provider(name: str, base_url: str | None) -> dict[str, str]:
    return {} if base_url is None else {f"{name}_base_url": base_url, f"{name}_api_key": "sk-test"}
