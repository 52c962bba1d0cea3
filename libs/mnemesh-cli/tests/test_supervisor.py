"""The supervisor with real service processes: start, restart, stop, and start-up errors in one line."""

import asyncio
import fcntl
import json
import os
import select
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
from mnemesh_cli.supervisor import health
from mnemesh_cli.supervisor.config import LOCK_NAME, LockHolder, MeshConfig, lock_holder
from mnemesh_cli.supervisor.process import ServiceProcess
from mnemesh_cli.supervisor.supervisor import _RESTART_BACKOFF, Supervisor
from mnemesh_client import Mnemesh
from mnemesh_client.addresses import Addresses
from mnemesh_kit.config import StartupError
from mnemesh_kit.services import SERVICE_NAMES, SERVICES
from mnemesh_testkit.timeouts import scaled

SOME = ("blocks", "tools")


class Notices:
    """The notices of a supervisor."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self._changed.set()

    async def wait_for(self, text: str) -> None:
        """Waits for a notice that contains `text`."""
        while not any(text in line for line in self.lines):
            self._changed.clear()
            await self._changed.wait()


@pytest.fixture
def config(tmp_path: Path, reserve_port: Callable[[], int]) -> MeshConfig:
    """A mesh on free ports and an empty data directory."""
    ports = {name: reserve_port() for name in SERVICE_NAMES}
    return MeshConfig(
        data_dir=str(tmp_path / "data"), ports=ports, start_seconds=scaled(120), shutdown_grace_seconds=scaled(20)
    )


@pytest_asyncio.fixture
async def supervisor(config: MeshConfig) -> AsyncIterator[Supervisor]:
    """The supervisor of two services, not started."""
    supervisor = Supervisor(config, Notices(), SOME, processes=True)
    yield supervisor
    await supervisor.stop()


async def test_services_serve_after_start_and_exit_on_stop(config: MeshConfig) -> None:
    notices = Notices()
    supervisor = Supervisor(config, notices, SOME, processes=True, notice_seconds=0.01)
    try:
        await supervisor.start()
        assert any(line.startswith("still starting after ") for line in notices.lines)
        pids = [service.pid for service in supervisor.services.values()]
        assert await _states(config) == ["SERVING", "SERVING"]
        supervisor.declare_ready()
        assert lock_holder(config.data_path) == LockHolder(os.getpid(), ready=True, addresses=config.addresses)
        assert (config.data_path / "logs" / "blocks.log").read_text()

        code, err = await _up(config)
        assert (code, f"(pid {os.getpid()}) is running on {config.data_path}" in err) == (2, True), err
        assert await _states(config) == ["SERVING", "SERVING"]
    finally:
        await supervisor.stop()
    assert not [pid for pid in pids if pid is not None and Path(f"/proc/{pid}").exists()]
    assert lock_holder(config.data_path) is None


async def test_start_ends_after_its_time_and_names_what_is_not_ready(config: MeshConfig) -> None:
    impatient = Supervisor(replace(config, start_seconds=0.02), Notices(), SOME, processes=True)
    with pytest.raises(StartupError, match=r"Not ready after 0 s: blocks, tools\. See the logs in "):
        await impatient.start()
    assert impatient.services == {}


async def test_killed_service_is_restarted_with_its_data(config: MeshConfig) -> None:
    notices = Notices()
    supervisor = Supervisor(config, notices, ("blocks",), processes=True)
    await supervisor.start()
    async with Mnemesh(blocks=config.address("blocks")) as mnemesh:
        block = await mnemesh.blocks.create("notes", "Kept.")
        pid = supervisor.services["blocks"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await notices.wait_for("blocks was killed by SIGKILL; restarting it")
        await notices.wait_for("blocks is ready again")

    async with Mnemesh(blocks=config.address("blocks")) as mnemesh:
        assert (await mnemesh.blocks.get(block.id)).value == "Kept."
    assert supervisor.services["blocks"].pid != pid
    await supervisor.stop()


@pytest.mark.full
async def test_one_process_runs_all_services_and_is_restarted_with_their_data(config: MeshConfig) -> None:
    notices = Notices()
    supervisor = Supervisor(config, notices)
    await supervisor.start()
    try:
        (mesh,) = supervisor.services.values()
        assert mesh.pid is not None
        async with Mnemesh(Addresses(**config.addresses)) as mnemesh:
            agent = await mnemesh.agents.create("ada", blocks={"human": "Likes tea."})
            os.kill(mesh.pid, signal.SIGKILL)
            await notices.wait_for("mesh was killed by SIGKILL; restarting it")
            await notices.wait_for("mesh is ready again")
            assert [block.value for block in (await agent.memory()).blocks] == ["Likes tea."]
            await mnemesh.agents.get(agent.id)
    finally:
        await supervisor.stop()

    log = (config.data_path / "logs" / "mesh.log").read_text().splitlines()
    served = {(line["service"], line["method"]) for line in map(json.loads, log) if line["event"] == "call"}
    assert ("blocks", "/mnemesh.blocks.v1.BlockService/CreateCoreMemory") in served, "called by the orchestrator"
    assert ("orchestrator", "/mnemesh.agents.v1.AgentService/GetAgent") in served


@pytest.mark.full
async def test_services_exit_with_a_killed_supervisor_and_a_new_one_starts(
    supervisor: Supervisor, config: MeshConfig
) -> None:
    code = (
        "import asyncio, sys\n"
        "from mnemesh_cli.supervisor.supervisor import Supervisor\n"
        "from mnemesh_cli.supervisor.config import MeshConfig\n"
        "async def main():\n"
        "    supervisor = Supervisor(MeshConfig.from_env(), lambda _: None, sys.argv[1:], processes=True)\n"
        "    await supervisor.start()\n"
        "    print(*(service.pid for service in supervisor.services.values()), flush=True)\n"
        "    await asyncio.Future()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        *SOME,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **_environment(config)},
    )
    assert process.stdout is not None
    services = [os.pidfd_open(int(pid)) for pid in (await process.stdout.readline()).split()]
    assert len(services) == 2

    process.kill()
    await process.wait()

    for service in services:
        assert select.select([service], [], [], scaled(60))[0], "a service outlived its supervisor"
        os.close(service)
    await supervisor.start()
    assert await health.health_status(config.address("blocks")) == "SERVING"


async def test_invalid_setting_of_a_service_is_one_error_line(
    config: MeshConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MNEMESH_TOOLS_MEMORY_MB", "lots")
    supervisor = Supervisor(config, Notices(), ("tools",), processes=True)

    with pytest.raises(StartupError, match="MNEMESH_TOOLS_MEMORY_MB"):
        await supervisor.start()

    assert lock_holder(config.data_path) is None


def test_lock_of_a_later_release_is_read(tmp_path: Path) -> None:
    with (tmp_path / LOCK_NAME).open("w") as file:
        file.write('{"pid": 4711, "ready": true, "new": 1}')
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert lock_holder(tmp_path) == LockHolder(4711, ready=True)


async def test_port_in_use_is_one_error_line(config: MeshConfig) -> None:
    with socket.create_server(("127.0.0.1", config.port("recall"))):
        code, err = await _up(config)

    assert code == 2
    assert f"Port {config.port('recall')} on 127.0.0.1 is already in use" in err
    assert "MNEMESH_RECALL_PORT" in err


async def test_orchestrator_has_stopped_before_the_others_are_stopped(config: MeshConfig) -> None:
    stopped: list[str] = []
    drained = asyncio.Event()

    class Process:
        def __init__(self, name: str) -> None:
            self.name = name

        async def stop(self, timeout_seconds: float) -> bool:
            if self.name == "orchestrator":
                await drained.wait()
            stopped.append(self.name)
            return True

    supervisor = Supervisor(config, Notices())
    supervisor.services = {name: cast("ServiceProcess", Process(name)) for name in ("recall", "orchestrator", "blocks")}
    stop = asyncio.create_task(supervisor.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    assert stopped == []
    drained.set()
    await stop
    assert (stopped[0], sorted(stopped[1:])) == ("orchestrator", ["blocks", "recall"])


def test_service_that_keeps_exiting_is_restarted_within_seconds() -> None:
    assert [_RESTART_BACKOFF.delay(number) for number in (1, 2, 20)] == [0.25, 0.5, 5.0]


async def test_read_only_data_directory_is_one_error_line(config: MeshConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    code, err = await _up(config, MNEMESH_DATA_DIR=str(tmp_path / "file" / "data"))

    assert code == 2
    assert f"The data directory {tmp_path}/file/data cannot be written" in err


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("MNEMESH_BLOCKS_PORT", "many", "MNEMESH_BLOCKS_PORT must be a port number"),
        pytest.param(
            "MNEMESH_BLOCKS_PORT", "70000", "MNEMESH_BLOCKS_PORT must be a port number", marks=pytest.mark.full
        ),
        ("MNEMESH_METRICS_PORT", "http", "MNEMESH_METRICS_PORT has an invalid value"),
    ],
)
async def test_invalid_setting_is_one_error_line(config: MeshConfig, variable: str, value: str, line: str) -> None:
    code, err = await _up(config, **{variable: value})

    assert code == 2
    assert line in err


async def _states(config: MeshConfig) -> list[str]:
    return [await health.health_status(config.address(name)) for name in SOME]


async def _up(config: MeshConfig, **environment: str) -> tuple[int | None, str]:
    """Runs `mnemesh up`. Returns its exit code and its only line of output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "MNEMESH_"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mnemesh_cli", "up"),
        stderr=asyncio.subprocess.PIPE,
        env={**inherited, **_environment(config), **environment},
    )
    _, err = await process.communicate()
    assert len(err.splitlines()) == 1, err.decode()
    return process.returncode, err.decode()


def _environment(config: MeshConfig) -> dict[str, str]:
    ports = {spec.port_variable: str(config.port(spec.name)) for spec in SERVICES}
    limits = {"MNEMESH_SHUTDOWN_GRACE_SECONDS": str(config.shutdown_grace_seconds)}
    return {"MNEMESH_DATA_DIR": config.data_dir, **limits, **ports}
