"""A real archival server on a free port, over SQLite and over PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from engram.archival.v1.archives_pb2 import Archive, Passage
from engram.archival.v1.archives_service_pb2 import CreateArchiveRequest
from engram.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from engram.archival.v1.passages_service_pb2 import (
    GetArchivalSummaryRequest,
    GetArchivalSummaryResponse,
    InsertPassagesRequest,
    InsertPassagesResponse,
    SearchPassagesRequest,
)
from engram.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from engram_archival.config import Config
from engram_archival.wiring import assemble
from engram_kit.channels import Channels
from engram_kit.ids import new_id
from engram_kit.service import RunningServer


@dataclass
class Room:
    """One archival server, and stubs to call it with."""

    config: Config
    channels: Channels = field(default_factory=Channels)
    server: RunningServer = field(default_factory=RunningServer)

    async def start(self) -> None:
        self.server = RunningServer()
        self.address = address = await self.server.start(await assemble(self.config), self.config)
        channel = self.channels.channel(address)
        self.archives: Any = ArchiveServiceStub(channel)
        self.passages: Any = PassageServiceStub(channel)

    async def stop(self) -> None:
        await self.server.stop()

    async def archive(self, *agent_ids: str, **fields: object) -> str:
        draft = Archive(**{"name": "notes", **fields})  # type: ignore[arg-type]
        made = await self.archives.CreateArchive(CreateArchiveRequest(archive=draft, agent_ids=agent_ids))
        return str(made.archive.id)

    async def insert(self, target: str, *passages: Passage | str, request_id: str = "") -> InsertPassagesResponse:
        where = {"agent_id": target} if target.startswith("agent-") else {"archive_id": target}
        drafts = [Passage(text=given) if isinstance(given, str) else given for given in passages]
        answer: InsertPassagesResponse = await self.passages.InsertPassages(
            InsertPassagesRequest(passages=drafts, request_id=request_id, **where)
        )
        return answer

    async def one(self, target: str, text: str, **fields: object) -> str:
        (result,) = (await self.insert(target, Passage(text=text, **fields))).results  # type: ignore[arg-type]
        return str(result.passage.id)

    async def texts(self, query: str = "", **request: object) -> list[str]:
        found = await self.passages.SearchPassages(SearchPassagesRequest(query=query, **request))  # type: ignore[arg-type]
        return [hit.passage.text for hit in found.hits]

    async def summary(self, agent_id: str, if_revision: int | None = None) -> GetArchivalSummaryResponse:
        request = GetArchivalSummaryRequest(agent_id=agent_id, if_revision=if_revision)
        answer: GetArchivalSummaryResponse = await self.passages.GetArchivalSummary(request)
        return answer


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path / 'archival.db'}"


@pytest.fixture
async def room(database_url: str, tmp_path: Path) -> AsyncIterator[Room]:
    """A running server."""
    config = Config(
        port=0, data_dir=str(tmp_path), database_url=database_url, embedder="engram/hashing-256", log_level="error"
    )
    room = Room(config)
    await room.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(room.stop)
        stack.push_async_callback(room.channels.close)
        yield room


@pytest.fixture
def agent() -> str:
    """An agent's id."""
    return new_id("agent")
