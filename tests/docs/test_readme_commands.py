"""The commands of the README run as a reader types them: in a shell, from the root of the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.mesh_thread import MeshThread
from mnemesh_testkit.timeouts import scaled

ROOT = Path(__file__).parents[2]
SERVICES = ("blocks", "recall", "archival", "tools", "files")


def test_each_block_of_commands_runs(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    with MeshThread(Mesh(tmp_path)) as running:
        addresses = running.mesh.addresses
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(tmp_path),
            "MNEMESH_DATA_DIR": str(tmp_path / "none"),
            "MNEMESH_TARGET": addresses["orchestrator"],
            **{f"MNEMESH_{name.upper()}_TARGET": addresses[name] for name in SERVICES},
        }
        outputs = [run(block, environment) for block in blocks]
    said = "\n".join(outputs)
    assert "Name: Carol" in said
    assert '"status": "RUN_STATUS_COMPLETED"' in said
    assert "operations.md" in said


def run(script: str, environment: dict[str, str]) -> str:
    # `mnemesh status` exits with 1, as a mesh in one process has no gateway.
    script = script.replace("mnemesh status", "mnemesh status || test $? = 1")
    done = subprocess.run(
        ["sh", "-e"],
        input=script,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=scaled(240),
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{done.returncode}: {done.stdout}\n{done.stderr}")
    return done.stdout
