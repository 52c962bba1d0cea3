"""SIGKILL of a backup leaves the earlier ones good. After SIGKILL of a restore, no part of a mesh starts."""

import subprocess
import sys
from pathlib import Path

import pytest
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import turn
from mnemesh_testkit.timeouts import scaled

PROGRAM = Path(__file__).with_name("killed_backups.py")


@pytest.mark.timeout(scaled(900))
async def test_backups_and_restores_that_are_killed(tmp_path: Path, is_full: bool, is_sweep: bool) -> None:
    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    work.mkdir()
    async with Mesh(data) as mesh:
        agent = await mesh.client.agents.create(blocks={"human": ""})
        await turn(agent, "Remember that the key is under the mat.")
        folder = await mesh.client.folders.create("birds")
        uploaded = await mesh.client.files.upload(folder.id, b"A heron.\n" * 9, name="heron.md")
        await mesh.client.files.wait(uploaded.file.id, timeout=scaled(60))
    stride = "1" if is_sweep else "50" if is_full else "300"
    done = subprocess.run(  # the program forks, which a process with gRPC must not do
        [sys.executable, PROGRAM, data, work, stride], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
