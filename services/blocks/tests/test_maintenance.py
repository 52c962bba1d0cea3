"""Maintenance: what has expired is forgotten, and what was erased leaves the disk, on each SQL engine."""

from __future__ import annotations

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
from mnemesh_kit.clock import FrozenClock
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.ids import new_id
from mnemesh_kit.service import RunningServer
from mnemesh_kit.sql import Database

CANARY = "canaryZq7xVw3"
DAY = 86_400
Serve = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.fixture(params=["sqlite", "postgresql"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """The settings of the service on either engine."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    return Config(port=0, data_dir=str(tmp_path), database_url=url, shutdown_grace_seconds=0)


@pytest.fixture
def serve(config: Config, clock: FrozenClock) -> Serve:
    """Starts the service and gives its stub."""

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


async def told(config: Config, clock: FrozenClock) -> list[str]:
    return [line async for line in maintain(config, clock=clock)]


async def test_it_forgets_what_has_expired_and_rewrites_the_rest(
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
                await told(config, clock)
    files = await _files(config)
    report = await told(config, clock)
    assert report[:2] == ["request ids forgotten: 0", "tombstones of agents forgotten: 0"]
    assert " before, " in report[2]
    if config.database_url is None:
        assert not [file for file in tmp_path.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]
    else:
        assert not files & await _files(config), "every table is in a new file"
    clock.advance(2 * DAY)
    assert (await told(config, clock))[:2] == ["request ids forgotten: 3", "tombstones of agents forgotten: 0"]
    async with serve() as blocks:
        with pytest.raises(FailedPrecondition):
            await blocks.CreateBlock(create)
    clock.advance(29 * DAY)
    assert (await told(config, clock))[1] == "tombstones of agents forgotten: 1"
    async with serve() as blocks:
        assert (await blocks.GetBlock(rpc.GetBlockRequest(block_id=kept.id))).block.value == "still here"
        assert (await blocks.CreateBlock(create)).block.label == "human"


async def _files(config: Config) -> set[int]:
    """The files of the tables on PostgreSQL."""
    if config.database_url is None:
        return set()
    database = Database.open(config.database)
    names = sa.text("SELECT relfilenode FROM pg_class WHERE relname IN ('blocks', 'block_revisions', 'holdings')")
    found = await database.read(lambda conn: set(conn.execute(names).scalars()))
    await database.close()
    return found
