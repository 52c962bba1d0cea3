"""Two replicas on one PostgreSQL database and one Qdrant server.

The server is a fake that implements the protocol, or a real one if QDRANT_URL is set.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import GetArchiveRequest, UpdateArchiveRequest
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_TEXT,
    DeletePassageRequest,
    ListPassagesRequest,
    PassageFilter,
    UpdatePassageRequest,
)
from mnemesh_archival.config import Config
from mnemesh_archival.maintenance import maintain
from mnemesh_kit.config import StartupError
from mnemesh_retrieval.registry import WORDLLAMA
from mnemesh_testkit.fakes.qdrant import fake_qdrant
from mnemesh_testkit.timeouts import scaled

from .conftest import ArchivalServer


@pytest.fixture
async def replicas(postgres_url: str, tmp_path: Path) -> AsyncIterator[tuple[ArchivalServer, ArchivalServer]]:
    async with AsyncExitStack() as stack:
        server: dict[str, Any] = {
            "qdrant_url": os.environ.get("QDRANT_URL", ""),
            "qdrant_api_key": os.environ.get("QDRANT_API_KEY", ""),
            "qdrant_grpc_port": int(os.environ.get("QDRANT_GRPC_PORT", "6334")),
        }
        if not server["qdrant_url"]:
            qdrant = await stack.enter_async_context(fake_qdrant())
            server |= {"qdrant_url": "http://127.0.0.1:6333", "qdrant_grpc_port": qdrant.port}
        shared = {**server, "database_url": postgres_url, "qdrant_prefix": f"test-{uuid.uuid4().hex}"}
        servers = []
        for name in ("one", "two"):
            config = Config(port=0, data_dir=str(tmp_path / name), embedder="mnemesh/hashing-256", **shared)
            archival = ArchivalServer(config)
            await archival.start()
            stack.push_async_callback(archival.stop)
            stack.push_async_callback(archival.channels.close)
            servers.append(archival)
        yield servers[0], servers[1]


async def test_replica_finds_the_writes_of_the_other(
    replicas: tuple[ArchivalServer, ArchivalServer], agent: str
) -> None:
    one, two = replicas
    passage = await one.one(agent, "an old oak", tags=["tree"])
    mine = PassageFilter(agent_id=agent, tags=["tree"], start_date="2020-01-01")
    assert await two.texts("oak", filter=mine) == ["an old oak"]
    change = UpdatePassageRequest(passage=Passage(id=passage, text="an elm"), update_mask=FieldMask(paths=["text"]))
    await two.passages.UpdatePassage(change)
    assert await one.texts("elm", mode=PASSAGE_SEARCH_MODE_TEXT) == ["an elm"]
    assert await one.texts("oak", mode=PASSAGE_SEARCH_MODE_TEXT) == []
    await one.passages.DeletePassage(DeletePassageRequest(passage_id=passage))
    assert await two.texts() == []
    assert (await two.summary(agent)).passage_count == 0


async def test_repeated_request_takes_effect_once_on_any_replica(
    replicas: tuple[ArchivalServer, ArchivalServer], agent: str
) -> None:
    archive = await replicas[0].archive(agent)
    answers = await asyncio.gather(
        *(replicas[n % 2].insert(archive, "once", "twice", request_id="r1") for n in range(8))
    )
    assert len({result.passage.id for answer in answers for result in answer.results}) == 2
    assert sorted(await replicas[1].texts()) == ["once", "twice"]
    assert (await replicas[1].summary(agent)).passage_count == 2


async def test_archive_changes_its_embedder_once(replicas: tuple[ArchivalServer, ArchivalServer], agent: str) -> None:
    one, two = replicas
    archive = await one.archive(agent)
    await one.insert(archive, *(f"oak {n}" for n in range(100)))
    request = UpdateArchiveRequest(
        archive=Archive(id=archive, embedder=WORDLLAMA), update_mask=FieldMask(paths=["embedder"])
    )
    await two.archives.UpdateArchive(request)
    async with asyncio.timeout(scaled(60)):
        while (await one.archives.GetArchive(GetArchiveRequest(archive_id=archive))).archive.embedder != WORDLLAMA:
            assert await one.texts("oak")
            assert await two.texts("oak")
    listed = await one.passages.ListPassages(ListPassagesRequest(page_size=1000))
    assert len(listed.passages) == 100


async def test_maintenance_reports_that_the_server_rewrites_its_segments(
    replicas: tuple[ArchivalServer, ArchivalServer],
) -> None:
    lines = [line async for line in maintain(replicas[0].config)]
    assert any("Qdrant server rewrites" in line for line in lines)


async def test_unreachable_qdrant_server_is_a_startup_error(tmp_path: Path, unused_tcp_port: int) -> None:
    config = Config(
        port=0, data_dir=str(tmp_path), qdrant_url="http://127.0.0.1:6333", qdrant_grpc_port=unused_tcp_port
    )
    with pytest.raises(StartupError, match="UNAVAILABLE"):
        await ArchivalServer(config).start()
