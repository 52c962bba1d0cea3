"""One mesh of processes for all tests of a module. Each test kills and restarts services, and leaves all running."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.fork_server import ForkServer
from mnemesh_testkit.mesh.processes import ProcessMesh

pytest.register_assert_rewrite(f"{__package__}.loads")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[FakeOpenAI]:
    """The provider of the mesh; every call that it makes has the id `call_1`."""
    async with FakeOpenAI(call_id="call_1") as fake:
        yield fake


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(
    tmp_path_factory: pytest.TempPathFactory, provider: FakeOpenAI, fork_server: ForkServer
) -> AsyncIterator[ProcessMesh]:
    """The mesh, with proxies before the services that hold memory."""
    directory = tmp_path_factory.mktemp("mesh")
    proxied = ("blocks", "recall", "archival", "tools")
    async with ProcessMesh(
        directory, openai_base_url=provider.base_url, proxied=proxied, fork_server=fork_server
    ) as running:
        yield running
