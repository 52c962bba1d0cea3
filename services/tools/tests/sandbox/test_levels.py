"""The probe of the host, and the isolation level that tools need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import mnemesh_tools.sandbox
import pytest
from mnemesh_tools.sandbox import Isolation, Level, Sandbox, SandboxSettings, SandboxUnavailable, Task
from mnemesh_tools.sandbox.inside import plan as layer
from mnemesh_tools.sandbox.isolation import probe

from .support import source_of


async def test_tools_are_refused_below_the_minimum_level() -> None:
    """The error names the layers that the host refused."""
    sandbox = Sandbox(SandboxSettings(), Isolation(frozenset({layer.SECCOMP, layer.LANDLOCK}), {"own_uid": "EPERM"}))
    with pytest.raises(
        SandboxUnavailable, match=r"at level minimal, below the configured minimum restricted .*own_uid: EPERM"
    ):
        await sandbox.run(Task(source_of("return 1"), "tool"), 5)


async def test_probe_removes_the_layers_that_the_host_refuses() -> None:
    """In ordinary containers there are no namespaces, but uids, Landlock and seccomp."""
    supported = {layer.OWN_UID, layer.LANDLOCK, layer.SECCOMP}

    async def attempt(layers: Any) -> tuple[str, str] | None:
        return next(((name, "EPERM") for name in layer.LAYERS if name in layers and name not in supported), None)

    isolation = await probe(attempt, set(layer.LAYERS) - {layer.USER_NAMESPACE})
    assert isolation.layers == supported
    assert isolation.level is Level.RESTRICTED
    assert layer.PID_NAMESPACE in isolation.missing


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_an_ordinary_user_can_execute_tools() -> None:
    """Uses an interpreter of the system and a copy of the package, which that user can read."""
    python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), None)
    if python is None:
        pytest.skip("this machine has no interpreter that an ordinary user can run")
    copy = Path(tempfile.mkdtemp(prefix="mnemesh-copy-"))
    copy.chmod(0o755)
    try:
        package = copy / "mnemesh_tools"
        shutil.copytree(Path(mnemesh_tools.sandbox.__file__).parent, package / "sandbox")
        (package / "__init__.py").touch()
        script = textwrap.dedent("""
            import asyncio, json
            from mnemesh_tools.sandbox import Sandbox, SandboxSettings, Level, Task
            async def main():
                box = await Sandbox.open(SandboxSettings(minimum=Level.MINIMAL))
                if box.isolation.level is Level.NONE:
                    return [0, dict(box.isolation.missing)]
                out = await box.run(Task("def tool():\\n    import os\\n    return os.getuid()", "tool"), 20)
                return [int(box.isolation.level), out.text]
            print(json.dumps(asyncio.run(main())))
        """)
        done = subprocess.run(
            [python, "-c", script],
            user=65534,
            group=65534,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        level, text = json.loads(done.stdout)
        pool = SandboxSettings()
        # The free uids of the pool depend on other processes of this machine.
        assert level == Level.NONE or text == "65534" or int(text) - pool.first_uid in range(pool.uids)
    finally:
        shutil.rmtree(copy)
