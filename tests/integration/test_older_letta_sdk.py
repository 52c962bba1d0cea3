"""The last release of letta-client before 1.0 works with the gateway."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest
from mnemesh_testkit.fakes.mcp_server import Remote
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

CALLS = Path(__file__).parents[1] / "letta" / "older_sdk" / "calls.py"
RELEASE = "letta-client==0.1.324"


async def succeeds(*command: object) -> None:
    """Runs a command to its end."""
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=PIPE, stderr=STDOUT)
    output, _ = await asyncio.wait_for(process.communicate(), scaled(300))
    assert process.returncode == 0, output.decode()[-4000:]


@pytest.mark.full
async def test_programs_with_an_older_sdk_run(tmp_path: Path) -> None:
    """It cannot be installed beside the newest SDK, and gets an environment of its own."""
    environment = tmp_path / "environment"
    await succeeds(sys.executable, "-m", "venv", environment)
    await succeeds(environment / "bin" / "pip", "install", "--quiet", RELEASE)
    (tmp_path / "mesh").mkdir()
    remote = Remote()
    async with (
        FakeOpenAI(lambda _: "Hello.") as fake,
        Mesh(tmp_path / "mesh", openai_base_url=fake.base_url, gateway=True) as mesh,
    ):
        await remote.start()
        try:
            url = f"http://{mesh.addresses['gateway']}"
            await succeeds(environment / "bin" / "python", CALLS, url, fake.base_url, remote.url)
        finally:
            await remote.stop()
