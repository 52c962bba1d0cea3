"""The measured mesh: `mnemesh up` of this version or of another one, and a fake model."""

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_kit.services import SERVICES, STORE_NAMES
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.mesh.in_process import certificates as create
from mnemesh_testkit.mesh.in_process import tls_environment
from mnemesh_testkit.mesh.processes import descendants

from benchmarks.processes import Processes

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 30.0
MESH: Final = "mesh"
"""The name of `mnemesh up` with its children. A service that is a process of its own has its own name."""
_ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class RunningMesh:
    config: MeshConfig
    processes: Processes
    """The mesh with all its processes or each service, the database server, the fake model, and this process as load
    generator."""
    start_seconds: float
    """The time from the start of `mnemesh up` until it reports that all services are ready."""


@asynccontextmanager
async def fake_model(seconds: float = 0.0) -> AsyncIterator[tuple[str, int]]:
    """Runs a fake OpenAI server, whose answers take some time, in a process; yields its base URL and its pid."""
    command = (sys.executable, "-m", "mnemesh_testkit.fakes.openai", "--port", "0", "--seconds", str(seconds))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield json.loads(await process.stdout.readline())["base_url"], process.pid
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def running_mesh(
    data_dir: Path,
    model: tuple[str, int],
    *,
    processes: bool = True,
    python: str = sys.executable,
    postgres: PostgresServer | None = None,
    databases: Sequence[str] = (),
    tls: bool = False,
    more: Mapping[str, str] | None = None,
) -> AsyncIterator[RunningMesh]:
    """Runs a mesh on free ports with its data in `data_dir`.

    Args:
        data_dir: the directory of embedded stores and logs.
        model: the base URL and the pid of the fake model.
        processes: whether each service is a process.
        python: the interpreter that has the measured version installed.
        postgres: the server that holds the SQL databases, in place of files.
        databases: the names of its databases, one for each service with a store (`create_databases`).
        tls: whether the processes use mutual TLS.
        more: further settings, by the names of their variables.
    """
    base_url, model_pid = model
    ports = free_ports(len(SERVICES))
    settings = {spec.port_variable: str(port) for spec, port in zip(SERVICES, ports, strict=True)}
    settings |= {"MNEMESH_DATA_DIR": str(data_dir), "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"}
    settings |= tls_environment(create(data_dir / "certificates")) if tls else {}
    settings |= more or {}
    config = MeshConfig.from_env(settings)
    if postgres is not None:
        for name, database in zip(STORE_NAMES, databases, strict=True):
            settings[f"MNEMESH_{name.upper()}_DATABASE_URL"] = postgres.url(database)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MNEMESH_", "OTEL_"))}
    data_dir.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with (data_dir / "up.log").open("ab") as log:
        up = await asyncio.create_subprocess_exec(
            *(python, "-m", "mnemesh_cli", "--json", "up", *(["--processes"] if processes else [])),
            env=inherited | settings,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        assert up.stdout is not None
        ready = await asyncio.wait_for(up.stdout.readline(), START_SECONDS)
        if not ready:
            raise RuntimeError(f"mnemesh up has ended: {(data_dir / 'up.log').read_text()[-500:]}")
        took = time.perf_counter() - started
        pids = (_services(up.pid) if processes else {MESH: up.pid}) | {"fake model": model_pid, "load": os.getpid()}
        if postgres is not None:
            pids["postgresql"] = postgres.pid
        yield RunningMesh(config, Processes(pids, frozenset({MESH, "postgresql"})), took)
    finally:
        await _stop(up)


async def create_databases(postgres: PostgresServer) -> tuple[str, ...]:
    """Creates an empty database for each service with a store, and returns their names."""
    return tuple([await postgres.create_database() for _ in STORE_NAMES])


def interpreter_of(revision: str) -> str:
    """Checks out a revision of this repository in `build/versions`, installs it there, and returns its interpreter.

    Raises:
        RuntimeError: git or the installation failed.
    """
    commit = _run("git", "rev-parse", "--verify", f"{revision}^{{commit}}")
    checkout = _ROOT / "build" / "versions" / commit[:12]
    if not checkout.exists():
        _run("git", "worktree", "add", "--detach", str(checkout), commit)
    _run("make", "-C", str(checkout), ".venv/.dev")
    return str(checkout / ".venv" / "bin" / "python")


def free_ports(count: int) -> tuple[int, ...]:
    """Returns consecutive free ports, below those that the kernel gives to outgoing connections."""
    while True:
        start = random.randrange(20_000, 32_000 - count)
        ports = range(start, start + count)
        if all(map(_is_free, ports)):
            return tuple(ports)


def _services(supervisor: int) -> dict[str, int]:
    """Returns the pids of services by name. Their command is `python -m <package of the service>`."""
    found: dict[str, int] = {}
    for pid in descendants(supervisor):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        found |= {spec.name: pid for spec in SERVICES if any(word.startswith(spec.package) for word in words)}
    return {spec.name: found[spec.name] for spec in SERVICES}


async def _stop(up: asyncio.subprocess.Process) -> None:
    if up.returncode is None:
        up.terminate()
    try:
        await asyncio.wait_for(up.wait(), STOP_SECONDS)
    except TimeoutError:
        up.kill()  # the kernel ends its children
        await up.wait()


def _run(*command: str) -> str:
    foreign = ("UV_", "VIRTUAL_ENV", "MAKE", "MFLAGS")  # of a make that runs the benchmark
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
