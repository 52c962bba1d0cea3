"""Fixtures: one mesh with a gateway per module, and Letta's SDK as its client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from letta_client import Letta
from mnemesh_gateway.config import Config
from mnemesh_gateway.wiring import assemble
from mnemesh_kit.server import RunningServer
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import Mesh, MeshThread
from mnemesh_testkit.timeouts import scaled

from .lab import Lab
from .rest import Rest

pytest.register_assert_rewrite(f"{__package__}.drivers")


class FakedMesh:
    """A mesh with a gateway and a fake provider, both started on the loop that enters it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.fake = FakeOpenAI()
        self.thread: MeshThread

    def call(self, service: str, method: str, request: Any) -> Any:
        """Calls a method of a service of the mesh."""

        async def called() -> Any:
            return await getattr(self.mesh.stubs[service], method)(request)

        return self.thread.run(called())

    async def __aenter__(self) -> Self:
        await self.fake.__aenter__()
        self.mesh = Mesh(self._directory, openai_base_url=self.fake.base_url, gateway=True, in_memory=True)
        try:
            await self.mesh.__aenter__()
        except BaseException:
            await self.fake.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.mesh.__aexit__()
        await self.fake.__aexit__()


@pytest.fixture(scope="module")
def faked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakedMesh]:
    """A running mesh in another thread. Its default model is the rehearsal model; openai/fake-model is scripted."""
    faked = FakedMesh(tmp_path_factory.mktemp("mesh"))
    with MeshThread(faked) as thread:  # type: ignore[arg-type]
        faked.thread = thread
        yield faked


@pytest.fixture(scope="module")
def base_url(faked: FakedMesh) -> str:
    """The address of the gateway."""
    return f"http://{faked.mesh.addresses['gateway']}"


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[Letta]:
    """Letta's SDK, without retries of its own."""
    with Letta(base_url=base_url, api_key="any", max_retries=0, timeout=scaled(60)) as client:
        yield client


@pytest.fixture
def other(faked: FakedMesh) -> Iterator[RunningServer]:
    """Another gateway of the mesh."""
    mesh = faked.mesh
    targets = {f"{name}_target": mesh.addresses[name] for name in ("orchestrator", "blocks", "recall", "archival")}
    config = Config(port=0, data_dir=str(mesh.directory), shutdown_grace_seconds=30, **targets)
    server = RunningServer()

    async def start() -> None:
        await server.start(await assemble(config), config)

    faked.thread.run(start())
    yield server
    faked.thread.run(server.stop())


@pytest.fixture
def rest(base_url: str) -> Iterator[Rest]:
    """Plain HTTP."""
    client = Rest(base_url)
    yield client
    client.close()


@pytest.fixture
def fake(faked: FakedMesh) -> FakeOpenAI:
    """The provider, which answers every request with the same text until a test sets its script."""
    faked.fake.script = lambda _: "Hello."
    faked.fake.requests.clear()
    return faked.fake


@pytest.fixture
def lab(client: Letta, fake: FakeOpenAI, faked: FakedMesh) -> Lab:
    """What drivers of the SDK's methods use."""
    return Lab(client, fake, faked.call, faked.thread.run)
