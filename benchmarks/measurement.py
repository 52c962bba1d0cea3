"""Measures the rows of a plan on meshes that take turns, and the meshes themselves: start, memory, CPU at rest."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Final

from mnemesh_testkit.databases.postgres import PostgresServer

from benchmarks.agents import Connection, MeasuredAgent, create_agent, new_agent
from benchmarks.mesh import MESH, RunningMesh, create_databases, running_mesh
from benchmarks.plan import APIS, Api, Plan, Row
from benchmarks.processes import difference
from benchmarks.turns import HttpClient, Timed, agent_body, wave

_SETTLE_SECONDS: Final = 5.0
"""The time after a start for which a mesh still works."""
_QUIET_SECONDS: Final = 0.4
"""Longer than the time for which recall gathers messages before it indexes them."""
_NOT_SERVERS: Final = ("fake model", "load", "postgresql")
AGENTS_PATH: Final = "/v1/agents/"


@dataclass(slots=True)
class Measured:
    """A row on one mesh over one API."""

    row: Row
    api: Api
    timed: list[Timed] = field(default_factory=list)
    wall_seconds: float = 0.0
    cpu_ms: Counter[str] = field(default_factory=Counter)
    """CPU by process of all operations together, with the indexing that follows them."""

    @property
    def rate(self) -> float:
        """Operations per second of all agents together."""
        return len(self.timed) / self.wall_seconds

    @property
    def milliseconds(self) -> list[float]:
        """The measured time of each operation."""
        return [one.first_ms if self.row.figure == "first" else one.whole_ms for one in self.timed]

    @property
    def server_cpu_ms(self) -> float:
        """CPU of the mesh for one operation."""
        return sum(ms for name, ms in self.cpu_ms.items() if name not in _NOT_SERVERS) / len(self.timed)


@dataclass(frozen=True, slots=True)
class AtRest:
    """A mesh without work: seconds, megabytes of 10^6 bytes (shared pages divided), CPU milliseconds per second."""

    first_start: float
    warm_start: float
    memory_mb: float
    cpu_ms_per_second: float
    postgresql_mb: float
    postgresql_cpu_ms_per_second: float


@dataclass(slots=True)
class Version:
    """A version of mnemesh on one engine, and its results."""

    name: str
    python: str
    directory: Path
    postgres: PostgresServer | None = None
    databases: Sequence[str] = ()
    at_rest: AtRest | None = None
    memory_after_mb: float = 0.0
    rows: list[Measured] = field(default_factory=list)

    @asynccontextmanager
    async def run(self, model: tuple[str, int], *, processes: bool = False) -> AsyncIterator[RunningMesh]:
        async with running_mesh(
            self.directory,
            model,
            processes=processes,
            python=self.python,
            postgres=self.postgres,
            databases=self.databases,
        ) as mesh:
            yield mesh


class Bench:
    """A running mesh with its connections and agents."""

    def __init__(self, mesh: RunningMesh, connection: Connection) -> None:
        self._mesh = mesh
        self._connection = connection
        self._agents: dict[tuple[object, ...], list[MeasuredAgent]] = {}
        self._clients: list[HttpClient] = []
        self._servers = tuple(name for name in mesh.processes.cpu_ms() if name not in _NOT_SERVERS)

    async def measure(self, row: Row, api: Api, into: Measured | None) -> None:
        """Runs a block of a row. The windows are restored before it; without `into` it warms up."""
        agents = await self._agents_of(row) if row.script else []
        for agent in agents:
            await agent.trim(self._connection)
        clients = await self._clients_for(row) if api == "REST" else []
        await self.wait_until_idle()
        before, started = self._mesh.processes.cpu_ms(), time.perf_counter()
        if row.script is None:
            timed = [await self._create(clients) for _ in range(row.count)]
        else:
            timed = await wave(self._connection, agents, row.count, streamed=row.streamed, clients=clients)
        wall = time.perf_counter() - started
        await self.wait_until_idle()
        if into is not None:
            into.timed += timed
            into.wall_seconds += wall
            into.cpu_ms.update(difference(before, self._mesh.processes.cpu_ms()))

    async def wait_until_idle(self) -> None:
        """Waits until the work after calls has ended."""
        await self._mesh.processes.until_idle(self._servers, quiet_seconds=_QUIET_SECONDS)

    def memory_mb(self) -> float:
        """Returns the memory of the mesh."""
        return sum(mb for name, mb in self._mesh.processes.proportional_mb().items() if name not in _NOT_SERVERS)

    def close(self) -> None:
        """Closes the connections of HTTP."""
        for client in self._clients:
            client.close()

    async def _agents_of(self, row: Row) -> Sequence[MeasuredAgent]:
        assert row.script is not None
        made = self._agents.setdefault((row.script, row.stored, row.window, row.policy), [])
        while len(made) < row.agents:
            agent = await create_agent(
                self._connection, model=row.script, stored=row.stored, window=row.window, policy=row.policy
            )
            made.append(agent)
        return made[: row.agents]

    async def _clients_for(self, row: Row) -> Sequence[HttpClient]:
        while len(self._clients) < row.agents:
            self._clients.append(await HttpClient.open(self._mesh.config.address("gateway")))
        return self._clients[: row.agents]

    async def _create(self, clients: Sequence[HttpClient]) -> Timed:
        started = time.perf_counter()
        if clients:
            async for _ in clients[0].post(AGENTS_PATH, agent_body("one-step")):
                pass
        else:
            await self._connection.agents.CreateAgent(new_agent("one-step"))
        took = (time.perf_counter() - started) * 1e3
        return Timed(took, took)


@asynccontextmanager
async def _bench(version: Version, model: tuple[str, int], *, processes: bool = False) -> AsyncIterator[Bench]:
    async with version.run(model, processes=processes) as mesh, Connection(mesh.config) as connection:
        bench = Bench(mesh, connection)
        try:
            yield bench
        finally:
            bench.close()


async def measure_at_rest(version: Version, model: tuple[str, int], plan: Plan) -> None:
    """Starts a version twice, and measures it after the second start without any work."""
    if version.postgres is not None:
        version.databases = await create_databases(version.postgres)
    async with version.run(model) as mesh:
        first = mesh.start_seconds
    async with version.run(model) as mesh:
        await asyncio.sleep(_SETTLE_SECONDS)
        before = mesh.processes.cpu_ms()
        await asyncio.sleep(plan.idle_seconds)
        cpu = {name: ms / plan.idle_seconds for name, ms in difference(before, mesh.processes.cpu_ms()).items()}
        memory = mesh.processes.proportional_mb()
        version.at_rest = AtRest(
            first_start=first,
            warm_start=mesh.start_seconds,
            memory_mb=memory[MESH],
            cpu_ms_per_second=cpu[MESH],
            postgresql_mb=memory.get("postgresql", 0.0),
            postgresql_cpu_ms_per_second=cpu.get("postgresql", 0.0),
        )


async def measure_rows(versions: Sequence[Version], model: tuple[str, int], plan: Plan) -> None:
    """Measures all rows. The versions run at the same time, and their blocks alternate."""
    async with AsyncExitStack() as stack:
        benches = [await stack.enter_async_context(_bench(version, model)) for version in versions]
        for number, row in enumerate(plan.rows, 1):
            print(f"  {number}/{len(plan.rows)} {row.name}", file=sys.stderr)
            measured = [[Measured(row, api) for api in APIS] for _ in versions]
            for block in range(plan.blocks + 1):
                for bench, by_api in zip(benches, measured, strict=True):
                    for one in by_api:
                        await bench.measure(row, one.api, one if block else None)
            for version, by_api in zip(versions, measured, strict=True):
                version.rows += by_api
        for version, bench in zip(versions, benches, strict=True):
            version.memory_after_mb = bench.memory_mb()


async def measure_services(version: Version, model: tuple[str, int], plan: Plan) -> list[Measured]:
    """Measures the CPU of each service, on a mesh of one process for each service."""
    found = []
    async with _bench(version, model, processes=True) as bench:
        for row in plan.rows:
            if row.script is not None and row.policy == "v1" and not row.streamed:
                one = Measured(row, "gRPC")
                await bench.measure(row, "gRPC", None)
                for _ in range(plan.blocks):
                    await bench.measure(row, "gRPC", one)
                found.append(one)
    return found


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median and the 95th percentile."""
    if len(values) == 1:
        return values[0], values[0]
    cuts = quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[94]
