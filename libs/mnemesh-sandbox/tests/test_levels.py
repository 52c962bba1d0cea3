"""The probe of the host, and the isolation level that tools need."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import mnemesh_sandbox
import pytest
from mnemesh_sandbox import Access, Isolation, Level, Sandbox, SandboxSettings, SandboxUnavailable, Task
from mnemesh_sandbox.inside import plan as layer
from mnemesh_sandbox.isolation import probe
from mnemesh_testkit.databases.postgres import shared_parent
from mnemesh_testkit.timeouts import scaled

from . import attempts
from .support import source_of


async def test_tools_are_refused_below_the_minimum_level() -> None:
    """The error names the layers that the host refused."""
    sandbox = Sandbox(SandboxSettings(), Isolation(frozenset({layer.SECCOMP, layer.LANDLOCK}), {"own_uid": "EPERM"}))
    with pytest.raises(SandboxUnavailable, match=r"level restricted; this host provides minimal .*own_uid: EPERM"):
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


async def test_probe_finds_out_whether_tasks_can_have_access_to_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks without access are not concerned."""
    settings = SandboxSettings(minimum=Level.MINIMAL)
    if (isolation := (await Sandbox.open(settings)).isolation).level is not Level.FULL:
        pytest.skip("only the level full has access to the network")
    assert isolation.network_problem is None

    async def serve(listener: socket.socket) -> None:
        raise NotImplementedError

    monkeypatch.setattr("mnemesh_sandbox.isolation.greet", greet_wrongly)
    sandbox = await Sandbox.open(settings)
    assert "did not reach its proxy alone" in str(sandbox.isolation.network_problem)
    task = Task(source_of("return 1"), "tool")
    assert (await sandbox.run(task, scaled(60))).text == "1"
    with pytest.raises(SandboxUnavailable, match="on this host: the probe did not reach its proxy alone"):
        await sandbox.run(task, scaled(60), Access(serve=serve))


async def greet_wrongly(listener: socket.socket) -> None:
    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    connection.close()


@pytest.mark.parametrize(
    ("layers", "level"),
    [
        ({layer.OWN_UID, layer.SECCOMP}, Level.MINIMAL),
        ({layer.LANDLOCK, layer.SECCOMP}, Level.MINIMAL),
        ({layer.OWN_UID, layer.LANDLOCK, layer.SECCOMP}, Level.RESTRICTED),
        (set(layer.LAYERS) - {layer.LANDLOCK}, Level.FULL),
        (set(layer.LAYERS) - {layer.SECCOMP}, Level.NONE),
        ({layer.SECCOMP}, Level.NONE),
    ],
)
def test_level_of_a_set_of_layers(layers: set[str], level: Level) -> None:
    assert Isolation(frozenset(layers)).level is level


_AS_USER = """
import asyncio, json, os, sys
from mnemesh_sandbox import Access, Sandbox, SandboxSettings, Level, Task
layers, sources, arguments, access = json.load(sys.stdin)
access = Access(packages=tuple(access))
async def main():
    settings = SandboxSettings(minimum=Level.MINIMAL, memory_mb=256, disk_mb=8, files=2000)
    box = await Sandbox.open(settings, layers=layers)
    if box.isolation.level is Level.NONE:
        return [0, dict(box.isolation.missing)]
    arguments["server"] = os.getpid()
    def task(source):
        names = source.partition(")")[0]
        return Task(source, "tool", {name: value for name, value in arguments.items() if name in names})
    out = [await box.run(task(source), 60, access) for source in sources]
    return [int(box.isolation.level), *([one.status.value, one.text] for one in out)]
print(json.dumps(asyncio.run(main())))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
@pytest.mark.parametrize("layers", [None, [layer.LANDLOCK, layer.SECCOMP]], ids=["all layers", "no namespaces"])
def test_ordinary_user_can_execute_tools(layers: list[str] | None) -> None:
    """Uses an interpreter of the system and a copy of the package, which that user can read."""
    python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), None)
    if python is None:
        pytest.skip("this machine has no interpreter that an ordinary user can run")
    with tempfile.TemporaryDirectory(prefix="mnemesh-copy-", dir=shared_parent()) as created:
        copy = Path(created)
        copy.chmod(0o755)
        package, temporary = copy / "mnemesh_sandbox", copy / "tmp"
        shutil.copytree(Path(mnemesh_sandbox.__file__).parent, package)
        temporary.mkdir()
        os.chown(temporary, 65534, 65534)
        service, packages = copy / "service", copy / "packages"
        for directory in (service, packages):
            directory.mkdir(mode=0o755)
            (directory / "file").touch(mode=0o600)
            for path in (directory, directory / "file"):
                os.chown(path, 65534, 65534)
        own_uid = source_of("import os; return os.getuid()")
        sources = [own_uid, attempts.KERNEL, attempts.MANY_BYTES, attempts.DEEP_TREE, attempts.MEMORY_OF_PROCESSES]
        sources.append(attempts.ATTRIBUTES)
        arguments = {
            "numbers": attempts.numbers(),
            "path": str(service / "file"),
            "package": str(packages / "file"),
        }
        before = [path.stat() for path in (service, service / "file", packages / "file")]
        done = subprocess.run(
            [python, "-c", _AS_USER],
            input=json.dumps([layers, sources, arguments, [str(packages)]]),
            user=65534,
            group=65534,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            env={"PYTHONPATH": created, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(temporary)},
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        level, *outcomes = json.loads(done.stdout)
        if level == Level.NONE:
            return
        uid, kernel, disk, _, memory, attributes = outcomes
        assert attributes == ["success", "[]"]
        for path, known in zip((service, service / "file", packages / "file"), before, strict=True):
            found = path.stat()
            assert (found.st_mode, found.st_mtime_ns) == (known.st_mode, known.st_mtime_ns)
        assert uid == ["success", "65534" if level == Level.MINIMAL else "61000"]
        assert kernel == ["success", "[]"]
        assert disk[0] != "success"
        assert memory[0] == "killed"
        assert "its processes needed more than 256 MB of memory together" in memory[1]
        assert list(temporary.iterdir()) == []
