"""The measured mesh: the supervisor of `mnemesh up` with real processes, and a fake model."""

import asyncio
import json
import os
import random
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_cli.supervisor.supervisor import Supervisor
from mnemesh_kit.services import SERVICES
from mnemesh_testkit.mesh.in_process import certificates as create
from mnemesh_testkit.mesh.in_process import tls_environment

from benchmarks.processes import Processes


@dataclass(frozen=True, slots=True)
class RunningMesh:
    """A running mesh."""

    config: MeshConfig
    processes: Processes
    """The services, the fake model, and this process as load generator."""
    start_seconds: float
    """Time from the start of the first process until all services are healthy."""

    def counters(self) -> dict[str, float]:
        """Returns the calls and transactions of each service since its start, from its metrics. Metrics must be
        enabled."""
        assert self.config.metrics_port is not None, "the mesh runs without metrics"
        found: dict[str, float] = {}
        for spec in SERVICES:
            port = self.config.metrics_port + spec.metrics_offset
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            for line in lines:
                if line.startswith(("mnemesh_rpcs_total", "mnemesh_sql_transactions_total")):
                    series, _, value = line.rpartition(" ")
                    found[f"{spec.name} {series}"] = float(value)
        return found


@asynccontextmanager
async def fake_model() -> AsyncIterator[tuple[str, int]]:
    """Runs a fake OpenAI server in a process; yields its base URL and its pid."""
    command = (sys.executable, "-m", "mnemesh_testkit.fakes.openai", "--port", "0")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield json.loads(await process.stdout.readline())["base_url"], process.pid
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def running_mesh(
    data_dir: Path, model: tuple[str, int], *, metrics: bool = False, tls: bool = False
) -> AsyncIterator[RunningMesh]:
    """Runs all services on free ports with embedded stores in `data_dir`; with `tls`, over mutual TLS."""
    base_url, model_pid = model
    certificates = tls_environment(create(data_dir / "certificates")) if tls else {}
    os.environ |= {"OPENAI_BASE_URL": base_url, **certificates}  # the services inherit this process's environment
    ports = free_ports(len(SERVICES) * 2)
    settings = {spec.port_variable: str(port) for spec, port in zip(SERVICES, ports, strict=False)}
    settings |= {"MNEMESH_DATA_DIR": str(data_dir), **certificates}
    if metrics:
        settings["MNEMESH_METRICS_PORT"] = str(ports[len(SERVICES)])
    config = MeshConfig.from_env(settings)
    mesh = Supervisor(config, lambda line: print(f"  mesh: {line}", file=sys.stderr), processes=True)
    started = time.perf_counter()
    await mesh.start()
    took = time.perf_counter() - started
    try:
        pids = {name: service.pid for name, service in mesh.services.items() if service.pid is not None}
        yield RunningMesh(config, Processes({**pids, "fake model": model_pid, "load": os.getpid()}), took)
    finally:
        await mesh.stop()


def free_ports(count: int) -> tuple[int, ...]:
    """Returns consecutive free ports, below those that the kernel gives to outgoing connections."""
    while True:
        start = random.randrange(20_000, 32_000 - count)
        ports = range(start, start + count)
        if all(map(_is_free, ports)):
            return tuple(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
