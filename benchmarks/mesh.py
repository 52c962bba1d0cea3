"""The mesh under measurement: the product's own supervisor over real processes, and the fake model beside it."""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from mnemesh_client.supervisor.config import MeshConfig
from mnemesh_client.supervisor.supervisor import Supervisor
from mnemesh_kit.services import SERVICE_NAMES

from benchmarks.processes import Processes


@dataclass(frozen=True, slots=True)
class RunningMesh:
    """A mesh that answers."""

    config: MeshConfig
    processes: Processes
    """The services, the fake model, and this process as the one that makes the load."""
    start_seconds: float
    """From the first process started to the last service healthy."""

    def counters(self) -> dict[str, float]:
        """Calls and transactions of each service since it began, as its metrics tell; only where they are on."""
        assert self.config.metrics_port is not None, "the mesh runs without metrics"
        found: dict[str, float] = {}
        for number, room in enumerate(SERVICE_NAMES):
            with urlopen(f"http://127.0.0.1:{self.config.metrics_port + number}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            for line in lines:
                if line.startswith(("mnemesh_rpcs_total", "mnemesh_sql_transactions_total")):
                    series, _, value = line.rpartition(" ")
                    found[f"{room} {series}"] = float(value)
        return found


@asynccontextmanager
async def fake_model() -> AsyncIterator[tuple[str, int]]:
    """A fake OpenAI in a process of its own: its base URL and its pid."""
    command = (sys.executable, "-m", "mnemesh_testkit.fakes.openai", "--port", "0")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield json.loads(await process.stdout.readline())["base_url"], process.pid
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def running_mesh(data_dir: Path, model: tuple[str, int], *, metrics: bool = False) -> AsyncIterator[RunningMesh]:
    """All services on free ports, on embedded stores under `data_dir`, until the context is left."""
    base_url, model_pid = model
    os.environ["OPENAI_BASE_URL"] = base_url  # the services inherit this process's environment
    ports = _free_ports(len(SERVICE_NAMES) * 2)
    settings = {f"MNEMESH_{room.upper()}_PORT": str(port) for room, port in zip(SERVICE_NAMES, ports, strict=False)}
    settings["MNEMESH_DATA_DIR"] = str(data_dir)
    if metrics:
        settings["MNEMESH_METRICS_PORT"] = str(ports[len(SERVICE_NAMES)])
    config = MeshConfig.from_env(settings)
    mesh = Supervisor(config, lambda line: print(f"  mesh: {line}", file=sys.stderr))
    began = time.perf_counter()
    await mesh.start()
    took = time.perf_counter() - began
    try:
        pids = {room: service.pid for room, service in mesh.services.items() if service.pid is not None}
        yield RunningMesh(config, Processes({**pids, "fake model": model_pid, "load": os.getpid()}), took)
    finally:
        await mesh.stop()


def _free_ports(count: int) -> tuple[int, ...]:
    """Neighbouring ports that nobody listens on."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            start = first.getsockname()[1]
        ports = range(start, start + count)
        if ports[-1] < 65_536 and all(_is_free(port) for port in ports):
            return tuple(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
