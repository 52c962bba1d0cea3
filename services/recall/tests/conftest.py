"""Fixtures of the recall tests: the service with its real stores, over the wire."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.recall.v1.episodes_service_pb2_grpc import EpisodeServiceStub
from mnemesh.recall.v1.messages_service_pb2_grpc import MessageServiceStub
from mnemesh.recall.v1.traces_service_pb2_grpc import TraceServiceStub
from mnemesh_kit.channels import Channels
from mnemesh_kit.server import RunningServer
from mnemesh_kit.time import FrozenClock
from mnemesh_recall.config import Config
from mnemesh_recall.wiring import assemble
from mnemesh_retrieval.registry import HASHING
from mnemesh_testkit.timeouts import scaled

Serve = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture
def clock() -> FrozenClock:
    """A clock that the test advances."""
    return FrozenClock()


@pytest.fixture
def serve(tmp_path: Path, clock: FrozenClock) -> Serve:
    """Starts a service and yields its stub, with its address and other stubs as attributes. Keywords are settings."""

    @asynccontextmanager
    async def running(**settings: Any) -> AsyncIterator[Any]:
        chosen = {"port": 0, "data_dir": str(tmp_path), "embedder": HASHING, "shutdown_grace_seconds": 0.0, **settings}
        config = Config(**chosen)
        server = RunningServer()
        address = await server.start(await assemble(config, clock=clock), config)
        channels = Channels(deadline=scaled(60))
        try:
            stub: Any = MessageServiceStub(channels.channel(address))
            stub.address = address
            stub.episodes = EpisodeServiceStub(channels.channel(address))
            stub.traces = TraceServiceStub(channels.channel(address))
            yield stub
        finally:
            await channels.close()
            await server.stop()

    return running


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either SQL engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'recall.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest_asyncio.fixture
async def recall(serve: Serve, database_url: str) -> AsyncIterator[Any]:
    """A stub of a running service, on either SQL engine."""
    async with serve(database_url=database_url) as stub:
        yield stub
