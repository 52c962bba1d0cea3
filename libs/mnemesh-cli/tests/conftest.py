"""Meshes for the tests of the command line."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh_client import Mnemesh
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.server import Assembly, RunningServer
from mnemesh_kit.services import service
from mnemesh_testkit.mesh.fake_mesh import FakeMesh, fake_mesh
from mnemesh_testkit.mesh.faulty_proxy import ReservedPort
from mnemesh_testkit.mesh.in_process import Mesh, MeshThread

from .command_line import CommandLine


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No profile, token, address or colour of the user of this machine counts."""
    for name in tuple(os.environ):
        if name.startswith("MNEMESH_") or name in ("FORCE_COLOR", "NO_COLOR", "COLORFGBG", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def reserve_port() -> Iterator[Callable[[], int]]:
    """A function that reserves a free port until the end of the test. Servers can listen on it."""
    ports: list[ReservedPort] = []

    def reserve() -> int:
        ports.append(ReservedPort())
        return ports[-1].number

    yield reserve
    for port in ports:
        port.release()


@pytest.fixture
def closed_port(reserve_port: Callable[[], int]) -> int:
    """A port on which no server listens."""
    return reserve_port()


@pytest_asyncio.fixture
async def start_empty(tmp_path: Path) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """A function that starts a server with the name of a service and no RPCs of it. Returns its address."""
    servers: list[RunningServer] = []

    async def start(name: str) -> str:
        servers.append(RunningServer())
        config = ServerConfig(port=0, data_dir=str(tmp_path), shutdown_grace_seconds=0)
        names = service(name).proto_services
        return await servers[-1].start(Assembly(name=name, servicers=[], service_names=names), config)

    yield start
    for server in servers:
        await server.stop()


@pytest_asyncio.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[FakeMesh]:
    """A running fake mesh."""
    async with fake_mesh(tmp_path) as mesh:
        yield mesh


@pytest_asyncio.fixture
async def mnemesh(mesh: FakeMesh) -> AsyncIterator[Mnemesh]:
    """A client of the fake mesh."""
    async with mesh.client() as client:
        yield client


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshThread]:
    """A whole mesh with the built-in model."""
    with MeshThread(Mesh(tmp_path_factory.mktemp("mesh"))) as running:
        yield running


@pytest.fixture
def cli(running: MeshThread, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The `mnemesh` command against the mesh."""
    return CommandLine(running, monkeypatch)
