"""The packages of stdio servers: their lock is stored with the server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.tools.v1 import tools_pb2
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL
from mnemesh_kit.sql import Database
from mnemesh_kit.time import SystemClock
from mnemesh_sandbox import Level
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools.config import Config
from mnemesh_tools.mcp_clients.contracts import McpLimits
from mnemesh_tools.model.packages import Ecosystem, PackageSet
from mnemesh_tools.store.tools import ToolStore
from mnemesh_types.tools import Requirement

from ..conftest import Stubs, serve
from ..packages.index import PackageIndex, serving
from .program import SOURCE

LIMITS = McpLimits(connect_seconds=scaled(60))
WORD = "import greeting\n" + SOURCE.replace('arguments.get("text", "")', "greeting.WORD")


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    """An index with one version of a package."""
    with serving() as found:
        found.add("greeting", "1.0", "WORD = 'hello'\n")
        yield found


def _config(directory: Path, database_url: str, index: PackageIndex) -> Config:
    return Config(
        port=0,
        data_dir=str(directory),
        database_url=database_url,
        package_index=index.url,
        package_hosts="",
        min_sandbox="minimal",
        warm_processes=0,
        mcp_stdio="sandbox",
    )


async def _said(stubs: Stubs, server: pb.McpServer) -> str:
    request = rpc.RunMcpServerToolRequest(mcp_server_id=server.id, tool=rpc.McpToolReference(name="echo"))
    text: str = (await stubs.mcp.RunMcpServerTool(request)).content[0].text.text
    return text


@pytest.mark.full
async def test_a_program_runs_with_the_same_versions_on_every_host(
    tmp_path: Path, database_url: str, index: PackageIndex
) -> None:
    config = _config(tmp_path / "one", database_url, index)
    if (await probe_sandbox(config.sandbox)).isolation.level < Level.FULL:
        pytest.skip("this host cannot confine a build")
    requirement = tools_pb2.PackageRequirement(name="greeting")
    stdio = pb.StdioTransport(command="python3", args=["-c", WORD], pip_requirements=[requirement])
    async with serve(config, LIMITS) as stubs:
        created = rpc.CreateMcpServerRequest(mcp_server=pb.McpServer(name="program", stdio=stdio))
        server = (await stubs.mcp.CreateMcpServer(created)).mcp_server
        assert server.status == pb.MCP_SERVER_STATUS_REACHABLE, server.status_message
        assert await _said(stubs, server) == "hello"
    index.add("greeting", "1.1", "WORD = 'good day'\n")
    async with serve(_config(tmp_path / "two", database_url, index), LIMITS) as stubs:
        assert await _said(stubs, server) == "hello"
        found = (await stubs.mcp.GetMcpServer(rpc.GetMcpServerRequest(mcp_server_id=server.id))).mcp_server
        assert found.revision == server.revision, "the lock is not a change of the server"
        # Settings that are only tried have no stored lock.
        tried = rpc.TestMcpServerRequest(mcp_server=pb.McpServer(name="tried", stdio=stdio))
        assert (await stubs.mcp.TestMcpServer(tried)).status == pb.MCP_SERVER_STATUS_REACHABLE
        assert await _said(stubs, server) == "hello"
        # Other requirements are resolved anew.
        stdio.pip_requirements[0].version = ">=1"
        update = rpc.UpdateMcpServerRequest(mcp_server=pb.McpServer(id=server.id, stdio=stdio))
        update.update_mask.paths.append("stdio.pip_requirements")
        await stubs.mcp.UpdateMcpServer(update)
        assert await _said(stubs, server) == "good day"


async def test_the_first_of_two_locks_is_kept_and_goes_with_its_server(database_url: str, tmp_path: Path) -> None:
    config = Config(port=0, data_dir=str(tmp_path), database_url=database_url, min_sandbox="minimal", mcp_stdio="none")
    async with serve(config) as stubs:
        request = rpc.CreateMcpServerRequest(
            mcp_server=pb.McpServer(name="program", stdio=pb.StdioTransport(command="absent"))
        )
        server_id = (await stubs.mcp.CreateMcpServer(request)).mcp_server.id
        database = Database.open(database_url)
        store, mine = ToolStore(database, SystemClock()), DEFAULT_PRINCIPAL.organization_id
        pip = PackageSet(Ecosystem.PIP, (Requirement("a", "1"),))
        npm = PackageSet(Ecosystem.NPM, (Requirement("a", "1"),))

        async def added(packages: PackageSet, lock: str, organization_id: str = mine) -> str:
            return await store.write(organization_id, lambda tx: tx.mcp.add_package_lock(server_id, packages, lock))

        async def kept(packages: PackageSet, organization_id: str = mine) -> str | None:
            return await store.read(organization_id, lambda tx: tx.mcp.get_package_lock(server_id, packages))

        assert [await added(pip, "first"), await added(pip, "second"), await added(npm, "other")] == [
            "first",
            "first",
            "other",
        ]
        assert await added(pip, "theirs", "org-other") == "theirs"
        assert (await kept(pip), await kept(npm), await kept(pip, "org-other")) == ("first", "other", None)
        newer = PackageSet(Ecosystem.PIP, (Requirement("a", "2"),))
        assert await added(newer, "newer") == "newer"
        assert (await kept(pip), await kept(newer), await kept(npm)) == (None, "newer", "other")
        await stubs.mcp.DeleteMcpServer(rpc.DeleteMcpServerRequest(mcp_server_id=server_id))
        assert (await kept(newer), await kept(npm)) == (None, None)
        await database.close()
