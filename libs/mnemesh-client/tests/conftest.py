"""Meshes for the tests of the client."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
from mnemesh_client import Mnemesh
from mnemesh_testkit.mesh.fake_mesh import FakeMesh, fake_mesh
from mnemesh_testkit.mesh.faulty_proxy import ReservedPort
from mnemesh_testkit.mesh.in_process import Mesh, MeshThread
from mnemesh_testkit.timeouts import Face, with_face


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
async def mesh(tmp_path: Path) -> AsyncIterator[FakeMesh]:
    """A running fake mesh."""
    async with fake_mesh(tmp_path) as mesh:
        yield mesh


@pytest.fixture(params=["async", pytest.param("sync", marks=pytest.mark.full)])
def face(request: pytest.FixtureRequest) -> Face:
    """The kind of the client: asynchronous, or synchronous with methods that can be awaited.

    The synchronous client is generated. `make test` runs it in `test_sync.py` and `test_run_stream.py`.
    """
    return cast("Face", request.param)


@pytest_asyncio.fixture
async def mnemesh(mesh: FakeMesh, face: Face) -> AsyncIterator[Mnemesh]:
    """A client of the fake mesh."""
    async with with_face(mesh.client(), face) as client:
        yield client


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshThread]:
    """A whole mesh with the built-in model."""
    with MeshThread(Mesh(tmp_path_factory.mktemp("mesh"), in_memory=True)) as running:
        yield running
