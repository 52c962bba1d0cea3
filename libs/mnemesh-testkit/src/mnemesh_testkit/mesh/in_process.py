"""The mesh in the process of the test: all services, in its event loop or in a thread."""

import asyncio
import shlex
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from mnemesh_archival.config import Config as ArchivalConfig
from mnemesh_archival.wiring import assemble as assemble_archival
from mnemesh_cli.certificates import CLIENT, ENVIRONMENT_NAME, create_certificates
from mnemesh_client import Mnemesh
from mnemesh_files.config import Config as FilesConfig
from mnemesh_files.wiring import assemble as assemble_files
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import TLS_PREFIX, TlsSettings
from mnemesh_kit.ids import IdSource
from mnemesh_kit.local_calls import LocalServers
from mnemesh_kit.server import RunningServer
from mnemesh_kit.services import STORE_NAMES
from mnemesh_kit.time import Clock
from mnemesh_sandbox import Sandbox, SandboxSettings

from mnemesh_testkit.mesh.faulty_proxy import FaultyProxy, ReservedPort
from mnemesh_testkit.mesh.local_services import MEMORY_URL
from mnemesh_testkit.mesh.memory_indexes import INDEXES
from mnemesh_testkit.mesh.stubs import Stubs
from mnemesh_testkit.timeouts import scaled

_FIELD: Final = TLS_PREFIX.removeprefix("MNEMESH_").lower()


def certificates(directory: Path) -> Path:
    """Creates certificates for every service and the client. Returns their directory."""
    create_certificates(directory, days=1)
    return directory


def tls_environment(directory: Path) -> dict[str, str]:
    """Returns the variables of a mesh with these certificates."""
    words = shlex.split((directory / ENVIRONMENT_NAME).read_text())
    return dict(word.split("=", 1) for word in words)


def tls_fields(directory: Path, service: str) -> dict[str, str]:
    """Returns the fields of a service's Config."""
    authority = str(directory / "ca.crt")
    own = {"ca_file": authority, "client_ca_file": authority, **_own_files(directory, service)}
    return {f"{_FIELD}_{name}": path for name, path in own.items()}


def client_tls(directory: Path) -> TlsSettings:
    return TlsSettings(ca_file=str(directory / "ca.crt"), **_own_files(directory, CLIENT))


def _own_files(directory: Path, name: str) -> dict[str, str]:
    return {f"{kind}_file": str(directory / name / f"tls.{end}") for kind, end in (("cert", "crt"), ("key", "key"))}


_OPEN: Final[dict[SandboxSettings, Sandbox]] = {}


async def probe_sandbox(settings: SandboxSettings) -> Sandbox:
    """Returns the sandbox with these settings. The first call opens it, which probes the host."""
    if settings not in _OPEN:
        _OPEN[settings] = await Sandbox.open(settings)
    return _OPEN[settings]


EMBEDDER: Final = "mnemesh/hashing-256"
"""A fast embedder, for which texts that share words are similar."""
REHEARSAL: Final = "mnemesh/rehearsal"

Settings = Mapping[str, Mapping[str, Any]]


