"""Fixtures of the blocks tests: a running service on each SQL engine."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from mnemesh_blocks.config import Config
from mnemesh_blocks.wiring import assemble
from mnemesh_kit.channels import Channels
from mnemesh_kit.ids import SequentialIds
from mnemesh_kit.server import RunningServer
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.timeouts import scaled

if TYPE_CHECKING:
    from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub


@pytest_asyncio.fixture
async def clock() -> FrozenClock:
    """A clock that tests advance."""
    return FrozenClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, for each SQL engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'blocks.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest_asyncio.fixture
async def blocks(tmp_path: Path, database_url: str, clock: FrozenClock) -> "AsyncIterator[BlockServiceAsyncStub]":
    """A stub of a running service, on each engine."""
    config = Config(port=0, data_dir=str(tmp_path), database_url=database_url, shutdown_grace_seconds=0)
    server = RunningServer()
    address = await server.start(await assemble(config, clock=clock, ids=SequentialIds()), config)
    channels = Channels(deadline=scaled(60))
    stub: Any = BlockServiceStub(channels.channel(address))
    stub.address = address
    yield stub
    await channels.close()
    await server.stop()
