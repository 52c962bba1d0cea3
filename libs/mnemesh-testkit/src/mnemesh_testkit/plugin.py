"""The pytest plugin of the testkit: the fixtures that every package's tests may ask for.

Nothing is imported here before a fixture needs it: the plugin is loaded into every test run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from mnemesh_testkit.databases.postgres import PostgresServer
    from mnemesh_testkit.fakes.anthropic import FakeAnthropic
    from mnemesh_testkit.fakes.openai import FakeOpenAI
    from mnemesh_testkit.mesh.fork_server import ForkServer
    from mnemesh_testkit.mesh.in_process import Mesh
    from mnemesh_testkit.mesh.processes import ProcessMesh


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker with which a test changes the mesh that it gets; lets properties take the time they need."""
    config.addinivalue_line("markers", "mesh(**arguments): arguments of the Mesh or ProcessMesh of the test's fixture.")
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import HealthCheck, settings  # noqa: PLC0415

        # How fast examples are drawn says how busy the machine is, not whether a property holds.
        settings.register_profile("mnemesh", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("mnemesh")


@pytest.fixture(scope="session", autouse=True)
def _fresh_databases() -> Iterator[None]:
    """See `mnemesh_testkit.databases.template_databases`."""
    from mnemesh_testkit.databases.template_databases import template_databases  # noqa: PLC0415

    with template_databases():
        yield


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """What forks the rooms of this test process; started when the first test asks for it."""
    from mnemesh_testkit.mesh.fork_server import ForkServer  # noqa: PLC0415

    with ForkServer(tmp_path_factory.mktemp("forks") / "forks.log") as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process; started when the first test asks for it."""
    from mnemesh_testkit.databases.postgres import running_postgres  # noqa: PLC0415

    with running_postgres() as server:
        yield server


@pytest_asyncio.fixture
async def postgres_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """The URL of an empty database of the test's own."""
    name = await postgres_server.create_database()
    yield postgres_server.url(name)
    await postgres_server.drop_database(name)


@pytest_asyncio.fixture
async def fake_openai() -> AsyncIterator[FakeOpenAI]:
    """A fake OpenAI; set its `script`. The mesh of the same test calls it for `openai/…` models."""
    from mnemesh_testkit.fakes.openai import FakeOpenAI  # noqa: PLC0415

    async with FakeOpenAI() as fake:
        yield fake


@pytest_asyncio.fixture
async def fake_anthropic() -> AsyncIterator[FakeAnthropic]:
    """A fake Anthropic, likewise for `anthropic/…` models."""
    from mnemesh_testkit.fakes.anthropic import FakeAnthropic  # noqa: PLC0415

    async with FakeAnthropic() as fake:
        yield fake


@pytest_asyncio.fixture
async def mesh(
    request: pytest.FixtureRequest, tmp_path: Path, fake_openai: FakeOpenAI, fake_anthropic: FakeAnthropic
) -> AsyncIterator[Mesh]:
    """The whole mesh in this process, wired to both fakes; `@pytest.mark.mesh(proxied=["recall"])` changes it."""
    from mnemesh_testkit.mesh.in_process import Mesh  # noqa: PLC0415

    async with Mesh(tmp_path, **_arguments(request, fake_openai, fake_anthropic)) as running:
        yield running


@pytest_asyncio.fixture
async def process_mesh(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    fake_openai: FakeOpenAI,
    fake_anthropic: FakeAnthropic,
    forks: ForkServer,
) -> AsyncIterator[ProcessMesh]:
    """The whole mesh as processes, likewise."""
    from mnemesh_testkit.mesh.processes import ProcessMesh  # noqa: PLC0415

    async with ProcessMesh(tmp_path, forks=forks, **_arguments(request, fake_openai, fake_anthropic)) as running:
        yield running


def _arguments(request: pytest.FixtureRequest, openai: FakeOpenAI, anthropic: FakeAnthropic) -> dict[str, Any]:
    given: dict[str, Any] = {"openai_base_url": openai.base_url, "anthropic_base_url": anthropic.base_url}
    for marker in request.node.iter_markers("mesh"):
        given |= marker.kwargs
    return given
