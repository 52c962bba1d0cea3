"""A whole mesh with mutual TLS: turns, tools, the gateway, the command line, and certificates that are replaced."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mnemesh_cli.supervisor.health import health_status
from mnemesh_client import Mnemesh, TlsSettings
from mnemesh_kit.errors import Unavailable
from mnemesh_kit.services import STORE_NAMES
from mnemesh_testkit.mesh.fork_server import ForkServer
from mnemesh_testkit.mesh.in_process import Mesh, certificates, client_tls, tls_environment
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.timeouts import scaled


async def complete(gateway: str, text: str) -> str:
    """Returns the answer of the agent ada through the gateway."""
    async with httpx.AsyncClient(base_url=f"http://{gateway}", timeout=scaled(60)) as http:
        body: Any = {"model": "ada", "messages": [{"role": "user", "content": text}]}
        return str((await http.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["content"])


async def test_turns_through_a_mesh_with_mutual_tls(tmp_path: Path) -> None:
    """In process. Every connection between the services needs the right certificates."""
    issued = certificates(tmp_path / "certificates")
    async with Mesh(tmp_path, certificates=issued, gateway=True) as mesh:
        agent = await mesh.client.agents.create("ada", blocks={"human": "", "persona": ""})
        assert "core memory" in await agent.ask("My name is Ada. Remember that the launch is on Friday.")
        assert [hit.passage.text for hit in await agent.search_passages("launch")] == ["the launch is on Friday."]
        assert "Your name is Ada" in await complete(mesh.addresses["gateway"], "What is my name?")
        for settings in (TlsSettings(), TlsSettings(ca_file=str(issued / "ca.crt"))):
            for address in mesh.client.addresses.items()[1:]:
                assert await health_status(address[1], scaled(60), settings) == "UNAVAILABLE", address


@pytest.mark.full
async def test_processes_with_mutual_tls_and_replaced_certificates(tmp_path: Path, fork_server: ForkServer) -> None:
    """Processes, the command line and the doctor. All certificates, the authority included, change in the middle."""
    issued, other = certificates(tmp_path / "one"), certificates(tmp_path / "two")
    async with ProcessMesh(tmp_path, certificates=issued, gateway=True, fork_server=fork_server) as mesh:
        targets = {f"MNEMESH_{name.upper()}_TARGET": address for name, address in mesh.addresses.items()}
        base = {name: value for name, value in os.environ.items() if not name.startswith("MNEMESH_")}
        base |= targets | {"MNEMESH_TARGET": mesh.addresses["orchestrator"], "MNEMESH_DATA_DIR": str(tmp_path)}
        secure = base | tls_environment(issued)
        assert (await run("agents", "create", "ada", env=secure))[0] == 0
        code, out = await run("chat", env=secure, stdin="My name is Ada.")
        assert (code, "Ada" in out) == (0, True)
        code, out = await run("doctor", env=secure)
        assert code == 0, out
        http = httpx2.AsyncClient(base_url=f"http://{mesh.addresses['gateway']}", timeout=scaled(60))
        transport = streamable_http_client(f"http://{mesh.addresses['gateway']}/mcp", http_client=http)
        async with http, Client(transport) as mcp:
            assert "Ada" in str((await mcp.call_tool("read_core_memory", {})).structured_content)
        code, out = await run("doctor", env=base)
        assert (code, out.count("expects TLS")) == (1, len(STORE_NAMES))

        earlier = shutil.copytree(issued, tmp_path / "earlier")
        shutil.copytree(other, issued, dirs_exist_ok=True)
        called = [name for name in STORE_NAMES if name != "orchestrator"]
        for service in called:  # the connections end, and the callers, which run on, need the new certificates
            await mesh.kill(service)
        await asyncio.gather(*(mesh.start(service) for service in called))
        async with Mnemesh(
            **{name: address for name, address in mesh.addresses.items() if name not in ("orchestrator", "gateway")},
            target=mesh.addresses["orchestrator"],
            tls=client_tls(other),
        ) as mnemesh:
            assert "Your name is Ada" in await (await mnemesh.agents.find("ada")).ask("What is my name?")
        assert "Your name is Ada" in await complete(mesh.addresses["gateway"], "Who am I? What is my name?")
        with pytest.raises(Unavailable):
            async with Mnemesh(mesh.addresses["orchestrator"], tls=client_tls(earlier)) as mnemesh:
                await mnemesh.agents.find("ada")


async def run(*arguments: str, env: dict[str, str], stdin: str = "") -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mnemesh_cli", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
    )
    out, _ = await process.communicate(stdin.encode())
    return process.returncode, out.decode()
