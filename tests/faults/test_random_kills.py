"""kill -9 at random moments while agents write to each other, groups run, and partners read along.

Afterwards, what recall holds is counted: every message once, every turn of a member once, and each message of an agent
with a partner in one transcript.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_client import Mnemesh
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.fork_server import ForkServer
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import texts
from mnemesh_testkit.timeouts import scaled

from .loads.contract import Load
from .loads.groups import Dynamic, RoundRobin, Supervisor
from .loads.messages import Messages, MutualQuestions
from .loads.partners import Partners

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(scaled(600))]
LIMIT_SECONDS = scaled(300)
KILLS = 12
"""In each round, at most: on a slow machine, runs would be killed more often than they make progress."""
LOADS: tuple[Callable[[], Load], ...] = (Messages, MutualQuestions, RoundRobin, Dynamic, Supervisor, Partners)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    provider: FakeOpenAI,
    fork_server: ForkServer,
) -> AsyncIterator[ProcessMesh]:
    """A mesh whose runs may be resumed any number of times: kills come faster than a run makes progress."""
    async with ProcessMesh(
        tmp_path_factory.mktemp("mesh"),
        openai_base_url=provider.base_url,
        environment={"MNEMESH_TAKEOVERS_WITHOUT_PROGRESS": "1000"},
        fork_server=fork_server,
        one_process=request.param == "one process",
    ) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    tmp_path_factory: pytest.TempPathFactory,
    provider: FakeOpenAI,
    postgres_server: PostgresServer,
    fork_server: ForkServer,
) -> AsyncIterator[ProcessMesh]:
    """A mesh with two orchestrators on one database."""
    name = await postgres_server.create_database()
    async with ProcessMesh(
        tmp_path_factory.mktemp("replicas"),
        openai_base_url=provider.base_url,
        environment={
            "MNEMESH_TAKEOVERS_WITHOUT_PROGRESS": "1000",
            "MNEMESH_ORCHESTRATOR_DATABASE_URL": postgres_server.url(name),
        },
        replicas={"orchestrator": 2},
        fork_server=fork_server,
    ) as running:
        yield running
    await postgres_server.drop_database(name)


@asynccontextmanager
async def killing(
    mesh: ProcessMesh, chance: random.Random, services: Sequence[str], kills: Counter[str], most: int
) -> AsyncIterator[None]:
    """Kills and restarts services at random moments, at most so often, and counts how often."""
    stopping = asyncio.Event()

    async def kill() -> None:
        while not stopping.is_set() and kills.total() < most:
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            service = chance.choice(services)
            await mesh.kill(service)
            kills[service] += 1
            await asyncio.sleep(chance.uniform(0, 0.2))
            await mesh.start(service)

    killer = asyncio.create_task(kill())
    try:
        yield
    finally:
        stopping.set()
        await killer


async def idle(client: Mnemesh) -> None:
    """Waits until no run is active."""
    while [run async for run in client.runs.list(statuses=["created", "running"])]:
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("mesh", "seed", "rounds"),
    [
        ("one process", 1, 1),
        *(pytest.param(form, 2, 4, marks=pytest.mark.full) for form in ("one process", "processes")),
        *(
            pytest.param(form, seed, 8, marks=pytest.mark.sweep)
            for form in ("one process", "processes")
            for seed in (3, 4)
        ),
    ],
    indirect=["mesh"],
)
async def test_everything_happens_once(mesh: ProcessMesh, provider: FakeOpenAI, seed: int, rounds: int) -> None:
    killed = ("mesh",) if "mesh" in mesh.names else ("orchestrator", "orchestrator", "recall")
    await run_and_count(mesh, provider, seed, rounds, killed)


@pytest.mark.full
@pytest.mark.parametrize(
    ("seed", "rounds"), [(6, 2), *(pytest.param(seed, 5, marks=pytest.mark.sweep) for seed in (7, 8))]
)
async def test_everything_happens_once_in_replicas(
    replicas: ProcessMesh, provider: FakeOpenAI, seed: int, rounds: int
) -> None:
    await run_and_count(replicas, provider, seed, rounds, ("orchestrator", "orchestrator-2", "recall"))


async def run_and_count(
    mesh: ProcessMesh, provider: FakeOpenAI, seed: int, rounds: int, services: Sequence[str]
) -> None:
    """Runs every load while services are killed, and counts what happened."""
    loads = [load() for load in LOADS]
    for load in loads:
        await load.prepare(mesh.client)

    def answer(body: dict[str, Any]) -> Reply | str:
        name = texts(body)[0].split()[0]
        answers = [answer for load in loads if (answer := load.answer(name, body)) is not None]
        assert len(answers) == 1, f"{name} belongs to {len(answers)} loads"
        return answers[0]

    provider.script = answer
    kills: Counter[str] = Counter()
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            async with killing(mesh, random.Random(seed), services, kills, KILLS * rounds):
                await asyncio.gather(*(load.drive(mesh.client, rounds) for load in loads))
            await idle(mesh.client)
    except TimeoutError:
        unfinished = [run async for run in mesh.client.runs.list(statuses=["created", "running"])]
        at = {type(load).__name__: getattr(load, "at", None) for load in loads}
        pytest.fail(f"after {dict(kills)} kills, in the rounds {at}, these runs have not ended: {unfinished}")
    assert sum(kills.values()) > 0
    for load in loads:
        await load.verify(mesh.client, rounds)
