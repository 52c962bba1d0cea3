"""The service over gRPC. The other services are unreachable."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.agents.v1.conversations_service_pb2_grpc import ConversationServiceStub
from mnemesh.agents.v1.groups_service_pb2_grpc import GroupServiceStub
from mnemesh.agents.v1.models_service_pb2_grpc import ModelServiceStub
from mnemesh.agents.v1.runs_service_pb2_grpc import RunServiceStub
from mnemesh_kit.channels import Channels
from mnemesh_kit.server import RunningServer
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.wiring import assemble
from mnemesh_testkit.mesh.local_services import MEMORY_URL

from .provider_calls import served, settings

if TYPE_CHECKING:
    import grpc
    from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceAsyncStub
    from mnemesh.agents.v1.conversations_service_pb2_grpc import ConversationServiceAsyncStub
    from mnemesh.agents.v1.groups_service_pb2_grpc import GroupServiceAsyncStub
    from mnemesh.agents.v1.models_service_pb2_grpc import ModelServiceAsyncStub
    from mnemesh.agents.v1.runs_service_pb2_grpc import RunServiceAsyncStub


@dataclass
class Wire:
    """Stubs of a running service."""

    agents: "AgentServiceAsyncStub"
    runs: "RunServiceAsyncStub"
    models: "ModelServiceAsyncStub"
    conversations: "ConversationServiceAsyncStub"
    groups: "GroupServiceAsyncStub"
    channel: "grpc.aio.Channel"


@pytest_asyncio.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    """Yields stubs of a service whose other services are unreachable."""
    async with serving(tmp_path) as wire:
        yield wire


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Wire]:
    """Runs a service whose other services are unreachable."""
    unreachable = f"unix:{directory / 'unreachable'}"
    config = Config(
        port=0,
        data_dir=str(directory),
        database_url=MEMORY_URL,
        shutdown_grace_seconds=0,
        blocks_target=unreachable,
        recall_target=unreachable,
        archival_target=unreachable,
        tools_target=unreachable,
    )
    server = RunningServer()
    address = await server.start(await assemble(config, clock=FrozenClock()), config)
    channels = Channels()
    channel = channels.channel(address)
    yield Wire(
        AgentServiceStub(channel),
        RunServiceStub(channel),
        ModelServiceStub(channel),
        ConversationServiceStub(channel),
        GroupServiceStub(channel),
        channel,
    )
    await channels.close()
    await server.stop()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.keys"
    path.write_text("a-secrets-key-of-the-operator-0123456789\n")
    return path


@pytest_asyncio.fixture
async def alone(tmp_path: Path) -> "AsyncIterator[ModelServiceAsyncStub]":
    """A service on SQLite, for tests that do not depend on the engine."""
    async with served(settings(tmp_path, database_url=MEMORY_URL)) as stub:
        yield stub
