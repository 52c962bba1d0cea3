"""PostgreSQL restarts during turns: the runs wait or are resumed, and nothing is duplicated."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_testkit.databases.postgres import PostgresServer, running_postgres, shared_parent

from ..support.faults import Faults
from ..support.model import by_place, call, say
from ..support.world import Process, World, kinds, opened, require_valid

FACT = "Once. " + "Long. " * 2_000
SCRIPT = (call("archival_memory_insert", content=FACT), say("Done."))
TOLD = ["tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]


async def turn_with(
    world: World, on_call: Callable[[str], Awaitable[None]], on_effect: Callable[[str], Awaitable[None]] | None = None
) -> tuple[Process, list[str]]:
    """Runs a turn whose process sees an outage at its calls. Returns the process and the calls that it made."""
    process = world.process()
    agent = await world.agent(process)
    world.model.script = by_place(*SCRIPT)
    run = await process.start(agent)
    process.faults.on_call, process.faults.on_effect = on_call, on_effect
    await process.idle()
    calls = list(process.faults.calls)
    process.faults.on_call = process.faults.on_effect = None
    if world.on_wait is not None:
        await world.on_wait()
    for _ in range(3):
        await process.recover()
    run = await process.outcome(agent)
    assert run.status is RunStatus.COMPLETED, run.error
    assert kinds(await process.follow(run)) == TOLD
    assert await world.archival.texts(agent.id) == [FACT]
    require_valid(world.window(agent).messages)
    return process, calls


async def terminate(url: str) -> None:
    """Ends every connection to the database."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_connection_loss_at_any_access_of_a_turn(tmp_path: Path, postgres_url: str) -> None:
    async with opened(tmp_path, postgres_url) as world:
        broken = []

        async def breaks(name: str) -> None:
            if name in ("runs.write", "runs.finish"):
                broken.append(name)
                await terminate(postgres_url)

        await turn_with(world, breaks, breaks)
        assert len(broken) >= 6
        assert len(world.model.requests) == len(SCRIPT)


async def test_turn_waits_while_the_disk_is_full(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:

        async def fill(name: str) -> None:
            if name == "model.stream" and not world.model.requests:
                await world.database.write(lambda conn: conn.exec_driver_sql("PRAGMA max_page_count=1"))

        async def make_space() -> None:
            await world.database.write(lambda conn: conn.exec_driver_sql("PRAGMA max_page_count=100000"))

        world.on_wait = make_space
        await turn_with(world, fill)
        assert len(world.waits) == 1, "a write waited"
        assert len(world.model.requests) == len(SCRIPT)


class Server:
    """A PostgreSQL that can be stopped and started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: ExitStack | None = None
        self.server: PostgresServer | None = None

    def start(self) -> PostgresServer:
        if self._running is None:
            self._running = ExitStack()
            self.server = self._running.enter_context(running_postgres(self._directory))
        assert self.server is not None
        return self.server

    def stop(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    with TemporaryDirectory(prefix="mnemesh-pg-", dir=shared_parent()) as directory:
        server = Server(Path(directory))
        yield server
        server.stop()


@asynccontextmanager
async def restarting(server: Server, tmp_path: Path) -> AsyncIterator[World]:
    """A world whose database starts again when a call to it waits."""
    database = await server.start().create_database()
    async with opened(tmp_path, server.start().url(database)) as world:

        async def start(*_: object) -> None:
            server.start()

        world.on_wait = start
        yield world
        server.start()


@pytest.mark.full
async def test_server_stop_at_any_access_of_a_turn(tmp_path: Path, server: Server) -> None:
    async with restarting(server, tmp_path) as world:
        _, calls = await turn_with(world, _nothing)
        accesses = [place for place, name in enumerate(calls) if name in ("runs.write", "runs.finish")]
        assert len(accesses) == 3
        for place in accesses:
            for effect in (False, True):
                world.faults, world.model.requests = Faults(), []
                stopped = []

                async def stop(_: str, place: int = place, stopped: list[int] = stopped) -> None:
                    if not stopped and len(world.faults.calls) > place:
                        stopped.append(place)
                        server.stop()

                await turn_with(world, *((_nothing, stop) if effect else (stop, None)))
                assert len(world.model.requests) == len(SCRIPT)


async def _nothing(_: str) -> None:
    """No outage."""
