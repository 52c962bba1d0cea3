"""Fixtures of the blocks tests: the service on its real store, in process and through the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest_asyncio
from engram.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from engram_blocks.config import Config
from engram_blocks.wiring import assemble
from engram_kit.channels import Channels
from engram_kit.clock import FrozenClock
from engram_kit.ids import SequentialIds
from engram_kit.service import RunningServer

if TYPE_CHECKING:
    from engram.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub


@pytest_asyncio.fixture
async def clock() -> FrozenClock:
    """A clock that the test moves."""
    return FrozenClock()


@pytest_asyncio.fixture
async def blocks(tmp_path: Path, clock: FrozenClock) -> AsyncIterator[BlockServiceAsyncStub]:
    """A stub of a running service."""
    config = Config(port=0, data_dir=str(tmp_path), shutdown_grace_seconds=0)
    server = RunningServer()
    address = await server.start(await assemble(config, clock=clock, ids=SequentialIds()), config)
    channels = Channels()
    yield BlockServiceStub(channels.channel(address))
    await channels.close()
    await server.stop()
