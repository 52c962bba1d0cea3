"""Maintenance deletes expired rows and removes erased bytes from the disk, on each SQL engine."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from mnemesh_blocks.config import Config
from mnemesh_blocks.maintenance import maintain
from mnemesh_blocks.wiring import assemble
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.ids import new_id
from mnemesh_kit.server import RunningServer
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock

CANARY = "canaryZq7xVw3"
DAY = 86_400
Serve = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.fixture(params=["sqlite", "postgresql"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """The settings of the service, for each engine."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    return Config(port=0, data_dir=str(tmp_path), database_url=url, shutdown_grace_seconds=0)


@pytest.fixture
def serve(config: Config, clock: FrozenClock) -> Serve:
    """Starts the service and yields its stub."""

    @asynccontextmanager
    async def running() -> AsyncIterator[Any]:
        server, channels = RunningServer(), Channels()
        address = await server.start(await assemble(config, clock=clock), config)
        try:
            yield BlockServiceStub(channels.channel(address))
        finally:
            await channels.close()
            await server.stop()

    return running


async def report_of(config: Config, clock: FrozenClock) -> list[str]:
    return [line async for line in maintain(config, clock=clock)]


async def test_expired_rows_are_deleted_and_the_database_is_rewritten(
    serve: Serve, config: Config, clock: FrozenClock, tmp_path: Path
) -> None:
    agent = new_id("agent")
    draft = pb.Block(label="human", value=CANARY, description=CANARY, tags=[CANARY])
    create = rpc.CreateBlockRequest(request_id="r1", block=draft, agent_ids=[agent])
    async with serve() as blocks:
        kept = (
            await blocks.CreateBlock(rpc.CreateBlockRequest(block=pb.Block(label="kept", value="still here")))
        ).block
        await blocks.CreateBlock(create)
        erase = rpc.EraseAgentRequest(agent_id=agent, delete_unshared_blocks=True)
        assert (await blocks.EraseAgent(erase)).deleted_blocks == 1
        if config.database_url is None:
            with pytest.raises(StartupError, match="in use by another process"):
                await report_of(config, clock)
    files = await _files(config)
    report = await report_of(config, clock)
    assert report[:2] == ["idempotency keys deleted: 0", "tombstones deleted: 0"]
    assert " before, " in report[2]
    if config.database_url is None:
        assert not [file for file in tmp_path.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]
    else:
        assert not files & await _files(config), "every table must be in a new file"
    clock.advance(2 * DAY)
    assert (await report_of(config, clock))[:2] == ["idempotency keys deleted: 3", "tombstones deleted: 0"]
    async with serve() as blocks:
        with pytest.raises(FailedPrecondition):
            await blocks.CreateBlock(create)
    clock.advance(29 * DAY)
    assert (await report_of(config, clock))[1] == "tombstones deleted: 1"
    async with serve() as blocks:
        assert (await blocks.GetBlock(rpc.GetBlockRequest(block_id=kept.id))).block.value == "still here"
        assert (await blocks.CreateBlock(create)).block.label == "human"


async def _files(config: Config) -> set[int]:
    """Returns the file numbers of the tables on PostgreSQL."""
    if config.database_url is None:
        return set()
    database = Database.open(config.database)
    statement = sa.text("SELECT relfilenode FROM pg_class WHERE relname IN ('blocks', 'block_revisions', 'holdings')")
    files = await database.read(lambda conn: set(conn.execute(statement).scalars()))
    await database.close()
    return files
