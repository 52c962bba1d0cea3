"""`mnemesh up` with real services as processes: started, brought back, stopped, and refused in one line."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh_client import Mnemesh
from mnemesh_client.supervisor import health
from mnemesh_client.supervisor.config import ROOMS, MeshConfig
from mnemesh_client.supervisor.data_lock import lock_holder
from mnemesh_client.supervisor.supervisor import Supervisor
from mnemesh_kit.config import StartupError

SOME = ("blocks", "tools")


class Notices:
    """What the supervisor says, and a way to wait for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self._news.set()

    async def wait_for(self, text: str) -> None:
        while not any(text in line for line in self.lines):
            self._news.clear()
            await self._news.wait()


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> MeshConfig:
    """Ports and a data directory of the test's own."""
    ports = {f"{room}_port": unused_tcp_port_factory() for room in ROOMS}
    return MeshConfig(data_dir=str(tmp_path / "data"), **ports)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def mesh(config: MeshConfig) -> AsyncIterator[Supervisor]:
    """A mesh of two rooms, not started."""
    mesh = Supervisor(config, Notices(), SOME)
    yield mesh
    await mesh.stop()


@pytest.mark.timeout(60)
async def test_services_answer_when_started_and_are_gone_when_stopped(mesh: Supervisor, config: MeshConfig) -> None:
    await mesh.start()
    pids = [service.pid for service in mesh.services.values()]
    assert [await health.status(config.address(room)) for room in SOME] == ["SERVING", "SERVING"]
    mesh.declare_ready()
    assert lock_holder(config.data_path) == {"pid": os.getpid(), "ready": True}
    assert (config.data_path / "logs" / "blocks.log").read_text()

    await mesh.stop()

    assert not [pid for pid in pids if pid is not None and Path(f"/proc/{pid}").exists()]
    assert lock_holder(config.data_path) is None


@pytest.mark.timeout(60)
async def test_a_killed_service_comes_back_with_its_data(config: MeshConfig) -> None:
    notices = Notices()
    mesh = Supervisor(config, notices, SOME)
    await mesh.start()
    async with Mnemesh(blocks=config.address("blocks")) as mnemesh:
        block = await mnemesh.blocks.create("notes", "Kept.")
        pid = mesh.services["blocks"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await notices.wait_for("blocks was ended by SIGKILL; starting it again")
        await notices.wait_for("blocks is back")

    async with Mnemesh(blocks=config.address("blocks")) as mnemesh:
        assert (await mnemesh.blocks.get(block.id)).value == "Kept."
    assert mesh.services["blocks"].pid != pid
    await mesh.stop()


@pytest.mark.timeout(60)
async def test_services_end_with_a_killed_supervisor_and_a_new_one_starts(mesh: Supervisor, config: MeshConfig) -> None:
    code = (
        "import asyncio, sys\n"
        "from mnemesh_client.supervisor.supervisor import Supervisor\n"
        "from mnemesh_client.supervisor.config import MeshConfig\n"
        "async def main():\n"
        "    mesh = Supervisor(MeshConfig.from_env(), print, sys.argv[1:])\n"
        "    await mesh.start()\n"
        "    print(*(service.pid for service in mesh.services.values()), flush=True)\n"
        "    await asyncio.Future()\n"
        "asyncio.run(main())\n"
    )
    supervisor = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        *SOME,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **_environment(config)},
    )
    assert supervisor.stdout is not None
    await supervisor.stdout.readline()
    services = [os.pidfd_open(int(pid)) for pid in (await supervisor.stdout.readline()).split()]
    assert len(services) == 2

    supervisor.kill()
    await supervisor.wait()

    for service in services:
        assert select.select([service], [], [], 10)[0], "a service outlived its supervisor"
        os.close(service)
    await mesh.start()
    assert await health.status(config.address("blocks")) == "SERVING"


async def test_a_bad_setting_of_a_service_is_its_own_line(
    mesh: Supervisor, config: MeshConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MNEMESH_TOOLS_MEMORY_MB", "lots")
    mesh = Supervisor(config, Notices(), SOME)

    with pytest.raises(StartupError, match="MNEMESH_TOOLS_MEMORY_MB"):
        await mesh.start()

    assert lock_holder(config.data_path) is None


@pytest.mark.timeout(60)
async def test_a_second_instance_on_the_same_directory_is_refused(mesh: Supervisor, config: MeshConfig) -> None:
    await mesh.start()

    code, err = await _up(config)

    assert code == 2
    assert f"(pid {os.getpid()}) runs on {config.data_path}" in err
    assert await health.status(config.address("blocks")) == "SERVING"


async def test_a_taken_port_is_one_line(config: MeshConfig) -> None:
    with socket.create_server(("127.0.0.1", config.recall_port)):
        code, err = await _up(config)

    assert code == 2
    assert f"Port {config.recall_port} on 127.0.0.1 is already taken" in err
    assert "MNEMESH_RECALL_PORT" in err


async def test_a_directory_that_cannot_be_written_is_one_line(config: MeshConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    code, err = await _up(config, MNEMESH_DATA_DIR=str(tmp_path / "file" / "data"))

    assert code == 2
    assert f"The data directory {tmp_path}/file/data cannot be written" in err


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("MNEMESH_BLOCKS_PORT", "many", "MNEMESH_BLOCKS_PORT has an invalid value"),
        ("MNEMESH_BLOCKS_PORT", "70000", "70000 is no port"),
        ("MNEMESH_METRICS_PORT", "http", "MNEMESH_METRICS_PORT has an invalid value"),
    ],
)
async def test_a_bad_setting_is_one_line(config: MeshConfig, variable: str, value: str, line: str) -> None:
    code, err = await _up(config, **{variable: value})

    assert code == 2
    assert line in err


async def _up(config: MeshConfig, **environment: str) -> tuple[int | None, str]:
    """Runs `mnemesh up`: its exit code, and the one line that it says."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "MNEMESH_"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mnemesh_client", "up"),
        stderr=asyncio.subprocess.PIPE,
        env={**inherited, **_environment(config), **environment},
    )
    _, err = await process.communicate()
    assert len(err.splitlines()) == 1, err.decode()
    return process.returncode, err.decode()


def _environment(config: MeshConfig) -> dict[str, str]:
    ports = {f"MNEMESH_{room.upper()}_PORT": str(config.port(room)) for room in ROOMS}
    return {"MNEMESH_DATA_DIR": config.data_dir, **ports}