class Mesh:
    """All services in one process, as `mnemesh up` runs them; an async context manager.

    ```python
    async with Mesh(tmp_path, openai_base_url=fake.base_url) as mesh:
        agent = await mesh.client.agents.create(model="openai/fake-model")
        await mesh.restart("recall")
    ```

    Args:
        directory: of the stores; a second mesh on it finds what the first one stored.
        openai_base_url: of a fake OpenAI; None leaves the provider unconfigured.
        anthropic_base_url: of a fake Anthropic; None leaves the provider unconfigured.
        model: the model of agents that name none.
        embedder: of recall and archival.
        clock: of every service; None is the system's.
        ids: of every service; None is random.
        settings: service → fields of its Config, which override all others.
        proxied: services that clients and other services reach through a `FaultyProxy` in `mesh.proxies`.
        gateway: whether the mesh has a gateway. Only tests of it need one.
        certificates: of `certificates`, with which all connections are encrypted and mutually authenticated.
        in_memory: whether the databases are in memory: half of the CPU time, but a stopped service cannot start again.
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
        gateway: bool = False,
        certificates: Path | None = None,
        in_memory: bool = False,
    ) -> None:
        self.directory = directory
        self._tls = client_tls(certificates) if certificates is not None else TlsSettings()
        self._services = (*(("gateway",) if gateway else ()), *STORE_NAMES)
        self._local = LocalServers() if certificates is None else None
        self._dependencies: dict[str, Any] = {"clock": clock, "ids": ids, "local": self._local}
        self._ports = {service: ReservedPort() for service in self._services}
        self.proxies = {service: FaultyProxy(self._ports[service].address) for service in proxied}
        self.addresses = {
            service: self.proxies[service].address if service in self.proxies else port.address
            for service, port in self._ports.items()
        }
        shared = {"data_dir": str(directory), "shutdown_grace_seconds": 0.5}
        self._settings = {service: {**shared, "port": self._ports[service].number} for service in self._services}
        self._settings["recall"]["embedder"] = self._settings["archival"]["embedder"] = embedder
        self._settings["orchestrator"] |= {
            **{f"{service}_target": self.addresses[service] for service in STORE_NAMES if service != "orchestrator"},
            **_provider("openai", openai_base_url),
            **_provider("anthropic", anthropic_base_url),
            "model": model,
            "embedder": embedder,
        }
        self._settings["files"]["archival_target"] = self.addresses["archival"]
        self._settings["files"]["orchestrator_target"] = self.addresses["orchestrator"]
        if "tools" in self._settings:
            # Most tests execute no tool twice, and no test reaches a package index.
            self._settings["tools"] |= {"warm_processes": 0, "package_index": "http://127.0.0.1:9/simple"}
        if gateway:
            called = ("orchestrator", "blocks", "recall", "archival")
            self._settings["gateway"] |= {f"{service}_target": self.addresses[service] for service in called}
        if certificates is not None:
            for service in self._services:
                self._settings[service] |= tls_fields(certificates, service)
        self._in_memory = in_memory
        if in_memory:
            for service in STORE_NAMES:
                self._settings[service]["database_url"] = MEMORY_URL
        for service, fields in (settings or {}).items():
            self._settings[service] |= fields
        self._running: dict[str, RunningServer] = {}
        self._started: set[str] = set()
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Starts the proxies, then every service."""
        try:
            for proxy in self.proxies.values():
                await self._exits.enter_async_context(proxy)
            for service in reversed(self._services):
                await self.start(service)
        except BaseException:
            await self.__aexit__()
            raise
        key_file: Any = self._settings["orchestrator"].get("auth_key_file")
        self.stubs, self.client = await connect(self.addresses, self._exits, self._tls, key_file)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the clients, stops the services, and releases the ports."""
        await self._exits.aclose()
        for service in reversed(tuple(self._running)):
            await self.stop(service)
        for port in self._ports.values():
            port.release()

    async def start(self, service: str) -> None:
        """Starts a service that is not running, on the same port and store as before."""
        if self._in_memory and service in self._started and service in STORE_NAMES:
            raise RuntimeError("A database in memory ends with its service: use @pytest.mark.mesh(in_memory=False).")
        self._started.add(service)
        config = import_module(f"mnemesh_{service}.config").Config(**self._settings[service])
        assemble = import_module(f"mnemesh_{service}.wiring").assemble
        accepted = signature(assemble).parameters
        dependencies = {
            name: value for name, value in self._dependencies.items() if name in accepted and value is not None
        }
        if service == "tools":
            dependencies["sandbox"] = await probe_sandbox(config.sandbox)
        if self._in_memory and service in INDEXES:
            dependencies["index"] = INDEXES[service](self.directory)
        server = RunningServer(self._local)
        await server.start(await assemble(config, **dependencies), config)
        self._running[service] = server

    async def stop(self, service: str) -> None:
        """Stops a service in order: running calls have until the end of the grace period."""
        await self._running.pop(service).stop()

    async def restart(self, service: str) -> None:
        """Stops a service and starts it again."""
        await self.stop(service)
        await self.start(service)


async def connect(
    addresses: Mapping[str, str], exits: AsyncExitStack, tls: TlsSettings, key_file: str | None = None
) -> tuple[Stubs, Mnemesh]:
    """Returns stubs and a client for the services at these addresses; `exits` closes them."""
    channels = Channels(tls=tls, auth_key_file=key_file)
    exits.push_async_callback(channels.close)
    client = Mnemesh(
        addresses["orchestrator"],
        blocks=addresses["blocks"],
        recall=addresses["recall"],
        archival=addresses["archival"],
        tools=addresses["tools"],
        files=addresses["files"],
        auth_key_file=key_file,
        tls=tls,
    )
    return Stubs(addresses, channels), await exits.enter_async_context(client)


def _provider(name: str, base_url: str | None) -> dict[str, str]:
    return {} if base_url is None else {f"{name}_base_url": base_url, f"{name}_api_key": "sk-test"}


T = TypeVar("T")


class MeshThread:
    """A mesh whose event loop runs in another thread; a context manager."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mesh", daemon=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the mesh's loop and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=scaled(120))

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.mesh.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.mesh.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


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
